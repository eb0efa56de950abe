"""A run killed twenty times equals one that was left alone: weights, optimizer, metrics, episodes, everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.killing import assert_kills_leave_no_trace

SUBJECTS = {
    "discrete, native": ["CartPole-v1:ppo", "--max-timesteps", "60000"],
    "discrete, workers": ["CartPole-v1:ppo", "environment.vectorize=workers", "--max-timesteps", "60000"],
    "continuous, in process, normalised": [
        "Pendulum-v1:ppo",
        "environment.vectorize=in_process",
        "algorithm.normalize_obs=rolling",
        "algorithm.n_steps=256",
        "algorithm.n_epochs=4",
        "--max-timesteps",
        "60000",
    ],
    "team with a dying agent": [
        "toy/pair:ppo",
        "environment.vectorize=in_process",
        "algorithm.n_epochs=2",
        "--max-timesteps",
        "60000",
    ],
    "tables, masked, a transition waiting": [
        "Taxi-v4:qlearning",
        "algorithm.target=sarsa",
        "algorithm.double=true",
        "algorithm.epsilon=lin_0.5",
        "--max-timesteps",
        "150000",
    ],
}


MEMORY = "algorithm.torso.memory"
QUICK = ["environment.vectorize=in_process", "algorithm.n_steps=32", "algorithm.n_epochs=1", "--max-timesteps", "40000"]
# one for each thing that a resumed run could forget
FORGETFUL = {
    "recurrent, sequences with burn-in, a memory for policy and value each": [
        "CartPole-v1:ppo",
        "environment.wrappers=[HideVelocity]",
        f"{MEMORY}={{type: lstm, size: 16, sequence_length: 8, burn_in: 4}}",
        "algorithm.torso.shared=false",
        "algorithm.batch_size=128",
        *QUICK,
    ],
    "masked, transformer": ["toy/masked:ppo", f"{MEMORY}={{type: transformer, size: 16, context: 8}}", *QUICK],
    "image": ["toy/image:ppo", "algorithm.torso.cnn.features=32", *QUICK],
    "dict, observations and rewards normalised": [
        "toy/dict:ppo",
        "algorithm.normalize_obs=rolling",
        "algorithm.normalize_reward=true",
        *QUICK,
    ],
    "episodes under way": [
        "CartPole-v1:reinforce",
        "algorithm.policy_targets=advantages",
        "algorithm.normalize_obs=rolling",
        "--max-timesteps",
        "120000",
    ],
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_twenty_kills_leave_no_trace(subject: str, tmp_path: Path) -> None:
    assert_kills_leave_no_trace(SUBJECTS[subject], tmp_path)


@pytest.mark.parametrize("subject", FORGETFUL)
def test_ten_kills_leave_no_trace(subject: str, tmp_path: Path) -> None:
    assert_kills_leave_no_trace(FORGETFUL[subject], tmp_path, kills=10)
