"""Statistics over the seeds of runs: interquartile means, bootstrap intervals, how likely one beats another.

As Agarwal et al. 2021 (arXiv:2108.13264) propose it. Scores are a list of tasks, each an array of one number per run;
letters in shapes: R resamples, K runs of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray
Scores = Sequence[Array]  # by task [..., K]
Statistic = Callable[[Scores], Array]

RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 0  # the same runs give the same interval at every call


def interquartile_mean(values: Array) -> Array:
    """Mean of the middle half along the last axis: a quarter is cut at each end, rounded down."""
    cut = int(0.25 * values.shape[-1])
    return np.asarray(np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1))


def pooled_iqm(scores: Scores) -> Array:
    """The interquartile mean of all runs of all tasks together."""
    return interquartile_mean(np.concatenate(scores, -1))


def draw(scores: Scores, resamples: int = RESAMPLES, seed: int = SEED) -> list[Array]:
    """Which runs each resample takes, with replacement and from every task on its own [R, K]."""
    random = np.random.default_rng(seed)
    return [random.integers(task.shape[-1], size=(resamples, task.shape[-1])) for task in scores]


def resampled(scores: Scores, draws: Sequence[Array]) -> list[Array]:
    return [task[chosen] for task, chosen in zip(scores, draws, strict=True)]


def percentiles(values: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """The ends of the middle part of the resamples, along the first axis."""
    outside = 50 * (1 - confidence)
    low, high = np.percentile(values, [outside, 100 - outside], axis=0)
    return low, high


def interval(
    scores: Scores, statistic: Statistic = pooled_iqm, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Where the statistic lies if the runs are drawn anew: the percentile interval of a stratified bootstrap."""
    low, high = percentiles(statistic(resampled(scores, draw(scores, resamples))), confidence)
    return float(low), float(high)


def probability_of_improvement(ours: Scores, theirs: Scores) -> Array:
    """How likely a run of ours beats one of theirs, a tie counting half; the mean over tasks."""
    return np.asarray(np.mean([_beats(a, b) for a, b in zip(ours, theirs, strict=True)], axis=0))


def _beats(a: Array, b: Array) -> Array:
    """The share of pairs; a run of `a` at a time, since all pairs of all resamples at once may not fit in memory."""
    won = sum(((one > b) + 0.5 * (one == b)).sum(-1) for one in np.moveaxis(a, -1, 0)[..., None])
    return np.asarray(won / (a.shape[-1] * b.shape[-1]))


def improvement_interval(
    ours: Scores, theirs: Scores, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Its interval, both sides drawn independently of each other."""
    draws = draw([*ours, *theirs], resamples)
    parts = (resampled(ours, draws[: len(ours)]), resampled(theirs, draws[len(ours) :]))
    low, high = percentiles(probability_of_improvement(*parts), confidence)
    return float(low), float(high)


def performance_profile(scores: Scores, thresholds: Array) -> Array:
    """For each threshold, the share of all runs whose score is above it [..., thresholds]."""
    ordered = np.sort(np.concatenate(scores, -1), -1)
    count = ordered.shape[-1]
    flat = ordered.reshape(-1, count)
    above = np.stack([count - np.searchsorted(row, thresholds, "right") for row in flat]) / count
    return np.asarray(above.reshape(*ordered.shape[:-1], len(thresholds)))


def profile_interval(
    scores: Scores, thresholds: Array, confidence: float = CONFIDENCE, resamples: int = 2_000
) -> tuple[Array, Array]:
    """The interval of a profile at each threshold."""
    draws = draw(scores, resamples)
    return percentiles(performance_profile(resampled(scores, draws), thresholds), confidence)


def curve_interval(curves: Array, confidence: float = CONFIDENCE, resamples: int = 2_000) -> tuple[Array, Array, Array]:
    """Interquartile mean over runs at each point of aligned curves [K, points], and the ends of its interval."""
    middle = interquartile_mean(curves.T)
    (draws,) = draw([curves[:, 0]], resamples)
    ends = [percentiles(interquartile_mean(point[draws]), confidence) for point in curves.T]
    low, high = (np.array(side) for side in zip(*ends, strict=True))
    return middle, low, high
