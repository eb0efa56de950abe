"""Small runs of Dreamer and PlaNet with frequent checkpoints: latents in the replay, and plans."""

from __future__ import annotations

SMALL = [
    "environment.num_envs=2",
    "checkpoint.every_steps=128",
    "logging.every_steps=64",
    "evaluation.every_steps=1024",
    "evaluation.episodes=2",
    "algorithm.buffer_size=500",  # the ring wraps around
    "algorithm.warmup_steps=200",
    "algorithm.train_every=8",
    "algorithm.train_ratio=2",
    "algorithm.batch_size=4",
    "algorithm.batch_length=10",
    "algorithm.horizon=5",
    "algorithm.model.deter=16",
    "algorithm.model.hidden=8",
    "algorithm.model.units=8",
]
SEARCH = ["algorithm.planning.candidates=12", "algorithm.planning.elites=3", "algorithm.planning.iterations=2"]
RUNS = {"Dreamer v3": ["CartPole-v1:dreamer_v3", *SMALL], "PlaNet": ["Pendulum-v1:planet", *SMALL, *SEARCH]}
