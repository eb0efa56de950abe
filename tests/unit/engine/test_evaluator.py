"""Evaluations end, and say so: time limits, timeouts, lines of progress, drawn actions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cadenza.config import schema
from cadenza.config.load import load
from cadenza.config.schema import EnvironmentConfig, EvaluationConfig
from cadenza.engine import evaluator
from cadenza.engine.orchestrator import Orchestrator
from cadenza.envs import catalog
from cadenza.errors import ConfigError
from cadenza.types import PhaseInfo
from harness.command import cadenza, train
from harness.lab import Lab

GYM, FRAMES = "harness.endless:Endless", "harness.endless:EndlessFrames"
QUICK = [
    "training.max_timesteps=64",
    "algorithm.n_steps=16",
    "environment.num_envs=2",
    "evaluation.episodes=5",
    "evaluation.timeout_seconds=20",  # where the limit is lost
]
PHASE = PhaseInfo("measure", "eval_only", 1, 1)


def run_of(lab: Lab, env: str, *overrides: str) -> Orchestrator:
    return lab.start(load(f"{env}:ppo", [*QUICK, "evaluation.num_envs=2", *overrides]))


@pytest.mark.parametrize("env", [GYM, FRAMES])
@pytest.mark.parametrize("vectorize", ["in_process", "workers"])
def test_an_endless_environment_is_evaluated_up_to_the_default_limit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, env: str, vectorize: str
) -> None:
    monkeypatch.setattr(schema, "LONGEST_EPISODE", 7)
    run = run_of(lab, env, f"environment.vectorize={vectorize}")
    evaluation = run.evaluator(0, PHASE)
    assert evaluation.returns == [7.0] * 5
    assert evaluation.problems() == ["5 of 5 episodes reached evaluation.max_episode_steps=7: counted as truncated"]


@pytest.mark.parametrize(
    ("overrides", "length", "cut"),
    [
        (["environment.max_episode_steps=4"], 4, 0),  # the environment's own limit, however short
        (["environment.max_episode_steps=4", "evaluation.max_episode_steps=9"], 4, 0),
        (["environment.max_episode_steps=9", "evaluation.max_episode_steps=4"], 4, 5),
        (["evaluation.max_episode_steps=4"], 4, 5),
    ],
)
def test_the_shorter_limit_holds_and_only_the_evaluations_own_is_reported(
    lab: Lab, overrides: list[str], length: int, cut: int
) -> None:
    evaluation = run_of(lab, GYM, *overrides).evaluator(0, PHASE)
    assert [episode.length for episode in evaluation.episodes] == [length] * 5
    assert evaluation.cut == cut
    assert len(evaluation.problems()) == (cut > 0)


def test_truncation_below_a_wrapper_that_repeats_actions_is_reported(lab: Lab) -> None:
    repeated = "environment.wrappers=[{id: RepeatAction, num_repeats: 4}]"
    evaluation = run_of(lab, GYM, repeated, "evaluation.max_episode_steps=8").evaluator(0, PHASE)
    assert [episode.length for episode in evaluation.episodes] == [2] * 5  # the limit counts the environment's steps
    assert evaluation.problems() == ["5 of 5 episodes reached evaluation.max_episode_steps=8: counted as truncated"]


@pytest.mark.parametrize(
    ("setting", "own", "limit"),
    [("auto", None, schema.LONGEST_EPISODE), ("auto", 9, None), (4, None, 4), (4, 9, 4), (9, 9, None), (10, 9, None)],
)
def test_limit_of_evaluated_episodes(setting: Any, own: int | None, limit: int | None) -> None:
    assert EvaluationConfig(max_episode_steps=setting).episode_limit(own) == limit


def test_native_environments_obey_the_limit_too(lab: Lab) -> None:
    config = load("CartPole-v1:ppo", [*QUICK, "evaluation.max_episode_steps=3"])
    evaluation = lab.start(config).evaluator(0, PHASE)
    assert [episode.length for episode in evaluation.episodes] == [3] * 5


def test_long_evaluations_report_their_progress_ever_more_seldom(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(lab, GYM, "evaluation.max_episode_steps=20", "evaluation.timeout_seconds=null")
    lines: list[str] = []
    run.evaluator.report = lines.append
    seconds = itertools.count(0.0, 1.0)  # each step takes a second
    monkeypatch.setattr(evaluator, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    run.evaluator(0, PHASE)
    assert lines == [
        "evaluating: 0 of 5 episodes, 20 steps",
        "evaluating: 2 of 5 episodes, 40 steps",
        "evaluating: 4 of 5 episodes, 80 steps",
    ]


def test_explore_draws_actions(lab: Lab) -> None:
    def actions(*overrides: str) -> set[int]:
        run = run_of(lab, GYM, "evaluation.max_episode_steps=50", *overrides)
        return set(np.concatenate([e.actions["agent"].ravel() for e in run.evaluator(0, PHASE).episodes]).tolist())

    assert len(actions()) == 1
    lab.root = lab.root / "drawn"
    assert actions("evaluation.explore=true") == {0, 1}


def test_environments_of_cadenzas_kind_take_a_time_limit_that_is_shorter_than_their_own() -> None:
    def limited(own: int | None, limit: int) -> int:
        env = catalog.make(EnvironmentConfig(id=FRAMES, max_episode_steps=limit, kwargs={"limit": own}))
        assert env.spec.max_episode_steps == limit
        for _ in range(2):  # counted anew in each episode
            env.reset(0)
            action = {"agent": np.zeros(1, np.int64)}
            steps = next(step for step in range(1, 100) if env.step(action).truncated)
        return steps

    assert limited(None, 5) == 5
    assert limited(8, 5) == 5
    assert limited(5, 5) == 5
    with pytest.raises(ConfigError, match=r"environment\.max_episode_steps=9: .* ends its episodes itself, after 5"):
        limited(5, 9)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.max_episode_steps"):
        load("CartPole-v1:ppo", ["evaluation.max_episode_steps=0"])


def test_train_plan_and_evaluate_say_what_never_ends(tmp_path: Path) -> None:
    settings = [f"{GYM}:ppo", *QUICK, "evaluation.max_episode_steps=6"]
    warnings = train(tmp_path, *settings).succeeded().warnings
    assert any(f"{GYM} has no time limit" in line and "environment.max_episode_steps=N" in line for line in warnings)
    assert any("5 of 5 episodes reached evaluation.max_episode_steps=6" in line for line in warnings)
    plan = json.loads(cadenza("plan", *settings, "--json").succeeded().out.splitlines()[-1])
    assert [line for line in plan["warnings"] if "has no time limit" in line]
    again = cadenza("evaluate", "@last", "--runs-dir", tmp_path, "--episodes", 3).succeeded()
    assert any("3 of 3 episodes reached evaluation.max_episode_steps=6" in line for line in again.warnings)


def test_evaluate_takes_a_timeout_and_drawn_actions(tmp_path: Path) -> None:
    train(tmp_path, f"{GYM}:ppo", *QUICK, "evaluation.max_episode_steps=6").succeeded()
    command = ["evaluate", "@last", "--runs-dir", tmp_path, "--json"]
    result = json.loads(cadenza(*command, "--timeout", 0.001, "--episodes", 1000).succeeded().out)
    assert len(result["returns"]) < 1000
    assert result["problems"][-1] == f"timed out with {len(result['returns'])} of 1000 episodes finished"
    assert cadenza(*command[:-1], "--timeout", 0.001, "--episodes", 1000).succeeded().warnings
    assert len(json.loads(cadenza(*command, "--explore", "--episodes", 2).succeeded().out)["returns"]) == 2
