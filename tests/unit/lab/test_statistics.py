"""Our statistics against rliable's on the same data. `reference/rliable.json` holds its data and its answers.

rliable draws `np.random.choice(runs, (runs, tasks))` for each resample, so its draws can be made again here and the
intervals compared to the last digits, without rliable and the packages it needs.
"""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.lab import statistics
from cadenza.lab.statistics import (
    curve_interval,
    draw,
    improvement_interval,
    interquartile_mean,
    interval,
    percentiles,
    performance_profile,
    pooled_iqm,
    probability_of_improvement,
    profile_interval,
    resample,
)

REFERENCE = json.loads((Path(__file__).parent / "reference" / "rliable.json").read_text())
CASES = list(REFERENCE["cases"].values())
named = pytest.mark.parametrize("case", CASES, ids=list(REFERENCE["cases"]))


def tasks(matrix: list[list[float]]) -> list[np.ndarray]:
    return list(np.array(matrix).T)


def rliable_draws(resamples: int, *scores: list[np.ndarray]) -> list[np.ndarray]:
    """Return the draws of rliable's own generator by task."""
    random = np.random.RandomState(REFERENCE["seed"])
    shapes = [(len(score[0]), len(score)) for score in scores]
    rounds = [[random.choice(runs, (runs, count)) for runs, count in shapes] for _ in range(resamples)]
    return [np.stack([one[side][:, task] for one in rounds]) for side, (_, n) in enumerate(shapes) for task in range(n)]


@named
def test_interquartile_mean_and_its_interval(case: dict[str, Any]) -> None:
    scores = tasks(case["x"])
    assert pooled_iqm(scores) == pytest.approx(case["iqm"], rel=1e-12)
    drawn = resample(scores, rliable_draws(REFERENCE["reps"], scores))
    assert percentiles(pooled_iqm(drawn)) == pytest.approx(case["iqm_interval"], rel=1e-12)
    spread = np.ptp(case["iqm_interval"])
    assert interval(scores) == pytest.approx(case["iqm_interval"], abs=0.1 * spread), "our own draws say the same"


@named
def test_probability_of_improvement_and_its_interval(case: dict[str, Any]) -> None:
    x, y = tasks(case["x"]), tasks(case["y"])
    assert probability_of_improvement(x, y) == pytest.approx(case["improvement"], rel=1e-12)
    draws = rliable_draws(REFERENCE["reps"], x, y)
    drawn = resample(x, draws[: len(x)]), resample(y, draws[len(x) :])
    expected = case["improvement_interval"]
    assert percentiles(probability_of_improvement(*drawn)) == pytest.approx(expected, rel=1e-12)
    assert improvement_interval(x, y) == pytest.approx(expected, abs=0.1 * np.ptp(expected))


@named
def test_performance_profile_and_its_interval(case: dict[str, Any]) -> None:
    scores, taus = tasks(case["x"]), np.array(case["taus"])
    np.testing.assert_allclose(performance_profile(scores, taus), case["profile"], rtol=1e-12)
    drawn = resample(scores, rliable_draws(REFERENCE["profile_reps"], scores))
    ends = percentiles(performance_profile(drawn, taus))
    np.testing.assert_allclose(ends, case["profile_interval"], rtol=1e-12)
    np.testing.assert_allclose(profile_interval(scores, taus), case["profile_interval"], atol=0.15)


def test_interval_of_a_curve_equals_the_reference() -> None:
    reference = REFERENCE["curve"]
    middle, low, high = curve_interval(np.array(reference["curves"]))
    np.testing.assert_allclose(middle, reference["iqm"], rtol=1e-12)
    spread = np.ptp(reference["interval"], axis=0)
    assert (np.abs(np.stack([low, high]) - reference["interval"]) < 0.12 * spread).all()


def test_scores_are_counted_strictly_above_a_threshold_and_ties_by_half() -> None:
    scores = [np.array([1.0, 2.0, 2.0, 3.0])]
    assert performance_profile(scores, np.array([0.0, 1.0, 2.0, 3.0])).tolist() == [1, 0.75, 0.25, 0]
    assert probability_of_improvement(scores, scores) == 0.5
    assert probability_of_improvement([np.array([2.0])], scores) == 0.5 * 2 / 4 + 1 / 4


def test_tasks_with_unequal_numbers_of_runs() -> None:
    scores = [np.array([0.0, 1.0, 2.0, 3.0]), np.array([10.0, 20.0])]
    assert pooled_iqm(scores) == np.mean([1, 2, 3, 10])
    assert [sample.shape for sample in draw(scores, 7)] == [(7, 4), (7, 2)]
    low, high = interval(scores)
    assert low < pooled_iqm(scores) < high


def test_one_run_has_no_spread_and_the_same_runs_the_same_interval() -> None:
    assert interval([np.array([5.0])]) == (5, 5)
    scores = [np.arange(10.0)]
    assert interval(scores) == interval(scores)
    assert interquartile_mean(np.arange(10.0)) == np.mean(np.arange(2, 8))
    assert statistics.CONFIDENCE == 0.95


def test_many_runs_are_paired_without_all_pairs_at_once() -> None:
    scores = [np.random.default_rng(0).integers(9, size=200).astype(float)]
    (drawn,) = resample(scores, draw(scores, 100))
    tracemalloc.start()
    probability = probability_of_improvement([drawn], [drawn[::-1]])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * drawn.nbytes
    ours, theirs = drawn[7][:, None], drawn[92][None]
    assert probability[7] == pytest.approx(((ours > theirs) + 0.5 * (ours == theirs)).mean(), rel=1e-12)
