"""Where a run begins to measure, and where it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.load import load
from cadenza.engine.clock import Clock
from cadenza.engine.orchestrator import Orchestrator
from cadenza.errors import ConfigError
from cadenza.records.metrics import read
from cadenza.tools.verify import compare
from cadenza.types import Step
from harness.command import cadenza, last, train
from harness.lab import Lab

SMALL = [
    "environment.num_envs=2",
    "algorithm.n_steps=32",
    "algorithm.n_epochs=1",
    "training.max_timesteps=150",
    "evaluation.every_steps=0",
    "evaluation.episodes=2",
]
EXACT = "training.exact_budget=true"
KINDS = {
    "one sequence is not whole": [
        "toy/identity:ppo",
        "algorithm.torso.memory={type: lstm, size: 8, sequence_length: 8, burn_in: 4}",
    ],
    "minibatches do not divide it": ["toy/identity:ppo", "algorithm.n_steps=36", "algorithm.batch_size=24"],
    "groups in turn": ["toy/pair:happo"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_rollout_ends_at_an_exact_budget_and_resumes_there_bit_for_bit(lab: Lab, kind: str) -> None:
    spec, *settings = KINDS[kind]
    config = load(spec, [*SMALL, *settings, EXACT])
    whole = lab.start(config, "whole")
    assert whole.run() is None
    assert whole.clock.env_steps == 150
    run = lab.start(config, "killed")
    interrupt_within(run, 146)
    assert run.clock.env_steps == 146
    again = lab.resume(run)
    again.run()
    assert compare(whole.folder, again.folder) is None


@pytest.mark.parametrize(("budget", "updates"), [(40, 3), (64, 4), (70, 5)])
def test_a_cycle_with_several_rollouts_goes_no_further_than_an_exact_budget(
    lab: Lab, budget: int, updates: int
) -> None:
    phase = "training.phases=[{name: twice, hooks: [collect, update, collect, update]}]"
    run = lab.start(load("toy/identity:ppo", [*SMALL, EXACT, f"training.max_timesteps={budget}", phase]))
    run.run()
    assert (run.clock.env_steps, run.clock.updates) == (budget, updates)


def interrupt_within(run: Orchestrator, env_steps: int) -> None:
    """Interrupt a run in the middle of a rollout."""
    assert run.collector is not None
    step = run.collector.step

    count = 0

    def counted(action: dict[str, Any]) -> Step:
        nonlocal count
        count += 2
        if count == env_steps:
            run.signals.stop()
        return step(action)

    run.collector.step = counted
    run.run()


def test_without_it_a_run_ends_with_a_whole_rollout_and_says_so_first(lab: Lab, tmp_path: Path) -> None:
    run = lab.start(load("toy/identity:ppo", SMALL))
    run.run()
    assert run.clock.env_steps == 192
    line = "ends at step 192: the budget of 150, rounded up to a cycle of 64"
    arguments = ["toy/identity:ppo", *SMALL]
    train(tmp_path, *arguments).succeeded()
    assert any(line in text for text in last(tmp_path).log.read_text().splitlines()[:4])
    assert line in cadenza("plan", *arguments, "--seconds", "0.1").succeeded().out
    exact = json.loads(cadenza("plan", *arguments, EXACT, "--seconds", "0.1", "--json").succeeded().out)
    assert (exact["run"]["end"], exact["run"]["env_steps"]) == (None, 150)
    train(tmp_path, *arguments, EXACT).succeeded()
    assert "ends at" not in last(tmp_path).log.read_text()


def test_an_exact_budget_is_refused_where_whole_episodes_are_collected_or_nothing_limits_steps(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="exact_budget=true: phase train collects whole episodes"):
        lab.start(load("toy/identity:reinforce", [EXACT]))
    with pytest.raises(ConfigError, match=r"exact_budget=true: needs training\.max_timesteps"):
        load("toy/identity:ppo", [EXACT, "training.max_timesteps=null", "training.max_updates=10"])


def test_an_evaluation_at_the_start_is_the_first_row_and_is_not_repeated_by_a_resume(lab: Lab) -> None:
    config = load("toy/identity:ppo", [*SMALL, "evaluation.at_start=true"])
    whole = lab.start(config, "whole")
    whole.run()
    rows = read(whole.folder.metrics)
    assert (rows[0]["env_steps"], rows[0]["phase"]) == (0, "train")
    assert rows[0]["eval/return_mean"] is not None
    run = lab.start(config, "stopped")
    run.run(until_first_cycle)
    again = lab.resume(run)
    again.run()
    assert compare(whole.folder, again.folder) is None
    assert again.clock.evaluations == 2


def until_first_cycle(clock: Clock) -> bool:
    return clock.cycles == 0
