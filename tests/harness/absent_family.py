"""A family of environments whose package is never installed."""

import a_package_that_is_never_installed  # noqa: F401
