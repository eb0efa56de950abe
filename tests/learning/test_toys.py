"""Every algorithm must solve tiny tasks with known answers in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.load import load
from cadenza.orchestration.launch import train

PPO = ["algorithm.n_steps=32", "algorithm.batch_size=0.25", "algorithm.learning_rate=0.003", "evaluation.every_steps=0"]

# task: env_steps, and what a policy that has understood earns (beside it the best possible)
TASKS = {
    "toy/identity": (4_000, 15.5),  # 16
    "toy/identity_box": (20_000, -0.5),  # 0
    "toy/masked": (1_000, 16.0),  # 16
    "toy/dict": (6_000, 15.5),  # 16
    "toy/image": (10_000, 15.5),  # 16
    "toy/chain": (4_000, 3.0),  # 3.25 in the mean over starting cells
    "toy/pair": (60_000, 12.6),  # 14: 10 hits of one runner, 4 of the other before it dies, and a shooter that hits
}


@pytest.mark.parametrize("environment", TASKS)
def test_ppo_solves(environment: str, tmp_path: Path) -> None:
    steps, goal = TASKS[environment]
    config = load(f"{environment}:ppo", [*PPO, f"training.max_timesteps={steps}", "evaluation.episodes=64"])
    result = train(config, tmp_path, ["test"], quiet=True)
    assert result.summary()["eval/return_mean"] >= goal
