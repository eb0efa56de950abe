"""A small run of Diffusion Policy with environments and frequent checkpoints, most of them in the middle of a chunk."""

from __future__ import annotations

PHASES = (
    "training.phases=[{name: random, hooks: [{name: collect, steps: 200}], actions: random, duration_cycles: 1}, "
    "{name: clone, hooks: [{name: collect, steps: 8}, {name: update}]}]"
)
RUNS = {
    "Diffusion Policy": [
        "toy/fork:diffusion_policy",
        PHASES,
        "environment.num_envs=2",
        "checkpoint.every_steps=128",
        "logging.every_steps=64",
        "evaluation.every_steps=1024",
        "evaluation.episodes=2",
        "algorithm.buffer_size=700",  # the ring wraps around
        "algorithm.batch_size=16",
        "algorithm.horizon=8",
        "algorithm.executed=7",  # divides no number of steps between checkpoints
        "algorithm.sampling_steps=2",
        "algorithm.unet.widths=[8,16]",
    ]
}
