"""A workflow's own `collect_step`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cadenza.config.load import load
from cadenza.config.registry import check_offers
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from harness.collecting import collected

SMALL = ["device=cpu", "environment.num_envs=2", "algorithm.n_steps=8", "environment.max_episode_steps=5"]


def collect(own: Callable[..., Any] | None, *overrides: str) -> tuple[Assembly, Any]:
    config = load("toy/identity:ppo", [*SMALL, *overrides])
    assembly = assemble(config, check(config), {})
    workflow: Any = assembly.workflow
    if own is not None:
        workflow.collect_step = lambda *arguments: own(workflow, *arguments)
    rollout = collected(assembly)
    assembly.close()
    return assembly, rollout


def rewarded(workflow: Any, step: Any, carry: Any, mode: Any, perform: Callable[..., Any]) -> Any:
    acted = workflow.act(step, carry, mode)
    after = perform(acted.action)
    return acted, replace(after, reward={"agent": after.reward["agent"] + 10})


def test_the_store_receives_what_it_returns_and_the_environment_goes_on_as_it_was() -> None:
    _, plain = collect(None)
    _, own = collect(rewarded)
    for name in ("obs", "action", "active"):
        np.testing.assert_array_equal(plain.groups["agent"][name], own.groups["agent"][name])
    np.testing.assert_array_equal(plain.groups["agent"]["reward"] + 10, own.groups["agent"]["reward"])
    np.testing.assert_array_equal(plain.truncated, own.truncated)


def test_random_actions_of_a_phase_are_those_performed_and_stored() -> None:
    def always_zero(workflow: Any, step: Any, carry: Any, mode: Any, perform: Callable[..., Any]) -> Any:
        acted = workflow.act(step, carry, mode)
        zero = {"agent": np.zeros_like(acted.action["agent"])}
        return acted._replace(action=zero), perform(zero)

    phases = "training.phases=[{name: random, actions: random, hooks: [collect, update], duration_cycles: 1}]"
    assert collect(always_zero, phases)[1].groups["agent"]["action"].any()
    assert not collect(always_zero)[1].groups["agent"]["action"].any()


@pytest.mark.parametrize("calls", [0, 2])
def test_perform_is_called_once(calls: int) -> None:
    def own(workflow: Any, step: Any, carry: Any, mode: Any, perform: Callable[..., Any]) -> Any:
        acted = workflow.act(step, carry, mode)
        for _ in range(calls):
            perform(acted.action)
        return acted, step

    with pytest.raises(
        ConfigError, match=rf"PPO.collect_step must call perform\(action\) once and called it {calls} times"
    ):
        collect(own)


def test_other_arguments_are_refused_when_the_algorithm_is_loaded() -> None:
    class Wrong:
        def collect_step(self, step: Any) -> Any: ...

    with pytest.raises(ConfigError, match=r"Wrong.collect_step.* must take \(self, step, carry, mode, perform\)"):
        check_offers("wrong", Wrong)
