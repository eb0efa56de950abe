"""cadenza from Python."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

import cadenza
from cadenza.envs.toy import DictIdentity
from cadenza.errors import ConfigError

SMALL = {"algorithm.n_steps": 16, "algorithm.n_epochs": 1, "evaluation.episodes": 2, "training.max_timesteps": 256}


def test_train_load_and_find(tmp_path: Path) -> None:
    run = cadenza.train("CartPole-v1:ppo", runs_dir=tmp_path, **SMALL, seed=3, tags=["a b", "it's"])
    assert run.result["status"] == "finished"
    assert run.result["env_steps"] == 256
    assert run.metrics[-1]["env_steps"] == 256
    policy = cadenza.load(run.id, runs_dir=tmp_path)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    action = policy(obs)
    assert action in (0, 1)
    assert policy(obs) == action
    assert {policy(obs, explore=True) for _ in range(50)} == {0, 1}
    assert [found.id for found in cadenza.runs(runs_dir=tmp_path, seed=3)] == [run.id]
    assert cadenza.runs(runs_dir=tmp_path, seed=4) == []


def test_values_of_any_kind_are_passed_on(tmp_path: Path) -> None:
    schedule = {"schedule": "linear", "start_value": 0.1, "end_value": 0.05}
    changes = {"algorithm.learning_rate": schedule, "environment.kwargs": {"n": 3}, "algorithm.target_kl": None}
    run = cadenza.train("toy/identity:ppo", runs_dir=tmp_path, **SMALL, **changes, name="x=y, {z}")
    config = run.folder.read_config()
    assert config.algorithm.learning_rate.end_value == 0.05
    assert config.environment.kwargs == {"n": 3}
    assert config.name == "x=y, {z}"


def test_a_policy_for_continuous_actions_and_dict_observations(tmp_path: Path) -> None:
    run = cadenza.train("Pendulum-v1:ppo", runs_dir=tmp_path, **SMALL, **{"algorithm.batch_size": 1})
    env = gymnasium.make("Pendulum-v1")
    assert cadenza.load(run.id, runs_dir=tmp_path)(env.reset(seed=0)[0]).shape == (1,)
    run = cadenza.train("toy/dict:ppo", runs_dir=tmp_path, **SMALL)
    assert cadenza.load(run.id, runs_dir=tmp_path)(DictIdentity().observation_space.sample()) in (0, 1)


def test_teams_have_no_single_policy(tmp_path: Path) -> None:
    run = cadenza.train("toy/pair:ppo", runs_dir=tmp_path, **SMALL)
    with pytest.raises(ConfigError, match="several groups"):
        cadenza.load(run.id, runs_dir=tmp_path)
