"""Whether there is a screen to show pictures on."""

from __future__ import annotations

import os
import sys


def has_display() -> bool:
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
