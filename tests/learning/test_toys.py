"""Every algorithm must solve tiny tasks with known answers in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.load import load
from cadenza.lab.session import train

PPO = ["algorithm.n_steps=32", "algorithm.batch_size=0.25", "algorithm.learning_rate=0.003"]
FEW_FEATURES = ["algorithm.torso.cnn.features=64", "runtime.threads=1"]  # two threads mostly wait for each other
MEMORY = "algorithm.torso.memory"
LSTM = [f"{MEMORY}.type=lstm", f"{MEMORY}.size=16"]
TRANSFORMER = [f"{MEMORY}.type=transformer", f"{MEMORY}.size=16", "algorithm.learning_rate=0.001"]
REINFORCE = ["algorithm.learning_rate=0.01"]
DQN = ["algorithm.warmup_steps=200", "algorithm.update_ratio=0.5", "algorithm.target_every=50"]
RAINBOW = [*DQN, "algorithm.learning_rate=0.001", "algorithm.buffer_size=10000"]

# (task, algorithm, settings): env_steps, and what a policy that has understood earns (beside it the best possible)
TASKS = {
    ("toy/identity", "ppo", *PPO): (4_000, 15.5),  # 16
    ("toy/identity_box", "ppo", *PPO): (8_000, -0.5),  # 0
    ("toy/identity_box", "ppo", *PPO, "algorithm.head.squash=true", "algorithm.head.std=state"): (6_000, -0.5),
    ("toy/masked", "ppo", *PPO): (1_000, 16.0),  # 16
    ("toy/dict", "ppo", *PPO): (6_000, 15.5),  # 16
    ("toy/image", "ppo", *PPO, *FEW_FEATURES): (4_000, 15.5),  # 16
    ("toy/dials", "ppo", *PPO): (6_000, 15.5),  # 16
    ("toy/switches", "ppo", *PPO): (10_000, 15.5),  # 16
    ("toy/chain", "ppo", *PPO): (4_000, 3.0),  # 3.25 in the mean over starting cells
    ("toy/recall", "ppo", *PPO, *LSTM, f"{MEMORY}.sequence_length=8"): (4_000, 0.95),  # 1; without a memory 0.5
    ("toy/recall", "ppo", *PPO, *TRANSFORMER): (4_000, 0.95),
    # 14: 10 hits of one runner, 4 of the other before it dies, and a shooter that hits
    ("toy/pair", "ppo", *PPO, "algorithm.learning_rate=lin_0.003"): (60_000, 12.6),
    ("toy/identity", "a2c"): (4_000, 15.5),
    ("toy/identity", "reinforce", *REINFORCE): (10_000, 15.5),
    ("toy/identity_box", "reinforce", *REINFORCE, "algorithm.policy_targets=advantages"): (24_000, -0.7),
    ("toy/recall", "reinforce", *LSTM, "algorithm.learning_rate=0.003"): (9_000, 0.95),
    ("toy/identity", "dqn", *DQN): (2_000, 15.5),
    ("toy/masked", "dqn", *DQN): (1_000, 16.0),
    ("toy/image", "dqn", *DQN, *FEW_FEATURES): (2_000, 15.5),
    ("toy/chain", "dqn", *DQN, "algorithm.gamma=0.9"): (6_000, 3.0),
    ("toy/identity", "rainbow", *RAINBOW): (3_000, 15.5),
    ("toy/identity", "dqn", *DQN, "algorithm.distribution=quantile", "algorithm.atoms=8"): (3_000, 15.5),
}


@pytest.mark.parametrize("task", TASKS, ids=" ".join)
def test_toy_environment_is_solved(task: tuple[str, ...], tmp_path: Path) -> None:
    steps, goal = TASKS[task]
    environment, algorithm, *settings = task
    budget = [f"training.max_timesteps={steps}", "evaluation.episodes=64", "evaluation.every_steps=0"]
    result = train(load(f"{environment}:{algorithm}", [*settings, *budget]), tmp_path, ["test"], quiet=True)
    assert result.summary()["eval/return_mean"] >= goal
