"""Plain paths as `SafePath`s."""

from __future__ import annotations

from pathlib import Path

from cadenza.base.files import SafePath


def safe(path: Path) -> SafePath:
    """Return a file or folder as a `SafePath` whose root is the folder around it."""
    return SafePath(path.parent) / path.name
