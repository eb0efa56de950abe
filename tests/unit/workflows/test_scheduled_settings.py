"""Every number that an update uses may be a schedule, and has its value at the update."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch

from cadenza.config.load import load
from cadenza.config.schedules import Schedule, TimedSettings
from cadenza.engine.build import assemble
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.records.metrics import read
from cadenza.types import Mode, PhaseInfo
from harness.collecting import filled, warming
from harness.lab import Lab
from harness.traced_runs import DQN, DREAMING, DREAMS, LATENTS, PLANNING, PPO, SAC, SEARCH

END = PhaseInfo("train", "online", now=1000, horizon=1000)
QUIET = ["device=cpu", "evaluation.every_steps=0", "evaluation.at_end=false"]
RUNS = {
    "ppo, numpy": ("toy/identity_box:ppo", [*PPO, "runtime.kernels=numpy", "algorithm.normalize_reward=true"]),
    "ppo, torch": ("toy/identity:ppo", [*PPO, "runtime.kernels=torch", "algorithm.torso.hidden_sizes=[8]"]),
    "mappo": ("toy/pair:mappo", PPO),
    "a2c": ("toy/identity:a2c", []),
    "reinforce": ("CartPole-v1:reinforce", ["algorithm.policy_targets=advantages"]),
    "sac, numpy": ("toy/identity_box:sac", [*SAC, "runtime.kernels=numpy"]),
    "sac, torch": ("toy/identity:sac", [*SAC, "runtime.kernels=torch"]),
    "sac, fixed temperature": ("toy/identity_box:sac", [*SAC, "algorithm.temperature=0.2"]),
    "dqn, numpy": ("toy/identity:dqn", [*DQN, "runtime.kernels=numpy", "algorithm.target_every=1"]),
    "rainbow": ("toy/identity:rainbow", [*DQN, "algorithm.target_every=1"]),
    "qlearning": ("toy/identity:qlearning", []),
    "qlearning, ucb": ("toy/identity:qlearning", ["algorithm.exploration=ucb"]),
    "dreamer_v1": ("toy/identity_box:dreamer_v1", DREAMS),
    "dreamer_v2": ("toy/identity:dreamer_v2", DREAMS),
    "dreamer_v3": ("toy/identity:dreamer_v3", DREAMS),
    "planet": ("toy/identity_box:planet", [*DREAMS[:8], *DREAMS[9:], *SEARCH]),
    "tdmpc": ("toy/identity_box:tdmpc", [*LATENTS, "algorithm.model.critics=2"]),
    "tdmpc2": ("toy/identity_box:tdmpc2", LATENTS),
    "world_models": ("toy/identity_box:world_models", PLANNING),
}
USUAL = {"gamma": 0.9, "temperature": 0.3, "target_entropy": -2.0, "target_kl": 5.0}  # where there is no number


def assembled(spec: str, *settings: str) -> Any:
    config = load(spec, [*QUIET, *settings])
    return assemble(config, check(config), {})


def names_in(settings: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield every setting that may be a schedule, with a number for it."""
    for name in getattr(settings, "scheduled", "").split():
        value = getattr(settings, name)
        value = value.start_value if isinstance(value, Schedule) else value
        yield f"{prefix}{name}", value if type(value) is float and value else USUAL.get(name, 0.3)
    for field in fields(settings):
        if is_dataclass(block := getattr(settings, field.name)) and not isinstance(block, Schedule):
            yield from names_in(block, f"{prefix}{field.name}.")


def scheduled_here(spec: str, settings: list[str]) -> dict[str, float]:
    """The numbers that may be schedules and have an effect in this run."""

    def is_accepted(key: str, value: float) -> bool:
        try:
            load(spec, [*settings, f"algorithm.{key}={value}"])
        except ConfigError:
            return False
        return True

    config = load(spec, settings).algorithm
    free = {key: value for key, value in names_in(config) if key not in ("planning.horizon",)}
    if getattr(config, "temperature", None) == "auto":
        free.pop("temperature", None)
    return {key: value for key, value in free.items() if is_accepted(key, 0.9 * value)}


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [x for part in parts for x in tensors(part)]


@pytest.mark.parametrize("name", RUNS)
def test_an_update_uses_the_present_value_of_every_schedule(name: str) -> None:
    spec, settings = RUNS[name]
    last = {key: 0.9 * value for key, value in scheduled_here(spec, settings).items()}
    assert len(last) >= 4 or name.startswith(("qlearning", "world"))
    schedules = {key: {"start_value": value / 0.9, "end_value": value, "start": 0.6} for key, value in last.items()}
    with warming([*QUIET, *settings], END) as warm:

        def trained(values: dict[str, Any]) -> tuple[list[torch.Tensor], set[str]]:
            pairs = [f"algorithm.{key}={json.dumps(value).replace(chr(34), '')}" for key, value in values.items()]
            workflow, store = warm(spec, *pairs)
            hook = "update_memory" if name == "world_models" else "update"
            before = [x.clone() for x in tensors(workflow.state_dict())]
            metrics = getattr(workflow, hook)(store, END).metrics
            after = [x.clone() for x in tensors(workflow.state_dict())]
            assert any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
            return after, set(metrics)

        (plain, metrics), (timed, again) = trained(last), trained(schedules)
    assert metrics == again
    for x, y in zip(plain, timed, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-4, atol=2e-6)  # numbers in a CUDA graph are single precision


@pytest.mark.parametrize("kernels", ["numpy", "torch"])
def test_a_schedule_of_the_value_loss_changes_what_ppo_learns(kernels: str) -> None:
    """Both kernels take coefficients at each update, and not those of the first."""

    def learned(now: int, setting: str) -> list[torch.Tensor]:
        config = load("toy/identity:ppo", [*QUIET, *PPO, f"runtime.kernels={kernels}", setting])
        assembly = assemble(config, check(config), {})
        phase = PhaseInfo("train", "online", now, 1000)
        assembly.workflow.update(filled(assembly, phase), phase)  # type: ignore[attr-defined]
        assembly.close()
        return [x.clone() for x in tensors(assembly.workflow.nets["agent"].state_dict())]  # type: ignore[attr-defined]

    def is_same(x: list[torch.Tensor], y: list[torch.Tensor]) -> bool:
        return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(x, y, strict=True))

    schedule = "algorithm.value_coef={start_value: 0.5, end_value: 0.0}"
    assert is_same(learned(0, schedule), learned(0, "algorithm.value_coef=0.5"))
    assert is_same(learned(1000, schedule), learned(0, "algorithm.value_coef=0.0"))
    assert not is_same(learned(0, schedule), learned(1000, schedule))


def test_settings_without_schedules_are_passed_as_they_are() -> None:
    settings = load("toy/identity:a2c", []).algorithm
    assert TimedSettings(settings).at(END) is settings


def test_a_schedule_inside_a_block_is_filled_in_a_copy() -> None:
    settings = load(
        "toy/identity_box:tdmpc2", ["algorithm.planning.min_std=lin_1.0", "algorithm.rho=lin_0.5"]
    ).algorithm
    timed = TimedSettings(settings)
    now = timed.at(PhaseInfo("train", "online", now=250, horizon=1000))
    assert (now.planning.min_std, now.rho) == (0.75, 0.375)
    assert timed.values(1000, 1000) == {"rho": 0.0, "planning.min_std": 0.0}
    assert isinstance(settings.rho, Schedule)
    assert isinstance(settings.planning.min_std, Schedule)


def test_every_scheduled_value_is_in_the_rows(tmp_path: Any) -> None:
    lab = Lab(tmp_path)
    schedules = {"gamma": 0.8, "value_coef": 1.0, "clip_range": 0.4}
    changes = [f"algorithm.{key}={{start_value: {value}, end_value: 0.2}}" for key, value in schedules.items()]
    length = ["training.max_timesteps=512", "logging.every_steps=128", "environment.num_envs=2"]
    run = lab.start(load("toy/identity:ppo", [*QUIET, *PPO, *length, *changes]))
    run.run()
    lab.close()
    rows = read(run.folder.metrics)
    assert len(rows) == 4
    for row in rows:
        share = row["env_steps"] / 512
        found = {key: row[f"schedule/{key}"] for key in schedules}
        assert found == pytest.approx({key: value + (0.2 - value) * share for key, value in schedules.items()})


def test_a_group_reports_the_schedules_under_the_name_of_its_type() -> None:
    groups = "algorithm.groups={runner: {gamma: {start_value: 0.9, end_value: 0.5}}}"
    with warming(QUIET, END) as warm:
        workflow, store = warm("toy/pair:happo", *PPO, groups)
        metrics = workflow.update(store, END).metrics
    reported = {name: float(value) for name, value in metrics.items() if name.endswith("/gamma")}
    assert reported == {"train/runner_0/gamma": 0.5, "train/runner_1/gamma": 0.5}


def test_a_policy_from_weights_alone_plans_at_the_end_of_a_rule_of_yours() -> None:
    with closing(assembled("toy/identity_box:tdmpc2", *LATENTS, "algorithm.gamma=harness.own_parts:by_halves")) as made:
        workflow, env = made.workflow, made.env
        workflow.load_weights(workflow.state_dict())
        mode = Mode(explore=False, phase=END, streams=made.streams)
        workflow.act(env.current, workflow.initial_carry(env.num_envs), mode)


def test_a_number_that_shapes_the_networks_is_no_schedule() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.dropout='lin_0.1': must be a number"):
        load("Pendulum-v1:sac", ["algorithm.dropout=lin_0.1"])
    with pytest.raises(ConfigError, match=r"algorithm.gamma.start_value=2: must be in \[0, 1\]"):
        load("Pendulum-v1:sac", ["algorithm.gamma=lin_2"])


@pytest.mark.parametrize(
    ("spec", "key", "others"),
    [
        ("toy/identity:qlearning", "algorithm.temperature", ["algorithm.exploration=gradient", "algorithm.gamma=0"]),
        ("toy/glimpse:world_models", "algorithm.evolution.temperature", DREAMING),
    ],
)
def test_a_temperature_by_which_is_divided_does_not_reach_zero(spec: str, key: str, others: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{key}: a schedule of it must not reach 0, as it is divided by"):
        load(spec, [*others, f"{key}=lin_1.0"])
    load(spec, [*others, f"{key}={{start_value: 1.0, end_value: 0.01}}"])
