"""How much each swept setting matters: the share of the differences between trials that it alone accounts for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cadenza.base.json_text import canonical
from cadenza.lab.sweeps.space import Dimension, Range

BINS = 4  # groups that the values of a range are put into, each with equally many trials
FEWEST = 6  # trials below which nothing is said


def importance(
    dimensions: Mapping[str, Dimension], params: Sequence[Mapping[str, Any]], values: Sequence[float]
) -> dict[str, float]:
    """By key, the largest first; from 0 to 1. Without the keys of which the trials do not tell, which may be all."""
    score = np.asarray(values, dtype=float)
    if len(score) < FEWEST or np.ptp(score) == 0:
        return {}
    shares = {}
    for key, dimension in dimensions.items():
        share = explained(_groups(dimension, [one[key] for one in params]), score)
        if share is not None:
            shares[key] = share
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def explained(groups: np.ndarray, score: np.ndarray) -> float | None:
    """Epsilon squared: the variance between groups over all of it, less what chance would give as many groups.

    Nothing where all are in one group, or each in one of its own.
    """
    names = np.unique(groups)
    spare = len(score) - len(names)
    if len(names) < 2 or spare < 1:
        return None
    total = float(((score - score.mean()) ** 2).sum())
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in (score[groups == name] for name in names))
    return max(0.0, 1 - (within / spare) / (total / (len(score) - 1)))


def _groups(dimension: Dimension, values: Sequence[Any]) -> np.ndarray:
    if not isinstance(dimension, Range):
        return np.unique([canonical(value) for value in values], return_inverse=True)[1]
    edges = np.quantile(np.asarray(values, dtype=float), np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, np.asarray(values, dtype=float), side="left")
