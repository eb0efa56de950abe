"""Curves of metrics for a picture: as many points as it shows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from cadenza.records.metric_rows import POINTS, Row

Points = tuple[list[float], list[float]]


def curve(rows: Sequence[Row], name: str, axis: str, points: int = POINTS) -> Points:
    """A metric along an axis, where both are numbers; of many points those that shape the picture."""
    pairs = [(row.get(axis), row.get(name)) for row in rows]
    kept = [(float(x), float(y)) for x, y in pairs if _plain(x) and _plain(y)]  # type: ignore[arg-type]
    return thinned([x for x, _ in kept], [y for _, y in kept], points)


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def thinned(x: list[float], y: list[float], points: int) -> Points:
    """Of each share of the axis the first, lowest, highest and last point: no spike is lost."""
    if len(x) <= points:
        return x, y
    low, high = x[0], x[-1]
    shares = max(1, points // 4)
    edges = [bisect_left(x, low + (high - low) * share / shares) for share in range(shares)] + [len(x)]
    keep: list[int] = []
    for begin, end in pairwise(edges):
        if end > begin:
            inside = range(begin, end)
            keep += sorted({begin, min(inside, key=y.__getitem__), max(inside, key=y.__getitem__), end - 1})
    return [x[i] for i in keep], [y[i] for i in keep]
