"""The importance of swept settings: the share of the variance between trials that each explains on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cadenza.base.json_text import canonical
from cadenza.lab.sweeps.space import Dimension, Range

BINS = 4  # groups of equally many trials into which the values of a range are divided
FEWEST = 6  # with fewer trials, no importance is computed


def importance(
    dimensions: Mapping[str, Dimension], params: Sequence[Mapping[str, Any]], values: Sequence[float]
) -> dict[str, float]:
    """Return the importance of each setting in [0, 1], most important first.

    Settings about which the trials say nothing are left out; with few or equal values that may be all.
    """
    score = np.asarray(values, dtype=float)
    if len(score) < FEWEST or np.ptp(score) == 0:
        return {}
    shares = {}
    for key, dimension in dimensions.items():
        share = explained_variance(_groups(dimension, [trial[key] for trial in params]), score)
        if share is not None:
            shares[key] = share
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def explained_variance(groups: np.ndarray, score: np.ndarray) -> float | None:
    """Return epsilon squared: the share of the variance that the groups explain, corrected for chance.

    None if all scores are in one group, or each is in a different one.
    """
    names = np.unique(groups)
    freedom = len(score) - len(names)
    if len(names) < 2 or freedom < 1:
        return None
    total = float(((score - score.mean()) ** 2).sum())
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in (score[groups == name] for name in names))
    return max(0.0, 1 - (within / freedom) / (total / (len(score) - 1)))


def _groups(dimension: Dimension, values: Sequence[Any]) -> np.ndarray:
    """Return the number of the group of each value: one per value of a list, BINS for a range."""
    if not isinstance(dimension, Range):
        return np.unique([canonical(value) for value in values], return_inverse=True)[1]
    edges = np.quantile(np.asarray(values, dtype=float), np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, np.asarray(values, dtype=float), side="left")
