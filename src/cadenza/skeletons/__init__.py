"""Text from which `cadenza new` makes packages: one file for each that a package gets."""
