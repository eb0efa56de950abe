"""Lists and ranges of a space: values that are drawn, and invalid entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.errors import ConfigError
from cadenza.lab.sweeps.journal import Journal
from cadenza.lab.sweeps.space import Choices, Range, parse
from cadenza.lab.sweeps.sweep_file import SweepFile
from cadenza.lab.sweeps.sweep_report import explained_variance, importance
from harness.files import safe

KINDS = {"epochs": (True, False), "gamma": (False, True), "batch": (True, True)}


def test_a_grid_has_every_combination_once_and_the_last_key_changes_quickest() -> None:
    space = parse({"a": [1, 2], "b": ["x", [3, 4]], "c": 7}, {})
    assert list(space.grid()) == [{"a": 1, "b": "x"}, {"a": 1, "b": [3, 4]}, {"a": 2, "b": "x"}, {"a": 2, "b": [3, 4]}]
    assert space.fixed == {"c": 7}


def test_numbers_in_scientific_notation_are_numbers() -> None:
    assert parse({"a": ["1e-4", "3e2", "lin_0.001"]}, {}).dimensions["a"] == Choices((1e-4, 300, "lin_0.001"))


@pytest.mark.parametrize(
    ("key", "entry", "whole"),
    [
        ("epochs", {"min": 1, "max": 9}, True),
        ("gamma", {"min": 0, "max": 1}, False),  # whole ends do not make a real setting whole
        ("batch", {"min": 32, "max": 256}, True),
        ("batch", {"min": 0.1, "max": 1}, False),
    ],
)
def test_a_range_is_of_whole_numbers_where_the_setting_is(key: str, entry: dict[str, Any], whole: bool) -> None:
    dimension = parse({key: entry}, KINDS).dimensions[key]
    assert isinstance(dimension, Range)
    assert dimension.whole == whole


@pytest.mark.parametrize(
    "dimension",
    [
        Range(1e-5, 1e-1, log=True),
        Range(0.1, 0.9),
        Range(0.0, 1.0, step=0.25),
        Range(1, 5, whole=True),
        Range(1, 64, log=True, whole=True),
        Range(2, 11, step=3, whole=True),
    ],
)
def test_draws_stay_inside_and_reach_every_part(dimension: Range) -> None:
    rng = np.random.default_rng(0)
    drawn = [dimension.draw(rng) for _ in range(400)]
    low, high = dimension.corners
    assert all(low <= value <= high for value in drawn)
    assert all(isinstance(value, int) for value in drawn) == dimension.whole
    if dimension.step is not None:
        assert {round((value - low) / dimension.step, 6) for value in drawn} == set(range(dimension.steps + 1))
    middle = (low * high) ** 0.5 if dimension.log else (low + high) / 2
    assert 0.3 < np.mean([value <= middle for value in drawn]) < 0.7


def test_a_trial_is_drawn_by_its_number_alone() -> None:
    space = parse({"a": {"min": 0.0, "max": 1.0}, "b": [1, 2, 3]}, {})
    drawn = [space.draw(5, number) for number in range(10)]
    assert space.draw(5, 7) == drawn[7]
    assert len({one["a"] for one in drawn}) == 10
    assert space.draw(6, 7) != drawn[7]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"a": {"min": 1, "maxx": 2}}, "unknown key 'sweep.a.maxx'; did you mean 'sweep.a.max'?"),
        ({"a": {"min": 2, "max": 1}}, "max above min"),
        ({"a": {"min": 0.0, "max": 1, "log": True}}, "a min above 0"),
        ({"a": {"min": 0.0, "max": 1, "step": 2}}, "must be above 0 and fit"),
        ({"algorithm": {"gamma": [1, 2]}}, "keys are dotted: 'algorithm.gamma'"),
        ({"a": []}, "a list of values that differ"),
        ({"a": [1, 1]}, "a list of values that differ"),
        ({"a": 1}, "nothing to compare"),
        ({"seed": [1, 2]}, "see `seeds`"),
        ({"epochs": {"min": 0.5, "max": 2}}, "takes whole numbers"),
    ],
)
def test_invalid_spaces_are_refused_with_the_key(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as problem:
        parse(entry, KINDS)
    assert words in str(problem.value)


def test_a_grid_that_nobody_could_run_is_refused_with_its_size() -> None:
    with pytest.raises(ConfigError, match="a grid of 100,000 combinations, at most 10,000"):
        next(parse({f"k{place}": list(range(10)) for place in range(5)}, {}).grid())


@pytest.mark.parametrize(("low", "step"), [(0.0, 1 / 128), (0.5, 0.15), (0.0, 1 / 3), (0.0, 1e-7)])
def test_tpe_takes_and_gives_values_on_any_step(tmp_path: Path, low: float, step: float) -> None:
    pytest.importorskip("optuna")
    from cadenza.lab.sweeps.sweep_plan import RANDOM_TRIALS, plan
    from cadenza.lab.sweeps.tune import suggest

    space = {"algorithm.gae_lambda": {"min": low, "max": 1.0, "step": step}}
    made = plan(SweepFile(base="CartPole-v1:ppo", sweep=space, method="tpe", trials=20, name="x"))
    journal = Journal(safe(tmp_path / "journal.jsonl"))
    for number in range(1, RANDOM_TRIALS + 1):
        journal.end_trial(journal.add_trial(number, made.space.draw(0, number)), "finished", float(number))
    journal.close()
    drawn = [suggest(made, journal, RANDOM_TRIALS + 1), *(trial.params for trial in journal.trials.values())]
    for (value,) in (params.values() for params in drawn):
        assert low <= value <= 1
        assert (value - low) / step == pytest.approx(round((value - low) / step), abs=1e-6)


def test_tpe_distinguishes_1_from_true_in_earlier_trials() -> None:
    pytest.importorskip("optuna")
    from cadenza.lab.sweeps.tune import _to_optuna

    assert [_to_optuna(Choices((1, True)), tried) for tried in (1, True)] == [0, 1]


def test_importance_leaves_out_settings_with_one_trial_per_value() -> None:
    dimensions = {"once": Choices(tuple(range(6))), "twice": Choices((0, 1, 2)), "same": Choices((0, 1))}
    params = [{"once": number, "twice": number // 2, "same": 0} for number in range(6)]
    assert list(importance(dimensions, params, [0.0, 100.0, 200.0, 300.0, 400.0, 500.0])) == ["twice"]


def test_importance_is_the_share_of_variance_that_a_setting_alone_accounts_for() -> None:
    rng = np.random.default_rng(1)
    dimensions: dict[str, Choices | Range] = {
        "much": Choices((0, 1, 2)),
        "little": Range(0.0, 1.0),
        "none": Range(1e-5, 1.0, log=True),
    }
    params = [{key: dimension.draw(rng) for key, dimension in dimensions.items()} for _ in range(3000)]
    values = [3 * one["much"] + 2 * one["little"] + rng.normal() for one in params]
    shares = importance(dimensions, params, values)
    much, little, noise = 9 * 2 / 3, 4 / 12, 1.0  # variances of the three terms
    assert list(shares)[:2] == ["much", "little"]
    assert shares["much"] == pytest.approx(much / (much + little + noise), abs=0.02)
    assert shares["little"] == pytest.approx(0.94 * little / (much + little + noise), abs=0.02)  # four groups' worth
    assert shares["none"] < 0.01
    assert importance(dimensions, params[:3], values[:3]) == {}
    assert importance(dimensions, params[:9], [1.0] * 9) == {}


def test_importance_is_corrected_for_chance() -> None:
    rng = np.random.default_rng(0)
    shares = [explained_variance(np.arange(12) % 4, rng.normal(size=12)) for _ in range(300)]
    assert np.median(shares) < 0.02
