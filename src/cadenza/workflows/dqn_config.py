"""DQN's settings; the algorithm is in `dqn.py`. Torch-free, so that mistakes are reported at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cadenza.config.algorithm_settings import SMALL_BATCH, SMALL_RATIO, AlgorithmSettings
from cadenza.config.checks import check_replay_learner, ends, in_unit_interval, positive
from cadenza.config.networks import MLPConfig, OptimizerConfig, TorsoConfig
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


def _less_and_less() -> Schedule:
    return Schedule(start_value=1.0, end_value=0.05, end=0.1)


def _corrected_in_the_end() -> Schedule:
    return Schedule(start_value=0.4, end_value=1.0)


def _hidden() -> MLPConfig:
    return MLPConfig((64, 64), "relu")


def _adam() -> OptimizerConfig:
    return OptimizerConfig(eps=1e-8)


@dataclass(frozen=True)
class DQNConfig(AlgorithmSettings):
    """Deep Q-learning, with what Rainbow adds to it."""

    name: str = setting("dqn", "name of the variant")
    buffer_size: int = setting(100_000, "rows of the replay: transitions, and one for each end of an episode", "rows")
    buffer_on_disk: bool = setting(False, "map the replay from a file instead of holding it in memory")
    warmup_steps: int = setting(
        1000, "random actions before anything is learned; rounded up to a multiple of train_every", "env_steps"
    )
    train_every: int = setting(4, "steps collected between updates", "env_steps")
    update_ratio: float = setting(0.25, "gradient steps per env_step collected after the warm-up")
    batch_size: int = setting(64, "transitions in a gradient step")
    learning_rate: float | Schedule = setting(5e-4, "the optimizer's step size")
    optimizer: OptimizerConfig = setting(doc="what turns gradients into steps", factory=_adam)
    max_grad_norm: float | None = setting(10.0, "gradients of each group are clipped to this norm; null: never")
    gamma: float = setting(0.99, "discount")
    n_step: int = setting(1, "rewards summed before the network's own estimate", "steps")
    target_every: int = setting(250, "gradient steps between moves of the target network", "updates")
    tau: float = setting(1.0, "how far the target network moves at a time; 1: it becomes a copy")
    epsilon: float | Schedule = setting(doc="probability of an action at random", factory=_less_and_less)
    evaluation_epsilon: float = setting(0.0, "the same while the policy is measured or played")
    double: bool = setting(False, "the network chooses the best next action, the target network judges it")
    dueling: bool = setting(False, "a state's value and its actions' advantages as outputs of their own")
    distribution: Literal["none", "c51", "quantile"] = setting(
        "none", "learn how returns are distributed: probabilities of fixed returns, or quantiles; none: their mean"
    )
    atoms: int = setting(51, "c51: fixed returns; quantile: quantiles")
    v_min: float = setting(-10.0, "c51: the lowest return")
    v_max: float = setting(10.0, "c51: the highest return")
    kappa: float = setting(1.0, "quantile: errors up to this are squared, larger ones count as they are")
    noisy: bool = setting(False, "learned noise on the weights, drawn anew at every step, explores")
    noisy_sigma: float = setting(0.5, "noisy: how much noise there is at the start")
    priority_alpha: float | None = setting(None, "replay by error to this power; null: uniformly")
    priority_beta: float | Schedule = setting(
        doc="how far weights correct the bias of priorities; 1: in full", factory=_corrected_in_the_end
    )
    loss: Literal["huber", "mse"] = setting(
        "huber", "of the error of a value: squared up to 1 and linear above, or squared"
    )
    normalize_obs: bool = setting(False, "map observations from their bounds to [-1, 1]")
    torso: TorsoConfig = setting(doc="from observations to features", factory=TorsoConfig)
    hidden: MLPConfig = setting(doc="from features to values; dueling: one such network each", factory=_hidden)

    def __post_init__(self) -> None:
        for key in ("buffer_size", "train_every", "batch_size", "n_step", "target_every"):
            if getattr(self, key) < 1:
                raise ConfigError(f"algorithm.{key}={getattr(self, key)}: must be at least 1")
        if self.warmup_steps < 0:
            raise ConfigError(f"algorithm.warmup_steps={self.warmup_steps}: cannot be negative")
        positive(
            self, "update_ratio", "learning_rate", "max_grad_norm", "tau", "priority_alpha", "kappa", "noisy_sigma"
        )
        in_unit_interval(self, "gamma", "tau", "evaluation_epsilon")
        for key in ("epsilon", "priority_beta"):
            if not all(0 <= value <= 1 for value in ends(getattr(self, key))):
                raise ConfigError(f"algorithm.{key} must lie between 0 and 1")
        self._check_distribution()
        if self.torso.memory.type != "none":
            raise ConfigError(f"algorithm.torso.memory: {self.name} learns from single transitions and has no memory")
        if not self.torso.shared:
            raise ConfigError(f"algorithm.torso.shared=false: {self.name} has one network, nothing to share it with")

    def _check_distribution(self) -> None:
        least = {"none": 1, "c51": 2, "quantile": 1}[self.distribution]
        if self.atoms < least:
            raise ConfigError(f"algorithm.atoms={self.atoms}: must be at least {least}")
        if self.distribution == "c51" and self.v_min >= self.v_max:
            raise ConfigError(f"algorithm.v_min={self.v_min:g}: must be below algorithm.v_max={self.v_max:g}")
        if self.distribution != "none" and self.loss != "huber":
            taken = f"algorithm.distribution={self.distribution} has a loss of its own"
            raise ConfigError(f"algorithm.loss={self.loss} is about plain values, and {taken}")

    def updates_per_env_step(self, num_envs: int) -> float:
        return self.update_ratio

    def shrunk(self) -> DQNConfig:
        ratio, batch = min(self.update_ratio, SMALL_RATIO), min(self.batch_size, SMALL_BATCH)
        return replace(self, update_ratio=ratio, batch_size=batch)

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        from gymnasium.spaces import Discrete

        check_replay_learner(self, env, num_envs)
        for name, group in env.groups.items():
            if not isinstance(group.action, Discrete):
                kind = type(group.action).__name__
                raise ConfigError(f"{self.name} takes Discrete actions; {env.id} (group {name}) has {kind}")
