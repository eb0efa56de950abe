"""What is measured, as data: an environment, an algorithm with its settings, and how long to train."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal

from cadenza.config.convert import build, to_dict
from cadenza.config.setting import setting
from cadenza.errors import ConfigError, NotFoundError, nearest


@dataclass(frozen=True)
class PPO:
    """Proximal Policy Optimization, as every contestant can do it: advantages standardised, values not clipped."""

    n_steps: int = setting(doc="steps collected in each environment before an update", unit="vec_steps")
    batch_size: int = setting(doc="minibatch", unit="env_steps")
    n_epochs: int = setting(10, "passes over each rollout")
    learning_rate: float = setting(3e-4, "Adam's step size")
    anneal: bool = setting(False, "learning rate and clip range fall in a line to zero over the run")
    gamma: float = setting(0.99, "discount")
    gae_lambda: float = setting(0.95, "bias-variance trade-off of the advantage estimate")
    clip_range: float = setting(0.2, "how far the probability ratio may move the objective")
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    value_coef: float = setting(0.5, "weight of the value loss")
    max_grad_norm: float = setting(0.5, "gradients are clipped to this norm")
    hidden_sizes: tuple[int, ...] = setting((64, 64), "units of the hidden layers of policy and value, each its own")
    activation: Literal["tanh", "relu"] = setting("tanh", "nonlinearity after each hidden layer")
    adam_eps: float = setting(1e-5, "keeps Adam's division from blowing up")

    def __post_init__(self) -> None:
        for key in ("n_steps", "batch_size", "n_epochs"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}={getattr(self, key)}: must be at least 1")

    def updates(self, timesteps: int) -> int:
        """Gradient steps of a run."""
        return timesteps // self.batch_size * self.n_epochs


@dataclass(frozen=True)
class Task:
    """The same work for everyone. Nobody evaluates, nobody normalises observations or rewards."""

    env: str = setting(doc="a Gymnasium id")
    num_envs: int = setting(doc="environments stepped together")
    timesteps: int = setting(doc="how long to train, rounded up to whole iterations", unit="env_steps")
    ppo: PPO = setting(doc="the algorithm and its settings")
    solved_at: float | None = setting(None, "mean return of the last 100 training episodes to reach; null: not asked")
    threads: int = setting(1, "threads of the numerical libraries")
    seed: int = setting(1, "of the first round; each round adds one")

    def __post_init__(self) -> None:
        for key in ("num_envs", "timesteps", "threads"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}={getattr(self, key)}: must be at least 1")
        if self.rollout % self.ppo.batch_size:
            rollout = f"{self.num_envs} x {self.ppo.n_steps}"
            raise ConfigError(f"ppo.batch_size={self.ppo.batch_size}: must divide the rollout of {rollout} steps")
        # part of an iteration is no work that all would do alike
        object.__setattr__(self, "timesteps", ceil(self.timesteps / self.rollout) * self.rollout)

    @property
    def algorithm(self) -> str:
        return "ppo"

    @property
    def rollout(self) -> int:
        """env_steps of one iteration."""
        return self.num_envs * self.ppo.n_steps

    def order(self) -> dict[str, Any]:
        """What a contestant's process is told: plain data, and the work it will be held to."""
        return {
            **to_dict(self),
            "algorithm": self.algorithm,
            "rollout": self.rollout,
            "updates": self.ppo.updates(self.timesteps),
        }


CARTPOLE = PPO(n_steps=128, batch_size=256)
CARTPOLE_ZOO = PPO(32, 256, n_epochs=20, learning_rate=1e-3, anneal=True, gamma=0.98, gae_lambda=0.8)  # rl-zoo3's
HALFCHEETAH = PPO(n_steps=2048, batch_size=64)
TASKS = {
    "ppo-cartpole": Task("CartPole-v1", 8, 100_000, CARTPOLE),
    "ppo-cartpole-solve": Task("CartPole-v1", 8, 100_000, CARTPOLE_ZOO, solved_at=475.0),
    "ppo-halfcheetah": Task("HalfCheetah-v5", 1, 30_000, HALFCHEETAH),
    "ppo-halfcheetah-8": Task("HalfCheetah-v5", 8, 40_000, replace(HALFCHEETAH, n_steps=256)),
}


def find(name: str) -> Task:
    """A task by its name, or one's own from a JSON file with the fields of `Task`."""
    if name.endswith(".json"):
        return read(Path(name))
    if name not in TASKS:
        raise NotFoundError(f"unknown task '{name}'{nearest(name, TASKS)} (known: {', '.join(TASKS)})")
    return TASKS[name]


def read(path: Path) -> Task:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFoundError(f"no file '{path}'") from None
    except ValueError as problem:
        raise ConfigError(f"{path} is no JSON: {problem}") from None
    return build(Task, data)
