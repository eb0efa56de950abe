"""Statistics over the seeds of runs: interquartile means, bootstrap intervals, probability of improvement.

They follow Agarwal et al. 2021 (arXiv:2108.13264). Scores are a list of tasks, each an array with one number per run.
Letters in shapes: R resamples, K runs of a task.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray
Scores = Sequence[Array]  # for each task [..., K]

RESAMPLES, FEWER = 10_000, 2_000  # the latter where there is an interval at every point
CONFIDENCE = 0.95
SEED = 0  # the same runs give the same interval at every call


def interquartile_mean(values: Array) -> Array:
    """Return the mean of the middle half along the last axis: a quarter is cut off at each end, rounded down."""
    cut = int(0.25 * values.shape[-1])
    return np.asarray(np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1))


def pooled_iqm(scores: Scores) -> Array:
    """Return the interquartile mean of all runs of all tasks together."""
    return interquartile_mean(np.concatenate(scores, -1))


def draw(scores: Scores, resamples: int = RESAMPLES, seed: int = SEED) -> list[Array]:
    """Draw the indices of the runs in each resample, with replacement and separately for each task [R, K]."""
    random = np.random.default_rng(seed)
    return [random.integers(task.shape[-1], size=(resamples, task.shape[-1])) for task in scores]


def resample(scores: Scores, draws: Sequence[Array]) -> list[Array]:
    """Return the scores of the drawn runs, for each task [R, K]."""
    return [task[indices] for task, indices in zip(scores, draws, strict=True)]


def percentiles(values: Array) -> tuple[Array, Array]:
    """Return the ends of the central part of the resamples, along the first axis."""
    outside = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(values, [outside, 100 - outside], axis=0)
    return low, high


def interval(scores: Scores, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the percentile interval of the interquartile mean under a stratified bootstrap over runs."""
    low, high = percentiles(pooled_iqm(resample(scores, draw(scores, resamples))))
    return float(low), float(high)


def probability_of_improvement(ours: Scores, theirs: Scores) -> Array:
    """Return the probability that a run of ours beats one of theirs, a tie counting half; the mean over tasks."""
    return np.asarray(np.mean([_beats(a, b) for a, b in zip(ours, theirs, strict=True)], axis=0))


def _beats(a: Array, b: Array) -> Array:
    """Return the fraction of pairs in which `a` wins."""
    # a run of `a` at a time: all pairs of all resamples at once may not fit in memory
    won = sum(((one > b) + 0.5 * (one == b)).sum(-1) for one in np.moveaxis(a, -1, 0)[..., None])
    return np.asarray(won / (a.shape[-1] * b.shape[-1]))


def improvement_interval(ours: Scores, theirs: Scores) -> tuple[float, float]:
    """Return the interval of the probability of improvement; both sides are drawn independently of each other."""
    draws = draw([*ours, *theirs])
    parts = (resample(ours, draws[: len(ours)]), resample(theirs, draws[len(ours) :]))
    low, high = percentiles(probability_of_improvement(*parts))
    return float(low), float(high)


def performance_profile(scores: Scores, thresholds: Array) -> Array:
    """Return the fraction of all runs whose score is above each threshold [..., thresholds]."""
    ordered = np.sort(np.concatenate(scores, -1), -1)
    count = ordered.shape[-1]
    flat = ordered.reshape(-1, count)
    above = np.stack([count - np.searchsorted(row, thresholds, "right") for row in flat]) / count
    return np.asarray(above.reshape(*ordered.shape[:-1], len(thresholds)))


def profile_interval(scores: Scores, thresholds: Array) -> tuple[Array, Array]:
    """Return the interval of a performance profile at each threshold."""
    draws = draw(scores, FEWER)
    return percentiles(performance_profile(resample(scores, draws), thresholds))


def curve_interval(curves: Array) -> tuple[Array, Array, Array]:
    """Return the interquartile mean of aligned curves [K, points] at each point, and the ends of its interval."""
    middle = interquartile_mean(curves.T)
    (draws,) = draw([curves[:, 0]], FEWER)
    ends = [percentiles(interquartile_mean(point[draws])) for point in curves.T]
    low, high = (np.array(side) for side in zip(*ends, strict=True))
    return middle, low, high
