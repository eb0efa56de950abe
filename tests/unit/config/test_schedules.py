from __future__ import annotations

import pytest

from cadenza.config import plugins
from cadenza.config.convert import build, to_dict
from cadenza.config.schedules import Schedule, schedules_in, value_at, with_short_schedules
from cadenza.errors import ConfigError
from cadenza.trees import leaves
from cadenza.workflows.tdmpc_config import TDMPCConfig


@pytest.mark.parametrize(
    ("schedule", "now", "expected"),
    [
        (Schedule("linear", 1.0, 0.0), 0, 1.0),
        (Schedule("linear", 1.0, 0.0), 250, 0.75),
        (Schedule("linear", 1.0, 0.0), 1000, 0.0),
        (Schedule("linear", 1.0, 0.0), 5000, 0.0),  # a longer budget on resume holds the end value
        (Schedule("linear", 1.0, 0.2, 0.5, 1.0), 500, 1.0),
        (Schedule("linear", 1.0, 0.2, 0.5, 1.0), 750, 0.6),
        (Schedule("linear", 0.0, 4.0, 100, 300), 50, 0.0),
        (Schedule("linear", 0.0, 4.0, 100, 300), 200, 2.0),
        (Schedule("linear", 0.0, 4.0, 0.0, 200), 100, 2.0),  # a fraction and a step
        (Schedule("linear", 0.0, 4.0, 100, 1.0), 550, 2.0),
        (0.3, 999, 0.3),
    ],
)
def test_value_in_a_run_of_1000(schedule: Schedule | float, now: int, expected: float) -> None:
    assert value_at(schedule, now, horizon=1000) == pytest.approx(expected, abs=1e-12)


def test_fractions_stretch_with_the_horizon_and_steps_do_not() -> None:
    assert value_at(Schedule("linear", 1.0, 0.0), 500, 2000) == pytest.approx(0.75)
    assert value_at(Schedule("linear", 1.0, 0.0, 0.0, 1000), 500, 2000) == pytest.approx(0.5)


def test_start_beyond_the_end_holds_the_start_value() -> None:
    late = Schedule("linear", 1.0, 0.0, 5000, 1.0)
    assert [value_at(late, now, 1000) for now in (0, 1000, 5000)] == [1.0, 1.0, 1.0]


def test_short_form_goes_to_zero_over_the_whole_run() -> None:
    assert build(Schedule, "lin_1e-3") == Schedule("linear", 0.001, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("lin_", "rate: 'lin_' is no schedule"),
        ("lin_fast", "rate: 'lin_fast' is no schedule"),
        ("lin_nan", "rate.start_value=nan: must be finite"),
        ({"schedule": "cosine"}, "rate.schedule='cosine': must be linear, or an import path"),
        ({"start": 0.5, "end": 0.2}, "rate: a schedule must end after it starts"),
        ({"kwargs": {"peak": 1}}, "rate.kwargs belong to a rule of yours, and the schedule is linear"),
        ({"schedule": "math:gcd", "end": 0.5}, "rate.start_value, end_value, start and end belong to linear"),
        ({"start": -1}, "rate.start=-1: must be at least 0"),
    ],
)
def test_mistakes_name_the_place(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Schedule, value, where="rate")
    assert str(caught.value).startswith(message)


def halved(now: int, horizon: int, first: float = 1.0) -> float:
    return first * 0.5 ** (now / horizon)


def test_a_rule_of_a_user_by_path_and_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins._registered["schedule"], "halved", halved)
    for text in (f"{__name__}:halved", "halved"):
        schedule = build(Schedule, text, where="rate")
        assert [value_at(schedule, now, 1000) for now in (0, 1000, 2000)] == [1.0, 0.5, 0.25]
        assert schedule.ends == (1.0, 0.5)
    assert value_at(Schedule("halved", kwargs={"first": 4.0}), 1000, 1000) == 2.0


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("builtins:print", {}, r"is None: no finite number"),
        (f"{__name__}:halved", {"last": 1}, r"failed \(TypeError"),
        ("math:nothing", {}, "cannot import 'math:nothing'"),
    ],
)
def test_a_rule_that_returns_no_number_is_refused(name: str, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        value_at(Schedule(name, kwargs=kwargs), 0, 1_000_000)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("lin_0.1", "lin_0.1"),
        ({"start_value": 0.1, "end_value": 0.01, "end": 0.5}, "0.1..0.01[0,0.5]"),
        ({"start_value": 1, "end_value": 10}, "1..10"),
        ("my_rates:cosine", "my_rates:cosine"),
    ],
)
def test_a_stored_schedule_is_one_text(schedule: object, text: str) -> None:
    stored = dict(leaves({"rate": to_dict(build(Schedule, schedule)), "gamma": 0.9}))
    assert with_short_schedules(stored) == {"rate": text, "gamma": 0.9}


def test_kwargs_of_a_rule_and_arguments_that_are_no_schedule_keep_their_keys() -> None:
    stored = {"rate": to_dict(build(Schedule, {"schedule": "my:cosine", "kwargs": {"peak": 1}}))}
    assert with_short_schedules(dict(leaves(stored))) == {"rate": "my:cosine", "rate.kwargs.peak": 1}
    arguments = {"environment.kwargs.schedule": "fast", "environment.kwargs.gravity": 9.8}
    assert with_short_schedules(arguments) == arguments


def test_schedules_of_nested_settings_are_found() -> None:
    config = build(TDMPCConfig, {"learning_rate": "lin_0.1", "planning": {"min_std": "lin_0.5"}})
    keys = {key: schedule.start_value for key, schedule in schedules_in(config, "algorithm")}
    assert {"algorithm.learning_rate": 0.1, "algorithm.planning.min_std": 0.5}.items() <= keys.items()
