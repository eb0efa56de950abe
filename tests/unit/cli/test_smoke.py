from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cadenza.config import registry
from cadenza.config.load import load
from cadenza.config.registry import Family
from cadenza.engine.launch import check
from cadenza.errors import CadenzaError, MissingExtraError
from cadenza.tools.smoke import attempt, shrunk, try_experiment
from harness.command import cadenza


def test_an_experiment_is_trained_resumed_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cadenza("smoke", "--filter", "cartpole-v1/ppo_lstm", "--json").succeeded()
    (row,) = json.loads(outcome.out)["tried"]
    assert (row["name"], row["status"], row["message"]) == ("CartPole-v1/ppo_lstm", "ok", "")
    assert list(tmp_path.iterdir()) == []


def test_smoke_steps_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Family("absent cartpoles", "not here", "harness.absent_family", extra="absent")
    monkeypatch.setitem(registry.FAMILIES, absent.name, absent)
    result = json.loads(cadenza("smoke", "--envs", "--filter", "cartpole", "--json").succeeded().out)
    rows = {row["name"]: row for row in result["tried"]}
    assert rows["CartPole-v1"]["status"] == "ok"
    assert rows[absent.name]["status"] == "skipped"
    assert "pip install 'cadenza[absent]'" in rows[absent.name]["message"]
    assert (result["failed"], result["skipped"]) == (0, 1)


def test_a_failed_smoke_run_is_reported_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadenza.envs.toys.toy.Identity.step", lambda self, action: 1 / 0)
    outcome = cadenza("smoke", "--envs", "--filter", "toy/identity")
    assert outcome.code == 1
    assert "ZeroDivisionError" in outcome.out
    assert "1 ok, 1 failed" in outcome.out  # the box is another class


def test_a_filter_without_a_match_names_the_nearest() -> None:
    cadenza("smoke", "--filter", "cartpole-v1/pppo").refused(2, "CartPole-v1/ppo")


@pytest.mark.parametrize(
    ("problem", "status", "message"),
    [
        (None, "ok", ""),
        (MissingExtraError("pip install x"), "skipped", "pip install x"),
        (CadenzaError("a\nb"), "failed", "a b"),
        (ValueError("odd"), "failed", "ValueError: odd"),
    ],
)
def test_the_outcome_of_an_attempt_is_classified(problem: Exception | None, status: str, message: str) -> None:
    def work() -> None:
        if problem:
            raise problem

    tried = attempt("x", work)
    assert (tried.status, tried.message) == (status, message)


def test_cycles_are_made_short_as_far_as_the_algorithm_allows() -> None:
    config = load("Pendulum-v1:ppo", ["algorithm.n_steps=1024", "algorithm.batch_size=64", "environment.num_envs=8"])
    small = shrunk(config, 100)
    assert (small.environment.num_envs, small.algorithm.n_steps, small.algorithm.batch_size) == (2, 16, 16)
    assert small.environment.max_episode_steps == 25
    assert small.training.max_timesteps == 100
    uneven = shrunk(replace(config, algorithm=replace(config.algorithm, n_steps=20, batch_size=10)), 100)
    assert (uneven.algorithm.n_steps, uneven.algorithm.batch_size) == (20, 10)  # 16 and 10 do not go together
    check(uneven)


def test_a_shorter_time_limit_is_kept() -> None:
    assert shrunk(load("toy/pair:ppo"), 100).environment.max_episode_steps == 10


def test_settings_of_absent_components_do_not_fail_a_smoke_run() -> None:
    """Without dreams and plans `dream_steps` and `train_every` must not be changed."""
    small = shrunk(load("toy/glimpse:world_models"), 100).algorithm
    assert (small.rollout_steps, small.vision_updates, small.memory_updates) == (16, 2, 2)
    assert small.dream_steps == load("toy/glimpse:world_models").algorithm.dream_steps
    assert shrunk(load("Pendulum-v1:mpc"), 100).algorithm.rollout_steps == 16


def test_a_run_without_an_update_fails_the_smoke_run(tmp_path: Path) -> None:
    with pytest.raises(CadenzaError, match="nothing was learned from 16 env_steps"):
        try_experiment("CartPole-v1/dqn", 8, tmp_path)


def test_searches_and_controllers_of_a_smaller_run_are_small() -> None:
    """CMA-ES on controllers that see the whole memory, and plans of hundreds, took half of the time of `smoke`."""
    evolved = load("CarRacing-v3/world_models").algorithm.shrunk()
    assert (evolved.evolution.population, evolved.memory.batch_size, evolved.memory.hidden) == (8, 8, 64)
    planning = load("Pendulum-v1:tdmpc2").algorithm.shrunk().planning
    assert (planning.samples, planning.policy_samples, planning.elites, planning.iterations) == (16, 8, 16, 1)
    planning = load("Pendulum-v1:planet").algorithm.shrunk().planning
    assert (planning.candidates, planning.elites, planning.iterations) == (16, 10, 1)
