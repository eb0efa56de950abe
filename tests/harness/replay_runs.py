"""Small runs with replay, with every kind of store and frequent checkpoints."""

from __future__ import annotations

OFTEN = [
    "checkpoint.every_steps=128",
    "logging.every_steps=64",
    "evaluation.every_steps=1024",
    "evaluation.episodes=2",
    "algorithm.buffer_size=700",  # the ring wraps around
    "algorithm.batch_size=16",
]
DQN = [
    "CartPole-v1:dqn",
    "environment.num_envs=2",
    "algorithm.warmup_steps=200",
    "algorithm.train_every=8",
    "algorithm.update_ratio=0.25",
    "algorithm.n_step=3",
    "algorithm.hidden.hidden_sizes=[16,16]",
    "algorithm.priority_alpha=0.6",
    *OFTEN,
]
SAC = [
    "Pendulum-v1:sac",
    "environment.num_envs=2",
    "algorithm.warmup_steps=200",
    "algorithm.train_every=4",
    "algorithm.update_ratio=0.25",
    "algorithm.actor.hidden_sizes=[16,16]",
    "algorithm.critic.hidden_sizes=[16,16]",
    *OFTEN,
]
RUNS = {
    "DQN, priorities, in memory": DQN,
    "DQN, priorities, on disk": [*DQN, "algorithm.buffer_on_disk=true"],
    "SAC": SAC,
}
