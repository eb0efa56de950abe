"""Environments that cannot be brought back to the middle of an episode."""

from __future__ import annotations

from typing import Any

from cadenza.config.load import load
from harness.lab import Lab

SETTINGS = ["environment.vectorize=gymnasium", "environment.num_envs=2", "algorithm.n_steps=16", "algorithm.n_epochs=1"]


def test_what_was_collected_ends_where_the_environments_begin_afresh(lab: Lab) -> None:
    run = lab.start(load("CartPole-v1:ppo", [*SETTINGS, "training.max_timesteps=64"]))
    assert run.collector is not None
    step, taken = run.collector.step, 0

    def counted(action: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == 5:  # in the middle of a rollout
            run.signals.stop()
        return step(action)

    run.collector.step = counted
    assert run.run() == "stop"
    held = run.stores["rollout"].state_dict()["arrays"]["truncated"]
    assert (len(held), held.any()) == (5, False)
    again = lab.resume(run)
    assert again.stores["rollout"].state_dict()["arrays"]["truncated"].tolist() == [[False] * 2] * 4 + [[True] * 2]
    assert again.run() is None
