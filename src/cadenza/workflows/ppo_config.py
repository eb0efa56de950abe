"""PPO's settings; the algorithm is in `ppo.py`. Torch-free, so that mistakes are reported at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cadenza.config.networks import MLPConfig
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


@dataclass(frozen=True)
class PPOConfig:
    """Proximal Policy Optimization."""

    name: str = setting("ppo", "name of the variant")
    n_steps: int = setting(128, "steps collected in each environment before an update", "vec_steps")
    batch_size: int | float = setting(
        0.25, "minibatch; in (0, 1] a fraction of the rollout, which it must divide", "env_steps"
    )
    n_epochs: int = setting(10, "passes over each rollout")
    learning_rate: float | Schedule = setting(3e-4, "Adam's step size")
    adam_eps: float = setting(1e-5, "Adam's epsilon")
    gamma: float = setting(0.99, "discount")
    gae_lambda: float = setting(0.95, "bias-variance trade-off of the advantage estimate")
    clip_range: float | Schedule = setting(0.2, "how far the probability ratio may move the objective")
    value_clip_range: float | None = setting(None, "how far a value may move from its old estimate; null: freely")
    entropy_coef: float | Schedule = setting(0.0, "weight of the entropy bonus")
    value_coef: float = setting(0.5, "weight of the value loss")
    max_grad_norm: float | None = setting(0.5, "gradients of each group are clipped to this norm; null: never")
    target_kl: float | None = setting(None, "an update ends when the policy is 1.5 times this far away; null: never")
    normalize_advantage: bool = setting(True, "standardise advantages within each minibatch")
    normalize_obs: Literal["none", "rolling"] = setting("none", "standardise observations with running statistics")
    log_std_init: float = setting(0.0, "initial log standard deviation of continuous actions")
    actor: MLPConfig = setting(doc="policy network", factory=MLPConfig)
    critic: MLPConfig = setting(doc="value network", factory=MLPConfig)

    def __post_init__(self) -> None:
        for key in ("n_steps", "n_epochs"):
            if getattr(self, key) < 1:
                raise ConfigError(f"algorithm.{key}={getattr(self, key)}: must be at least 1")
        if self.batch_size <= 0 or (self.batch_size > 1 and self.batch_size != int(self.batch_size)):
            given = f"algorithm.batch_size={self.batch_size}"
            raise ConfigError(f"{given}: must be a whole number of env_steps, or a fraction in (0, 1]")
        for key, low, high in (("gamma", 0, 1), ("gae_lambda", 0, 1)):
            if not low <= getattr(self, key) <= high:
                raise ConfigError(f"algorithm.{key}={getattr(self, key):g}: must lie between {low} and {high}")
        for key in ("learning_rate", "clip_range"):
            value = getattr(self, key)
            if (value.start_value if isinstance(value, Schedule) else value) <= 0:
                raise ConfigError(f"algorithm.{key} must be above 0")
        for key in ("value_clip_range", "max_grad_norm", "target_kl"):
            if getattr(self, key) is not None and getattr(self, key) <= 0:
                raise ConfigError(f"algorithm.{key}={getattr(self, key):g}: must be above 0, or null")

    def minibatch(self, num_envs: int) -> int:
        """Rows of a rollout in one minibatch."""
        rollout = self.n_steps * num_envs
        size = max(1, int(rollout * self.batch_size)) if self.batch_size <= 1 else int(self.batch_size)
        if size > rollout or rollout % size:
            raise ConfigError(
                f"algorithm.batch_size={self.batch_size:g} ({size} steps) does not divide the rollout of "
                f"{rollout} steps (environment.num_envs={num_envs} x algorithm.n_steps={self.n_steps})"
            )
        return size

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        from gymnasium.spaces import Box, Discrete

        self.minibatch(num_envs)
        for name, group in env.groups.items():
            if not isinstance(group.action, Box | Discrete):
                raise ConfigError(
                    f"ppo takes Discrete and Box actions; {env.id} (group {name}) has {type(group.action).__name__}"
                )
