"""Plain paths as what lies in a stranger's folder is opened."""

from __future__ import annotations

from pathlib import Path

from cadenza.base.files import SafePath


def safe(path: Path) -> SafePath:
    """The file or folder, its own folder being the root."""
    return SafePath(path.parent) / path.name
