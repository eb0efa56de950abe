"""SAC's settings; the algorithm is in `sac.py`. Torch-free, so that mistakes are reported at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cadenza.config.algorithm_settings import SMALL_BATCH, SMALL_RATIO, AlgorithmSettings
from cadenza.config.checks import check_replay_learner, in_unit_interval, positive
from cadenza.config.networks import MLPConfig, OptimizerConfig, TorsoConfig
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


def _mlp() -> MLPConfig:
    return MLPConfig((256, 256), "relu")


def _adam() -> OptimizerConfig:
    return OptimizerConfig(eps=1e-8)


@dataclass(frozen=True)
class SACConfig(AlgorithmSettings):
    """Soft Actor-Critic."""

    name: str = setting("sac", "name of the variant")
    buffer_size: int = setting(1_000_000, "rows of the replay: transitions, and one for each end of an episode", "rows")
    buffer_on_disk: bool = setting(False, "map the replay from a file instead of holding it in memory")
    warmup_steps: int = setting(1000, "random actions before anything is learned", "env_steps")
    train_every: int = setting(1, "steps collected between updates", "env_steps")
    update_ratio: float = setting(1.0, "gradient steps per env_step collected after the warm-up")
    batch_size: int = setting(256, "transitions in a gradient step")
    learning_rate: float | Schedule = setting(3e-4, "the optimizers' step size")
    critic_learning_rate: float | Schedule | None = setting(None, "that of the critics; null: learning_rate")
    temperature_learning_rate: float | Schedule | None = setting(None, "that of the temperature; null: learning_rate")
    optimizer: OptimizerConfig = setting(doc="what turns gradients into steps", factory=_adam)
    max_grad_norm: float | None = setting(None, "gradients are clipped to this norm; null: never")
    gamma: float = setting(0.99, "discount")
    n_step: int = setting(1, "rewards summed before the critics' own estimate", "steps")
    tau: float = setting(0.005, "how far the target critics move at a time")
    target_every: int = setting(1, "gradient steps between moves of the target critics", "updates")
    policy_every: int = setting(1, "gradient steps between those of policy and temperature", "updates")
    temperature: float | Literal["auto"] = setting("auto", "weight of the entropy; auto: learned")
    initial_temperature: float = setting(1.0, "where a learned temperature begins")
    target_entropy: float | Literal["auto"] = setting(
        "auto", "entropy that a learned temperature holds; auto: -1 per dimension, or 0.98 of the highest if discrete"
    )
    log_std_init: float = setting(0.0, "where the log standard deviation of continuous actions begins, before tanh")
    critics: int = setting(2, "how many; the lowest estimate counts")
    policy_trusts: Literal["min", "mean"] = setting("min", "which estimate of the critics the policy climbs")
    layer_norm: bool = setting(False, "layer norm in the critics")
    dropout: float = setting(0.0, "share of the critics' units switched off while learning")
    normalize_obs: bool = setting(False, "map observations from their bounds to [-1, 1]")
    torso: TorsoConfig = setting(doc="to features; one for the policy, one for the critics", factory=TorsoConfig)
    actor: MLPConfig = setting(doc="policy network", factory=_mlp)
    critic: MLPConfig = setting(doc="each critic's network", factory=_mlp)

    def __post_init__(self) -> None:
        for key in ("buffer_size", "train_every", "batch_size", "n_step", "target_every", "policy_every", "critics"):
            if getattr(self, key) < 1:
                raise ConfigError(f"algorithm.{key}={getattr(self, key)}: must be at least 1")
        if self.warmup_steps < 0:
            raise ConfigError(f"algorithm.warmup_steps={self.warmup_steps}: cannot be negative")
        positive(self, "learning_rate", "critic_learning_rate", "temperature_learning_rate", "max_grad_norm")
        positive(self, "update_ratio", "initial_temperature", "tau")
        in_unit_interval(self, "gamma", "tau")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"algorithm.dropout={self.dropout:g}: must lie in [0, 1)")
        if not -20 <= self.log_std_init <= 2:
            raise ConfigError(f"algorithm.log_std_init={self.log_std_init:g}: must lie between -20 and 2")
        if self.temperature != "auto" and self.temperature < 0:
            raise ConfigError(f"algorithm.temperature={self.temperature:g}: cannot be negative")
        if self.torso.memory.type != "none":
            raise ConfigError(f"algorithm.torso.memory: {self.name} learns from single transitions and has no memory")
        if not self.torso.shared:
            raise ConfigError("algorithm.torso.shared=false: policy and critics have torsos of their own in any case")
        learned = (self.initial_temperature, self.target_entropy, self.temperature_learning_rate)
        if self.temperature != "auto" and learned != (1.0, "auto", None):
            keys = "initial_temperature, target_entropy and temperature_learning_rate"
            fixed = f"algorithm.temperature={self.temperature:g} stays as it is"
            raise ConfigError(f"algorithm.{keys} are about a learned one, and {fixed}")

    def updates_per_env_step(self, num_envs: int) -> float:
        return self.update_ratio

    def shrunk(self) -> SACConfig:
        ratio, batch = min(self.update_ratio, SMALL_RATIO), min(self.batch_size, SMALL_BATCH)
        return replace(self, update_ratio=ratio, batch_size=batch)

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        import numpy as np
        from gymnasium.spaces import Box, Discrete

        check_replay_learner(self, env, num_envs)
        if self.log_std_init and not any(isinstance(group.action, Box) for group in env.groups.values()):
            discrete = f"does nothing for the discrete actions of {env.id}"
            raise ConfigError(f"algorithm.log_std_init={self.log_std_init:g}: {discrete}")
        for name, group in env.groups.items():
            where, action = f"{env.id} (group {name})", group.action
            if not isinstance(action, Box | Discrete) or not (
                isinstance(action, Discrete) or np.issubdtype(action.dtype, np.floating)
            ):
                raise ConfigError(f"{self.name} takes Discrete actions and Box actions of floats; {where} has {action}")
            if isinstance(action, Box):
                reach = action.high.astype(np.float64) - action.low
                if not ((reach > 0) & (reach < 1e30)).all():
                    raise ConfigError(f"{self.name}: the actions of {where} need a lower and an upper bound each")
