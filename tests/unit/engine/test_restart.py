"""Environments that cannot be restored in mid-episode."""

from __future__ import annotations

from typing import Any

from cadenza.config.load import load
from harness.lab import Lab

SETTINGS = ["environment.vectorize=gymnasium", "environment.num_envs=2", "algorithm.n_steps=16", "algorithm.n_epochs=1"]


def test_stored_episodes_are_truncated_where_environments_restart(lab: Lab) -> None:
    run = lab.start(load("CartPole-v1:ppo", [*SETTINGS, "training.max_timesteps=64"]))
    assert run.collector is not None
    step, steps = run.collector.step, 0

    def counted(action: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 5:  # in the middle of a rollout
            run.signals.stop()
        return step(action)

    run.collector.step = counted
    assert run.run() == "stop"
    truncated = run.stores["rollout"].state_dict()["arrays"]["truncated"]
    assert (len(truncated), truncated.any()) == (5, False)
    again = lab.resume(run)
    assert again.stores["rollout"].state_dict()["arrays"]["truncated"].tolist() == [[False] * 2] * 4 + [[True] * 2]
    assert again.run() is None
