"""`_target_` and `_partial_`, Hydra's spelling of a part, mean the same as a name with arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.convert import build, from_hydra, to_dict
from cadenza.config.load import load
from cadenza.config.schema import RunConfig
from cadenza.errors import ConfigError
from cadenza.records.trust import code_named

MINE = "harness.own_parts"
PAIRS = {
    "dynamics": (
        "Pendulum-v1:world_models",
        {"dynamics": {"_target_": f"{MINE}.Leaky", "leak": 0.3, "_partial_": True}},
        {"dynamics": {"name": f"{MINE}:Leaky", "kwargs": {"leak": 0.3}}},
    ),
    "estimator": (
        "CartPole-v1:ppo",
        {"advantage": {"_target_": f"{MINE}.Fading", "rate": 0.1}},
        {"advantage": {"name": f"{MINE}:Fading", "kwargs": {"rate": 0.1}}},
    ),
    "head": (
        "Pendulum-v1:ppo",
        {"head": {"_target_": f"{MINE}.Laplace"}},
        {"head": f"{MINE}:Laplace"},
    ),
    "network": (
        "CartPole-v1:ppo",
        {"critic": {"_target_": f"{MINE}.Gated", "units": 8}, "actor": {"network": {"_target_": f"{MINE}.Gated"}}},
        {"critic": {"network": f"{MINE}:Gated", "kwargs": {"units": 8}}, "actor": {"network": f"{MINE}:Gated"}},
    ),
    "encoder": (
        "CartPole-v1:ppo",
        {"torso": {"encoder": {"_target_": f"{MINE}.Encoder", "units": 8}, "hidden_sizes": [8]}},
        {"torso": {"encoder": f"{MINE}:Encoder", "kwargs": {"units": 8}, "hidden_sizes": [8]}},
    ),
    "optimizer beside the settings of another": (
        "Pendulum-v1:planet",
        {"optimizer": {"_target_": "torch.optim.Adam", "eps": 1e-3, "_partial_": True}},
        {"optimizer": {"name": "torch.optim:Adam", "kwargs": {"eps": 1e-3}}},
    ),
    "learning-rate rule": (
        "CartPole-v1:ppo",
        {"learning_rate": {"_target_": "math.comb"}},
        {"learning_rate": {"schedule": "math:comb"}},
    ),
}


def yaml(folder: Path, name: str, data: dict[str, Any]) -> str:
    """Write a config and return its path; JSON is YAML."""
    import json

    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(data))
    return str(path)


@pytest.mark.parametrize("case", PAIRS)
def test_a_target_is_a_name_and_its_arguments(case: str, tmp_path: Path) -> None:
    spec, hydra, plain = PAIRS[case]
    by_name = load(yaml(tmp_path, "plain", {"spec": spec, "algorithm": plain}))
    assert load(yaml(tmp_path, "target", {"spec": spec, "algorithm": hydra})) == by_name
    assert build(RunConfig, to_dict(by_name)) == by_name
    assert "_target_" not in str(to_dict(by_name))


def test_a_target_on_the_command_line_and_in_a_file_with_defaults(tmp_path: Path) -> None:
    expected = load("CartPole-v1:ppo", [f"algorithm.actor={{network: '{MINE}:Gated', kwargs: {{units: 8}}}}"])
    by_block = load("CartPole-v1:ppo", [f"algorithm.actor={{_target_: {MINE}.Gated, units: 8}}"])
    by_key = load("CartPole-v1:ppo", [f"algorithm.actor._target_={MINE}.Gated", "algorithm.actor.kwargs.units=8"])
    assert by_block == by_key == expected
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm" / "mine.yaml").write_text(f"name: ppo\nactor: {{_target_: {MINE}.Gated, units: 8}}\n")
    (tmp_path / "run.yaml").write_text(
        "defaults: [config, algorithm: mine, _self_]\nenvironment: {id: CartPole-v1}\n"
        f"algorithm: {{critic: {{_target_: {MINE}.Gated, units: 4}}}}\n"
    )
    algorithm = load(str(tmp_path / "run.yaml")).algorithm
    assert (algorithm.actor, algorithm.critic.kwargs) == (expected.algorithm.actor, {"units": 4})


GATED, UNITS = f"'{MINE}:Gated'", "kwargs: {units: 8}"


@pytest.mark.parametrize(
    ("spec", "overrides", "part"),
    [
        ("Pendulum-v1:tdmpc2", (f"dynamics={GATED}", "dynamics.units=8"), f"dynamics={{name: {GATED}, {UNITS}}}"),
        (
            "Pendulum-v1:tdmpc2",
            (f"dynamics={GATED}", "dynamics.kwargs.units=8"),
            f"dynamics={{name: {GATED}, {UNITS}}}",
        ),
        ("CartPole-v1:ppo", (f"actor={GATED}", "actor.units=8"), f"actor={{network: {GATED}, {UNITS}}}"),
        (
            "CartPole-v1:ppo",
            (f"actor.network={GATED}", "actor.network.units=8"),
            f"actor={{network: {GATED}, {UNITS}}}",
        ),
        ("CartPole-v1:ppo", ("advantage=n_step", "advantage.n=8"), "advantage={name: n_step, kwargs: {n: 8}}"),
        ("CartPole-v1:ppo", ("optimizer=torch.optim:Adam",), "optimizer={_target_: torch.optim.Adam}"),
        ("CartPole-v1:ppo", ("advantage=n_step", "advantage.n=3", "advantage.name=td_lambda"), "advantage=td_lambda"),
        ("CartPole-v1:ppo", ("advantage=vtrace", "advantage.x=1", "advantage={name: n_step}"), "advantage=n_step"),
        ("CartPole-v1:ppo", (f"torso={GATED}", "torso.encoder=auto"), "torso.encoder=auto"),
    ],
)
def test_keys_below_the_name_of_a_part_are_its_arguments(spec: str, overrides: tuple[str, ...], part: str) -> None:
    assert load(spec, [f"algorithm.{text}" for text in overrides]) == load(spec, [f"algorithm.{part}"])


def test_several_arguments_of_a_part_and_those_of_a_buffer() -> None:
    dynamics = [
        f"algorithm.dynamics={MINE}:Gated",
        *(f"algorithm.dynamics.{key}" for key in ("a=1", "b.c=2", "kwargs.d=3")),
    ]
    assert load("Pendulum-v1:tdmpc2", dynamics).algorithm.dynamics.kwargs == {"a": 1, "b": {"c": 2}, "d": 3}
    buffers = ["training.buffers.replay=my:Buffer", "training.buffers.replay.limit=0.5"]
    assert load("Pendulum-v1:sac", buffers).training.buffers == {"replay": {"id": "my:Buffer", "limit": 0.5}}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy=squashed", "policy.units=3"], "algorithm.policy is 'squashed' and has no parts"),
        (["name=tdmpc2", "name.units=3"], "algorithm.name is 'tdmpc2' and has no parts"),
        ([f"dynamics={{name: '{MINE}:Gated'}}", "dynamics.units=3"], "did you mean 'algorithm.dynamics.kwargs.units'"),
        (["optimizer.name=torch.optim:Adam", "optimizer.epss=3"], "did you mean 'algorithm.optimizer.eps'"),
    ],
)
def test_a_key_below_what_takes_no_arguments_is_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load("Pendulum-v1:tdmpc2", [f"algorithm.{text}" for text in overrides])


def test_a_target_names_algorithm_environment_wrapper_sink_and_buffer() -> None:
    part = {"_target_": "mine.Part", "size": 3}
    data = {
        "algorithm": part,
        "environment": {"id": "CartPole-v1", "wrappers": [part]},
        "logging": {"sinks": [part]},
        "training": {"buffers": {"replay": part}},
    }
    listed = {"id": "mine:Part", "size": 3}
    assert from_hydra(data) == {
        "algorithm": {"name": "mine:Part", "size": 3},
        "environment": {"id": "CartPole-v1", "wrappers": [listed]},
        "logging": {"sinks": [listed]},
        "training": {"buffers": {"replay": listed}},
    }
    assert from_hydra({"environment": part})["environment"] == {"id": "mine:Part", "kwargs": {"size": 3}}
    assert from_hydra(from_hydra(data)) == from_hydra(data)


@pytest.mark.parametrize(
    ("target", "name"),
    [("a.b.C", "a.b:C"), ("a.b.c", "a.b:c"), ("a.Net.small", "a:Net.small"), ("a.b:C", "a.b:C"), ("mine", "mine")],
)
def test_paths_of_targets(target: str, name: str) -> None:
    assert from_hydra({"_target_": target}, "x")["_target_"] == name


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"_target_": 3}, "algorithm.actor._target_=3: must be text, package.module.Class"),
        ({"_target_": "a.B", "_args_": [1]}, "algorithm.actor: _args_ is not understood"),
        (
            {"_target_": "a.B", "inner": {"_target_": "c.D"}},
            "algorithm.actor: a _target_ inside the arguments of another",
        ),
    ],
)
def test_what_is_not_understood_is_one_line(setting: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(RunConfig, {"algorithm": {"name": "ppo", "actor": setting}})
    assert str(caught.value).startswith(message)


def test_a_target_where_no_part_belongs_is_an_unknown_key() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'checkpoint\._target_'"):
        load("CartPole-v1:ppo", ["checkpoint={_target_: os.system}"])


@pytest.mark.parametrize(
    "config",
    [
        {"algorithm": {"name": "ppo", "actor": {"_target_": "os.system"}}},
        {"algorithm": {"name": "ppo", "groups": {"x": [{"critic": {"_target_": "os.system"}}]}}},
        {"algorithm": {"_target_": "os.system"}},
        {"environment": {"_target_": "os.system"}},
        {"environment": {"id": "CartPole-v1", "wrappers": [{"_target_": "os.system"}]}},
        {"logging": {"sinks": ({"_target_": b"os.system"},)}},
        {"training": {"buffers": {"replay": {"_target_": ["os.system"]}}}},
        {"algorithm.actor._target_": "os.system"},
        {"anywhere": {"else": {"_target_": "os.system"}}},
    ],
)
def test_a_strangers_target_is_code(config: dict[str, Any]) -> None:
    assert "os:system" in code_named(config)
