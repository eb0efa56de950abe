"""What is measured, as data: an environment, an algorithm with its settings, and how long to train."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cadenza.config.convert import build, to_dict
from cadenza.config.setting import setting
from cadenza.errors import ConfigError, NotFoundError, nearest


class Rhythm(NamedTuple):
    """How a run goes: so many env_steps at random, then iterations of so many env_steps and gradient steps."""

    warmup: int
    iteration: int
    updates: int


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
        at_least_one(self, "n_steps", "batch_size", "n_epochs")

    def rhythm(self, num_envs: int) -> Rhythm:
        rollout = num_envs * self.n_steps
        if rollout % self.batch_size:
            whole = f"the rollout of {num_envs} x {self.n_steps} steps"
            raise ConfigError(f"ppo.batch_size={self.batch_size}: must divide {whole}")
        return Rhythm(0, rollout, rollout // self.batch_size * self.n_epochs)

    def work(self, num_envs: int) -> str:
        return f"{num_envs} x {self.n_steps} steps, minibatches of {self.batch_size} x {self.n_epochs} epochs"


@dataclass(frozen=True)
class Team(PPO):
    """PPO of a team with critics that see all of it: side by side with shared parameters, or groups in turn."""

    groups: int = setting(1, "with networks of their own, each with as many gradient steps")

    def rhythm(self, num_envs: int) -> Rhythm:
        warmup, iteration, updates = super().rhythm(num_envs)
        return Rhythm(warmup, iteration, updates * self.groups)


@dataclass(frozen=True)
class DQN:
    """Deep Q-learning, as every contestant can do it: Huber loss, a target network that becomes a copy, Adam."""

    warmup_steps: int = setting(1000, "random actions before anything is learned", "env_steps")
    train_every: int = setting(4, "steps collected between updates", "env_steps")
    gradient_steps: int = setting(1, "of each update", "updates")
    batch_size: int = setting(64, "transitions in a gradient step")
    buffer_size: int = setting(100_000, "transitions kept")
    learning_rate: float = setting(5e-4, "Adam's step size")
    gamma: float = setting(0.99, "discount")
    target_every: int = setting(1000, "steps between copies to the target network", "env_steps")
    epsilon_end: float = setting(0.05, "probability of an action at random in the end; 1 in the beginning")
    epsilon_share: float = setting(0.1, "in which part of the run it falls, in a line")
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm")
    hidden_sizes: tuple[int, ...] = setting((64, 64), "units of the hidden layers")
    activation: Literal["tanh", "relu"] = setting("relu", "nonlinearity after each hidden layer")

    def __post_init__(self) -> None:
        at_least_one(self, "train_every", "gradient_steps", "batch_size", "buffer_size", "target_every")

    def rhythm(self, num_envs: int) -> Rhythm:
        require_multiple("dqn.target_every", self.target_every, "dqn.train_every", self.train_every)
        return replayed("dqn", self, num_envs)

    def work(self, num_envs: int) -> str:
        return turns(self, num_envs)


@dataclass(frozen=True)
class SAC:
    """Soft Actor-Critic, as every contestant can do it: two critics, a temperature learned from 1 on, Adam."""

    warmup_steps: int = setting(1000, "random actions before anything is learned", "env_steps")
    train_every: int = setting(1, "steps collected between updates", "env_steps")
    gradient_steps: int = setting(1, "of each update: critics, policy and temperature", "updates")
    batch_size: int = setting(256, "transitions in a gradient step")
    buffer_size: int = setting(1_000_000, "transitions kept")
    learning_rate: float = setting(3e-4, "Adam's step size, for all three")
    gamma: float = setting(0.99, "discount")
    tau: float = setting(0.005, "how far the target critics move after each gradient step")
    hidden_sizes: tuple[int, ...] = setting((256, 256), "units of the hidden layers of the policy and of each critic")
    activation: Literal["tanh", "relu"] = setting("relu", "nonlinearity after each hidden layer")

    def __post_init__(self) -> None:
        at_least_one(self, "train_every", "gradient_steps", "batch_size", "buffer_size")

    def rhythm(self, num_envs: int) -> Rhythm:
        return replayed("sac", self, num_envs)

    def work(self, num_envs: int) -> str:
        return turns(self, num_envs)


@dataclass(frozen=True)
class DreamerV3:
    """DreamerV3 on vectors, as every contestant can do it: a GRU with a layer norm, no states kept in the replay."""

    warmup_steps: int = setting(128, "random actions before anything is learned", "env_steps")
    train_every: int = setting(1, "steps collected between updates", "env_steps")
    gradient_steps: int = setting(1, "of each update: world model, actor and critic", "updates")
    batch_size: int = setting(16, "sequences in a gradient step")
    batch_length: int = setting(64, "steps of each", "vec_steps")
    buffer_size: int = setting(10_000, "steps kept")
    horizon: int = setting(15, "steps imagined from each state", "steps")
    learning_rate: float = setting(1e-4, "Adam's step size, for all three")
    gamma: float = setting(0.997, "discount")
    deter: int = setting(128, "units of the deterministic state")
    stoch: int = setting(8, "variables of the stochastic state")
    classes: int = setting(8, "of each")
    units: int = setting(64, "of every hidden layer")
    layers: int = setting(1, "hidden layers of encoder, decoder, actor, critic and of what predicts rewards and ends")

    def __post_init__(self) -> None:
        at_least_one(self, "train_every", "gradient_steps", "batch_size", "buffer_size", "horizon", "units", "layers")

    def rhythm(self, num_envs: int) -> Rhythm:
        return replayed("dreamer_v3", self, num_envs)

    def work(self, num_envs: int) -> str:
        return turns(self, num_envs, f"{self.batch_size} x {self.batch_length}")


def at_least_one(settings: Any, *keys: str) -> None:
    for key in keys:
        if getattr(settings, key) < 1:
            raise ConfigError(f"{key}={getattr(settings, key)}: must be at least 1")


def require_multiple(key: str, value: int, of: str, unit: int) -> None:
    """Libraries round what is none, each in its own way."""
    if value % unit or value < 0:
        raise ConfigError(f"{key}={value}: must be a multiple of {of}={unit}")


def replayed(name: str, settings: DQN | SAC | DreamerV3, num_envs: int) -> Rhythm:
    require_multiple(f"{name}.train_every", settings.train_every, "num_envs", num_envs)
    require_multiple(f"{name}.warmup_steps", settings.warmup_steps, f"{name}.train_every", settings.train_every)
    return Rhythm(settings.warmup_steps, settings.train_every, settings.gradient_steps)


def turns(settings: DQN | SAC | DreamerV3, num_envs: int, batch: str = "") -> str:
    environments, steps = counted(num_envs, "environment"), counted(settings.train_every, "step")
    updates = counted(settings.gradient_steps, "gradient step")
    return f"{environments}, {steps} and {updates} of {batch or settings.batch_size} in turn"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


ALGORITHMS = ("ppo", "dqn", "sac", "mappo", "happo", "dreamer_v3")


@dataclass(frozen=True)
class Task:
    """The same work for everyone. Nobody evaluates, nobody normalises observations or rewards."""

    env: str = setting(doc="an id of Gymnasium's, or of cadenza's for teams; ALE/…: 84 x 84, 4 frames")
    num_envs: int = setting(doc="environments stepped together")
    timesteps: int = setting(doc="how long to train, rounded up to whole iterations", unit="env_steps")
    ppo: PPO | None = setting(None, "the algorithm and its settings; one of the six")
    dqn: DQN | None = setting(None, "the algorithm and its settings; one of the six")
    sac: SAC | None = setting(None, "the algorithm and its settings; one of the six")
    mappo: Team | None = setting(None, "the algorithm and its settings; one of the six")
    happo: Team | None = setting(None, "the algorithm and its settings; one of the six")
    dreamer_v3: DreamerV3 | None = setting(None, "the algorithm and its settings; one of the six")
    solved_at: float | None = setting(None, "mean return of the last 100 training episodes to reach; null: not asked")
    threads: int = setting(1, "threads of the numerical libraries")
    seed: int = setting(1, "of the first round; each round adds one")

    def __post_init__(self) -> None:
        at_least_one(self, "num_envs", "timesteps", "threads")
        given = [name for name in ALGORITHMS if getattr(self, name) is not None]
        if len(given) != 1:
            problem = f"{' and '.join(given)} are both given" if given else "the algorithm is missing"
            raise ConfigError(f"{problem}: settings under one of {', '.join(ALGORITHMS)}")
        # part of an iteration is no work that all would do alike
        warmup, iteration, _ = self.rhythm
        iterations = max(1, ceil((self.timesteps - warmup) / iteration))
        object.__setattr__(self, "timesteps", warmup + iterations * iteration)

    @property
    def algorithm(self) -> str:
        return next(name for name in ALGORITHMS if getattr(self, name) is not None)

    @property
    def settings(self) -> PPO | DQN | SAC | DreamerV3:
        found: PPO | DQN | SAC | DreamerV3 = getattr(self, self.algorithm)
        return found

    @property
    def rhythm(self) -> Rhythm:
        return self.settings.rhythm(self.num_envs)

    def order(self) -> dict[str, Any]:
        """What a contestant's process is told: plain data, and the work it will be held to."""
        warmup, iteration, updates = self.rhythm
        return {
            **to_dict(self),
            "algorithm": self.algorithm,
            "work": self.settings.work(self.num_envs),
            "warmup": warmup,
            "iteration": iteration,
            "updates": (self.timesteps - warmup) // iteration * updates,
        }


CARTPOLE = PPO(n_steps=128, batch_size=256)
CARTPOLE_ZOO = PPO(32, 256, n_epochs=20, learning_rate=1e-3, anneal=True, gamma=0.98, gae_lambda=0.8)  # rl-zoo3's
HALFCHEETAH = PPO(n_steps=2048, batch_size=64)
PONG = PPO(
    128, 256, n_epochs=4, learning_rate=2.5e-4, anneal=True, clip_range=0.1, entropy_coef=0.01, hidden_sizes=()
)  # rl-zoo3's for Atari; the layers before are Mnih et al.'s
# rl-zoo3's too: it copies to the target every 10 steps, once between two updates; its learning_starts of 1000 come to
# a first update after 1024 steps
CARTPOLE_DQN = DQN(
    warmup_steps=768,
    train_every=256,
    gradient_steps=128,
    learning_rate=2.3e-3,
    target_every=256,
    epsilon_end=0.04,
    epsilon_share=0.16,
    hidden_sizes=(256, 256),
)
TEAM = Team(
    n_steps=200,
    batch_size=800,
    n_epochs=5,
    learning_rate=5e-4,
    entropy_coef=0.01,
    value_coef=1.0,
    max_grad_norm=10.0,
    hidden_sizes=(128, 128),
    activation="relu",
)  # HARL's
TASKS = {
    "ppo-cartpole": Task("CartPole-v1", 8, 100_000, CARTPOLE),
    "ppo-cartpole-solve": Task("CartPole-v1", 8, 100_000, CARTPOLE_ZOO, solved_at=475.0),
    "ppo-halfcheetah": Task("HalfCheetah-v5", 1, 30_000, HALFCHEETAH),
    "ppo-halfcheetah-8": Task("HalfCheetah-v5", 8, 40_000, replace(HALFCHEETAH, n_steps=256)),
    "ppo-pong": Task("ALE/Pong-v5", 8, 10_240, PONG),
    "dqn-cartpole": Task("CartPole-v1", 1, 20_000, dqn=CARTPOLE_DQN),
    "sac-halfcheetah": Task("HalfCheetah-v5", 1, 4_000, sac=SAC()),
    "dreamer-cartpole": Task("CartPole-v1", 1, 160, dreamer_v3=DreamerV3()),
    "mappo-spread": Task("mpe/simple_spread_v3", 4, 16_000, mappo=TEAM),
    "happo-spread": Task("mpe/simple_spread_v3", 4, 16_000, happo=replace(TEAM, groups=3)),
    "happo-halfcheetah-2x3": Task("mamujoco/HalfCheetah-2x3", 4, 16_000, happo=replace(TEAM, groups=2)),
    "mappo-vmas-spread": Task("vmas/simple_spread", 4, 16_000, mappo=TEAM),
    "mappo-vmas-spread-512": Task("vmas/simple_spread", 512, 614_400, mappo=replace(TEAM, batch_size=102_400)),
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
