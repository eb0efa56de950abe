"""Numbers, sizes, durations and curves as short texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

BLOCKS = "▁▂▃▄▅▆▇█"
LONGEST = 86_400 * 999_999_999  # seconds in the longest timedelta
ASCII = "_.-=+*#@"  # for terminals that cannot show blocks


def sparkline(values: Sequence[float], width: int = 30, levels: str = BLOCKS) -> str:
    """Return the last `width` values as bars, scaled between their minimum and maximum; gaps where not finite."""
    recent = values[-width:]
    finite = [value for value in recent if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = high - low
    if not math.isfinite(span):
        return ""

    def bar(value: float) -> str:
        if not math.isfinite(value):
            return " "
        return levels[int((value - low) / span * (len(levels) - 1) + 0.5)] if span else levels[len(levels) // 2]

    return "".join(map(bar, recent))


def number(value: float | int | None) -> str:
    """Return a number with four digits or with separated thousands; `-` for None and for one that is not finite."""
    if value is None or not math.isfinite(value):
        return "-"
    if isinstance(value, int) or (abs(value) >= 1000 and abs(value) < 1e9):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Return hours, minutes and seconds; `-` if unknown."""
    if seconds is None or not abs(seconds) < LONGEST:  # NaN compares as false
        return "-"
    return str(timedelta(seconds=max(0, round(seconds))))


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
