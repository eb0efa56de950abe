"""Garbage collection of a command: rare while it imports and composes, as usual while it trains."""

from __future__ import annotations

import gc

IMPORTED = 500_000  # objects, more than torch and the start of a run make; by default, every 700 new ones are searched

_usual: tuple[int, int, int] | None = None  # thresholds, while collections are rare


def collect_rarely() -> None:
    """Search for garbage only after many new objects: imports make many, and hardly any garbage."""
    global _usual
    _usual = gc.get_threshold()
    gc.set_threshold(IMPORTED, *_usual[1:])


def collect_as_usual() -> None:
    """Undo `collect_rarely`, if it was called; what was imported by now is never searched again."""
    global _usual
    if _usual is not None:
        gc.freeze()
        gc.set_threshold(*_usual)
        _usual = None
