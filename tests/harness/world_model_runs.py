"""Small runs of World Models through all phases, with frequent checkpoints."""

from __future__ import annotations

SMALL = [
    "environment.num_envs=4",
    "training.max_timesteps=null",
    "checkpoint.every_steps=32",
    "checkpoint.every_updates=2",
    "logging.every_steps=16",
    "logging.every_updates=1",
    "evaluation.every_steps=64",
    "evaluation.warmup_steps=0",
    "evaluation.episodes=2",
    "algorithm.buffer_size=200",
    "algorithm.rollout_steps=260",  # the ring wraps around
    "algorithm.vision_updates=4",
    "algorithm.memory_updates=4",
    "algorithm.batch_length=5",
    "algorithm.trials=3",
    "algorithm.generations=2",
    "algorithm.vision.latent=3",
    "algorithm.vision.depth=2",
    "algorithm.vision.batch_size=4",
    "algorithm.memory.hidden=8",
    "algorithm.memory.mixtures=2",
    "algorithm.memory.batch_size=4",
    "algorithm.evolution.population=5",
    "runtime.threads=1",
]
DREAM = ["algorithm.evolution.inside=dream", "algorithm.dream_steps=8"]
RUNS = {
    "World Models": ["toy/glimpse:world_models", *SMALL],
    "World Models, dreaming": ["toy/glimpse:world_models", *SMALL, *DREAM],
}
