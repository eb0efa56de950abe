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
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_twenty_kills_leave_no_trace(subject: str, tmp_path: Path) -> None:
    assert_kills_leave_no_trace(SUBJECTS[subject], tmp_path)
