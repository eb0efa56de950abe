"""The screen: whether there is one, and how pygame is told that there is none."""

from __future__ import annotations

import os
import sys


def has_display() -> bool:
    """Return whether windows can be opened."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def prepare_pygame() -> None:
    """Set the variables that pygame reads when it is imported: no greeting on stdout, no window without a screen."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
