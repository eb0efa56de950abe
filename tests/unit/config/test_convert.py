from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import yaml

from cadenza.config.convert import build, config_hash, describe, to_dict, walk
from cadenza.config.load import dump
from cadenza.config.migrate import migrate
from cadenza.config.schedules import Schedule
from cadenza.config.schema import Hook, Phase, RunConfig
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.workflows.ppo_config import PPOConfig

FULL: dict[str, Any] = {
    "algorithm": {
        "name": "ppo",
        "learning_rate": "lin_0.001",
        "clip_range": {"schedule": "linear", "start_value": 0.3, "end_value": 0.1, "start": 0.1, "end": 50_000},
        "batch_size": 0.5,
        "target_kl": 0.02,
        "actor": {"hidden_sizes": [32, 16], "activation": "relu"},
    },
    "environment": {"id": "CartPole-v1", "kwargs": {"a": [1, {"b": None}], "c": 0.5}, "workers": 3},
    "training": {
        "max_timesteps": 5_000,
        "early_stop": {"at_least": 475},
        "phases": [
            {"name": "warm", "actions": "random", "hooks": ["collect"], "duration_steps": 100},
            {"name": "train", "hooks": [{"name": "collect", "steps": 64}, {"name": "update", "times": 2}]},
        ],
    },
    "tags": ["a", "b"],
    "name": "first",
    "seed": 3,
}


def config(**changes: Any) -> RunConfig:
    return build(RunConfig, {**FULL, **changes})


def test_every_kind_of_value_is_converted_to_its_type() -> None:
    made = config()
    assert isinstance(made.algorithm, PPOConfig)
    assert made.algorithm.learning_rate == Schedule("linear", 0.001, 0.0)
    assert made.algorithm.clip_range == Schedule("linear", 0.3, 0.1, 0.1, 50_000.0)
    assert made.algorithm.actor.hidden_sizes == (32, 16)
    assert made.environment.kwargs == {"a": [1, {"b": None}], "c": 0.5}
    assert made.training.early_stop is not None
    assert made.training.early_stop.at_least == 475.0
    assert made.training.phases == (
        Phase("warm", (Hook("collect"),), actions="random", duration_steps=100),
        Phase("train", (Hook("collect", steps=64), Hook("update", times=2))),
    )
    assert made.tags == ("a", "b")


@pytest.mark.parametrize("text", [lambda c: json.dumps(to_dict(c)), dump], ids=["json", "yaml"])
def test_stored_config_reads_back_equal(text: Any) -> None:
    made = config(algorithm={**FULL["algorithm"], "optimizer": {"eps": 1e-7}})
    assert build(RunConfig, migrate(yaml.safe_load(text(made)))) == made


def test_defaults_alone_read_back_equal() -> None:
    made = build(RunConfig, {"algorithm": {"name": "ppo"}})
    assert made == RunConfig(algorithm=PPOConfig())
    assert build(RunConfig, to_dict(made)) == made


@pytest.mark.parametrize(
    ("data", "key", "expected"),
    [
        ({"algorithm": {"name": "ppo", "gamma": 1}}, "gamma", 1.0),
        ({"algorithm": {"name": "ppo", "value_coef": "1e-8"}}, "value_coef", 1e-8),
        ({"algorithm": {"name": "ppo", "learning_rate": "2.5e-4"}}, "learning_rate", 2.5e-4),
        ({"algorithm": {"name": "ppo", "batch_size": 64}}, "batch_size", 64),
        ({"algorithm": {"name": "ppo", "batch_size": 1.0}}, "batch_size", 1.0),
        ({"algorithm": {"name": "ppo", "n_steps": 1e3}}, "n_steps", 1000),
    ],
)
def test_numbers_are_read_in_common_notations(data: Any, key: str, expected: float) -> None:
    value = getattr(build(RunConfig, data).algorithm, key)
    assert value == expected
    assert type(value) is type(expected)


def test_hash_ignores_name_and_tags_alone() -> None:
    assert config_hash(config(name="other", tags=[])) == config_hash(config())
    assert config_hash(config(seed=4)) != config_hash(config())
    assert len(config_hash(config())) == 16
    assert int(config_hash(config()), 16) >= 0


def test_hash_is_the_same_for_equal_values_written_differently() -> None:
    long_form = {**FULL["algorithm"], "learning_rate": {"start_value": 1e-3}}
    assert config_hash(config(algorithm=long_form)) == config_hash(config())


def test_input_data_is_neither_changed_nor_shared() -> None:
    data = {"algorithm": {"name": "ppo"}, "environment": {"kwargs": {"x": [1]}}}
    made = build(RunConfig, data)
    data["environment"]["kwargs"]["x"].append(2)  # type: ignore[index]
    assert made.environment.kwargs == {"x": [1]}


@dataclass(frozen=True)
class Part:
    size: int
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError("size cannot be negative")


@dataclass(frozen=True)
class Whole:
    part: Part = setting(doc="", factory=lambda: Part(1))
    perhaps: Part | None = setting(None)
    many: tuple[Part, ...] = setting(())
    named: Mapping[str, float] = setting(factory=dict)
    either: int | str | None = setting(None)
    flag: bool = setting(False)
    pair: tuple[int, str] = setting((1, "a"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"many": [{}]}, "many[0].size is missing: a whole number"),
        ({"part": {"size": -1}}, "part.size cannot be negative"),
        ({"many": [{"size": 1}, {"size": -1}]}, "many[1].size cannot be negative"),
        ({"many": [{"size": 1, "knd": "a"}]}, "unknown key 'many[0].knd'; did you mean"),
        ({"perhaps": {"size": 1, "kind": "c"}}, "perhaps.kind='c': must be one of a, b"),
        ({"named": {"x": "y"}}, "named.x='y': must be a number"),
        ({"named": {1: 2.0}}, "named={1: 2.0}: must be a mapping of names to values"),
        ({"either": 1.5}, "either=1.5: must be a whole number or text or null"),
        ({"flag": 1}, "flag=1: must be true or false"),
        ({"part": None}, "part=null: must be settings (size, kind)"),
    ],
)
def test_any_dataclass_reports_where_it_went_wrong(data: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Whole, data)
    assert str(caught.value).startswith(message)


def test_place_is_put_in_front_of_keys() -> None:
    with pytest.raises(ConfigError, match=r"^above\.part\.size='x': must be a whole number$"):
        build(Whole, {"part": {"size": "x"}}, where="above")


def test_union_keeps_the_exact_type() -> None:
    assert build(Whole, {"either": "7"}).either == "7"
    assert build(Whole, {"either": 7}).either == 7
    assert build(Whole, {"either": None}).either is None


def test_each_part_of_a_tuple_has_its_own_type() -> None:
    assert build(Whole, {"pair": [2, "b"]}).pair == (2, "b")
    with pytest.raises(ConfigError, match=r"^pair\[0\]='b': must be a whole number$"):
        build(Whole, {"pair": ["b", 2]})


def test_walk_names_every_key_once() -> None:
    keys = [key for key, _, _ in walk(RunConfig, data={"algorithm": {"name": "ppo"}})]
    assert len(keys) == len(set(keys))
    assert {"seed", "algorithm.actor.hidden_sizes", "training.early_stop.at_least"} <= set(keys)
    assert {field.name for field in dataclasses.fields(RunConfig)} <= set(keys)


def test_types_are_described_in_words() -> None:
    assert describe(int | None) == "a whole number or null"
    assert describe(float | Schedule) == "a number or a schedule such as lin_0.001"
    assert describe(int | float) == "a number"
    assert describe(Literal["a", "b"]) == "one of a, b"
    assert describe(tuple[int, ...]) == "a list of whole numbers"


@dataclass(frozen=True)
class Bounded:
    count: int | Literal["auto"] = setting(1, least=1)
    share: float | None = setting(0.5, least=0, below=1)
    rate: float | Schedule = setting(0.1, above=0)
    sizes: tuple[int, ...] | bool = setting((8,), least=1)
    level: float = setting(0.0, most=2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"count": 0}, "count=0: must be at least 1"),
        ({"share": 1}, "share=1: must be in [0, 1)"),
        ({"rate": 0}, "rate=0: must be above 0"),
        ({"rate": "lin_-1"}, "rate.start_value=-1: must be above 0"),
        ({"rate": "lin_0"}, "rate.start_value=0: must be above 0"),
        ({"sizes": [4, 0]}, "sizes[1]=0: must be at least 1"),
        ({"level": 2.5}, "level=2.5: must be at most 2"),
    ],
)
def test_numbers_outside_their_bounds_are_refused(data: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Bounded, data, "x")
    assert str(caught.value) == f"x.{message}"


def test_bounds_leave_other_values_alone() -> None:
    data = {"count": "auto", "share": None, "rate": "lin_0.1", "sizes": False, "level": -9.0}
    assert build(Bounded, data) == Bounded("auto", None, Schedule(start_value=0.1), False, -9.0)


def test_a_default_outside_its_bounds_is_refused() -> None:
    @dataclass(frozen=True)
    class Wrong:
        size: int = setting(0, least=1)

    with pytest.raises(ConfigError, match=r"^size=0: must be at least 1$"):
        build(Wrong, {})
