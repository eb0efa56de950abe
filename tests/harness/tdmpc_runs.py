"""Small runs of TD-MPC with frequent checkpoints in the middle of episodes, so that the last plan must be restored."""

from __future__ import annotations

SMALL = [
    "environment.num_envs=2",
    "checkpoint.every_steps=128",
    "logging.every_steps=64",
    "evaluation.every_steps=1024",
    "evaluation.episodes=2",
    "algorithm.buffer_size=500",  # the ring wraps around
    "algorithm.warmup_steps=200",
    "algorithm.pretrain_updates=20",
    "algorithm.train_every=8",
    "algorithm.update_ratio=0.25",
    "algorithm.batch_size=8",
    *(f"algorithm.planning.{key}" for key in ("samples=12", "policy_samples=2", "elites=4", "iterations=2")),
    *(f"algorithm.model.{key}" for key in ("latent=16", "units=8", "encoder_units=8", "ends=true")),
    "runtime.threads=1",
]
# the horizon of plans grows during the run
LONGER = "algorithm.planning.horizon={schedule: linear, start_value: 1, end_value: 5, end: 2000}"
RUNS = {
    "TD-MPC": ["Pendulum-v1:tdmpc", *SMALL, LONGER],
    "TD-MPC2": ["Pendulum-v1:tdmpc2", *SMALL],
}
