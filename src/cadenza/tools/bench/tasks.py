"""Define the tasks of a bench: an environment, an algorithm with its settings, and how long to train."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from cadenza.base.parsing import yaml_data
from cadenza.config.convert import build, to_dict
from cadenza.config.setting import setting, with_default
from cadenza.errors import ConfigError, NotFoundError, nearest

SHIPPED = Path(__file__).parents[2] / "conf" / "bench.yaml"
ALGORITHMS = ("ppo", "dqn", "sac", "mappo", "happo", "dreamer_v3")


class Rhythm(NamedTuple):
    """The schedule of a run: env_steps with random actions, then iterations of env_steps and gradient steps."""

    warmup: int
    iteration: int
    updates: int


@dataclass(frozen=True)
class PPOSettings:
    """Proximal Policy Optimization as every contestant has it: advantages standardised, values not clipped."""

    n_steps: int = setting(doc="steps collected in each environment before an update", unit="vec_steps", least=1)
    batch_size: int = setting(doc="minibatch", unit="env_steps", least=1)
    n_epochs: int = setting(10, "passes over each rollout", least=1)
    learning_rate: float = setting(3e-4, "Adam's step size")
    anneal: bool = setting(False, "learning rate and clip range decay linearly to zero over the run")
    gamma: float = setting(0.99, "discount")
    gae_lambda: float = setting(0.95, "bias-variance trade-off of the advantage estimate")
    clip_range: float = setting(0.2, "how far the probability ratio may move the objective")
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    value_coef: float = setting(0.5, "weight of the value loss")
    max_grad_norm: float = setting(0.5, "gradients are clipped to this norm")
    hidden_sizes: tuple[int, ...] = setting((64, 64), "units of the hidden layers of policy and value, separately")
    activation: Literal["tanh", "relu"] = setting("tanh", "nonlinearity after each hidden layer")
    adam_eps: float = setting(1e-5, "Adam's epsilon")

    def rhythm(self, num_envs: int) -> Rhythm:
        """Return the schedule for so many environments; refuse a rollout that minibatches do not divide."""
        rollout = num_envs * self.n_steps
        if rollout % self.batch_size:
            whole = f"the rollout of {num_envs} x {self.n_steps} steps"
            raise ConfigError(f"ppo.batch_size={self.batch_size}: must divide {whole}")
        return Rhythm(0, rollout, rollout // self.batch_size * self.n_epochs)

    def work(self, num_envs: int) -> str:
        """Return the work of an iteration in words."""
        return f"{num_envs} x {self.n_steps} steps, minibatches of {self.batch_size} x {self.n_epochs} epochs"


@dataclass(frozen=True)
class TeamSettings(PPOSettings):
    """PPO of a team with critics that see the state: simultaneous with shared parameters, or groups in turn."""

    groups: int = setting(1, "groups with networks of their own, each with as many gradient steps")

    def rhythm(self, num_envs: int) -> Rhythm:
        warmup, iteration, updates = super().rhythm(num_envs)
        return Rhythm(warmup, iteration, updates * self.groups)


@dataclass(frozen=True)
class OffPolicyTask:
    """The settings that algorithms with a replay share."""

    warmup_steps: int = setting(1000, "random actions before learning starts", "env_steps")
    train_every: int = setting(1, "steps collected between updates", "env_steps", least=1)
    gradient_steps: int = setting(1, "gradient steps of each update, of every network", "updates", least=1)
    batch_size: int = setting(256, "transitions in a gradient step", least=1)
    buffer_size: int = setting(1_000_000, "transitions in the replay", least=1)
    learning_rate: float = setting(3e-4, "Adam's step size, for every network")
    gamma: float = setting(0.99, "discount")

    prefix: ClassVar[str]  # of the keys in messages

    def rhythm(self, num_envs: int) -> Rhythm:
        """Return the schedule for so many environments; refuse intervals that libraries would round differently."""
        every, prefix = self.train_every, self.prefix
        require_multiple(f"{prefix}.train_every", every, "num_envs", num_envs)
        require_multiple(f"{prefix}.warmup_steps", self.warmup_steps, f"{prefix}.train_every", every)
        return Rhythm(self.warmup_steps, every, self.gradient_steps)

    def work(self, num_envs: int) -> str:
        """Return the work of an iteration in words."""
        environments, steps = counted(num_envs, "environment"), counted(self.train_every, "step")
        updates = counted(self.gradient_steps, "gradient step")
        return f"{environments}, {steps} and {updates} of {self.batch} in turn"

    @property
    def batch(self) -> str:
        """The size of a batch in words."""
        return str(self.batch_size)


@dataclass(frozen=True)
class DQNSettings(OffPolicyTask):
    """Deep Q-learning as every contestant has it: Huber loss, a target network that is a copy, Adam."""

    train_every: int = with_default(OffPolicyTask, "train_every", 4)
    batch_size: int = with_default(OffPolicyTask, "batch_size", 64)
    buffer_size: int = with_default(OffPolicyTask, "buffer_size", 100_000)
    learning_rate: float = with_default(OffPolicyTask, "learning_rate", 5e-4)
    target_every: int = setting(1000, "steps between copies to the target network", "env_steps", least=1)
    epsilon_end: float = setting(0.05, "final probability of a random action; it begins at 1")
    epsilon_share: float = setting(0.1, "share of the run over which that probability decays linearly")
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm")
    hidden_sizes: tuple[int, ...] = setting((64, 64), "units of the hidden layers")
    activation: Literal["tanh", "relu"] = setting("relu", "nonlinearity after each hidden layer")

    prefix = "dqn"

    def rhythm(self, num_envs: int) -> Rhythm:
        require_multiple("dqn.target_every", self.target_every, "dqn.train_every", self.train_every)
        return super().rhythm(num_envs)


@dataclass(frozen=True)
class SACSettings(OffPolicyTask):
    """Soft Actor-Critic as every contestant has it: two critics, a temperature learned from 1 on, Adam."""

    tau: float = setting(0.005, "how far the target critics move after each gradient step")
    hidden_sizes: tuple[int, ...] = setting((256, 256), "units of the hidden layers of the policy and of each critic")
    activation: Literal["tanh", "relu"] = setting("relu", "nonlinearity after each hidden layer")

    prefix = "sac"


@dataclass(frozen=True)
class DreamerV3Settings(OffPolicyTask):
    """DreamerV3 on vectors as every contestant has it: a GRU with layer norm, no latent states in the replay."""

    warmup_steps: int = with_default(OffPolicyTask, "warmup_steps", 128)
    batch_size: int = setting(16, "sequences in a gradient step", least=1)
    batch_length: int = setting(64, "steps of each sequence", "vec_steps")
    buffer_size: int = setting(10_000, "steps in the replay", least=1)
    horizon: int = setting(15, "steps imagined from each state", "steps", least=1)
    learning_rate: float = with_default(OffPolicyTask, "learning_rate", 1e-4)
    gamma: float = with_default(OffPolicyTask, "gamma", 0.997)
    deter: int = setting(128, "units of the deterministic state")
    stoch: int = setting(8, "variables of the stochastic state")
    classes: int = setting(8, "classes of each variable")
    units: int = setting(64, "units of every hidden layer", least=1)
    layers: int = setting(1, "hidden layers of encoder, decoder, actor, critic, reward and continue heads", least=1)

    prefix = "dreamer_v3"

    @property
    def batch(self) -> str:
        return f"{self.batch_size} x {self.batch_length}"


def require_multiple(key: str, value: int, unit_key: str, unit: int) -> None:
    """Refuse other values, which libraries round in different ways."""
    if value % unit or value < 0:
        raise ConfigError(f"{key}={value}: must be a multiple of {unit_key}={unit}")


def counted(number: int, noun: str) -> str:
    """Return `1 step` or `2 steps`."""
    return f"{number} {noun}{'s' * (number > 1)}"


@dataclass(frozen=True)
class BenchTask:
    """The same work for every contestant. Nobody evaluates, nobody normalises observations or rewards."""

    env: str = setting(doc="a Gymnasium id, or a cadenza id for teams; ALE/…: 84 x 84 pixels, 4 frames")
    num_envs: int = setting(doc="environments stepped together", least=1)
    timesteps: int = setting(doc="length of training, rounded up to whole iterations", unit="env_steps", least=1)
    ppo: PPOSettings | None = setting(None, "the algorithm and its settings; one of the six")
    dqn: DQNSettings | None = setting(None, "the algorithm and its settings; one of the six")
    sac: SACSettings | None = setting(None, "the algorithm and its settings; one of the six")
    mappo: TeamSettings | None = setting(None, "the algorithm and its settings; one of the six")
    happo: TeamSettings | None = setting(None, "the algorithm and its settings; one of the six")
    dreamer_v3: DreamerV3Settings | None = setting(None, "the algorithm and its settings; one of the six")
    solved_at: float | None = setting(None, "goal for the mean return of the last 100 training episodes; null: none")
    threads: int = setting(1, "threads of the numerical libraries", least=1)
    seed: int = setting(1, "seed of the first round; each round adds one")

    def __post_init__(self) -> None:
        names = [name for name in ALGORITHMS if getattr(self, name) is not None]
        if len(names) != 1:
            problem = f"{' and '.join(names)} are both given" if names else "the algorithm is missing"
            raise ConfigError(f"{problem}: settings under one of {', '.join(ALGORITHMS)}")
        # contestants would treat part of an iteration differently
        warmup, iteration, _ = self.rhythm
        iterations = max(1, ceil((self.timesteps - warmup) / iteration))
        object.__setattr__(self, "timesteps", warmup + iterations * iteration)

    @property
    def algorithm(self) -> str:
        return next(name for name in ALGORITHMS if getattr(self, name) is not None)

    @property
    def settings(self) -> PPOSettings | OffPolicyTask:
        settings: PPOSettings | OffPolicyTask = getattr(self, self.algorithm)
        return settings

    @property
    def rhythm(self) -> Rhythm:
        return self.settings.rhythm(self.num_envs)

    def order(self) -> dict[str, Any]:
        """Return the task for a contestant's process: plain data, and the work that it must do."""
        warmup, iteration, updates = self.rhythm
        return {
            **to_dict(self),
            "algorithm": self.algorithm,
            "work": self.settings.work(self.num_envs),
            "warmup": warmup,
            "iteration": iteration,
            "updates": (self.timesteps - warmup) // iteration * updates,
        }


def shipped() -> dict[str, BenchTask]:
    """Return the tasks of `conf/bench.yaml` by name."""
    return {name: build(BenchTask, task) for name, task in yaml_data(SHIPPED.read_bytes()).items()}


def find(name: str) -> BenchTask:
    """Return a task by its name, or from a JSON file with the fields of `BenchTask`."""
    if name.endswith(".json"):
        return read(Path(name))
    tasks = shipped()
    if name not in tasks:
        raise NotFoundError(f"unknown task '{name}'{nearest(name, tasks)} (known: {', '.join(tasks)})")
    return tasks[name]


def read(path: Path) -> BenchTask:
    """Read a task from a JSON file."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFoundError(f"no file '{path}'") from None
    except ValueError as problem:
        raise ConfigError(f"{path} is not JSON: {problem}") from None
    return build(BenchTask, data)
