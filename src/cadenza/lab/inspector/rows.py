"""Curves of metrics, thinned to as many points as a picture shows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from cadenza.records.metric_rows import POINTS, Row

Points = tuple[list[float], list[float]]


def curve(rows: Sequence[Row], name: str, axis: str, points: int = POINTS) -> Points:
    """Return the points (x, y) of a metric along an axis where both are numbers, thinned to about `points`."""
    pairs = [(row.get(axis), row.get(name)) for row in rows]
    numbers = [(float(x), float(y)) for x, y in pairs if _is_number(x) and _is_number(y)]  # type: ignore[arg-type]
    return thinned([x for x, _ in numbers], [y for _, y in numbers], points)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def thinned(x: list[float], y: list[float], points: int) -> Points:
    """Select of each share of the axis the first, lowest, highest and last point, so that no spike is lost."""
    if len(x) <= points:
        return x, y
    low, high = x[0], x[-1]
    shares = max(1, points // 4)
    edges = [bisect_left(x, low + (high - low) * share / shares) for share in range(shares)] + [len(x)]
    selection: list[int] = []
    for begin, end in pairwise(edges):
        if end > begin:
            inside = range(begin, end)
            selection += sorted({begin, min(inside, key=y.__getitem__), max(inside, key=y.__getitem__), end - 1})
    return [x[i] for i in selection], [y[i] for i in selection]
