"""PPO's settings; the algorithm is in `ppo.py`. Torch-free, so that mistakes are reported at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cadenza.config.checks import check_actor_critic, in_unit_interval, positive
from cadenza.config.networks import HeadConfig, MLPConfig, OptimizerConfig, TorsoConfig
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
    learning_rate: float | Schedule = setting(3e-4, "the optimizer's step size")
    optimizer: OptimizerConfig = setting(doc="what turns gradients into steps", factory=OptimizerConfig)
    gamma: float = setting(0.99, "discount")
    gae_lambda: float = setting(0.95, "bias-variance trade-off of the advantage estimate")
    clip_range: float | Schedule = setting(0.2, "how far the probability ratio may move the objective")
    value_clip_range: float | None = setting(None, "how far a value may move from its old estimate; null: freely")
    entropy_coef: float | Schedule = setting(0.0, "weight of the entropy bonus")
    value_coef: float = setting(0.5, "weight of the value loss")
    max_grad_norm: float | None = setting(0.5, "gradients of each group are clipped to this norm; null: never")
    target_kl: float | None = setting(None, "an update ends when the policy is 1.5 times this far away; null: never")
    normalize_advantage: bool = setting(True, "standardise advantages within each minibatch")
    normalize_obs: bool | Literal["rolling", "static"] = setting(
        False, "put observations on one scale: rolling (or true) by their statistics so far, static by their bounds"
    )
    normalize_reward: bool = setting(False, "divide rewards by the standard deviation of the discounted return so far")
    torso: TorsoConfig = setting(doc="from observations to features", factory=TorsoConfig)
    actor: MLPConfig = setting(doc="policy network", factory=MLPConfig)
    critic: MLPConfig = setting(doc="value network", factory=MLPConfig)
    head: HeadConfig = setting(doc="distribution of continuous actions", factory=HeadConfig)

    def __post_init__(self) -> None:
        for key in ("n_steps", "n_epochs"):
            if getattr(self, key) < 1:
                raise ConfigError(f"algorithm.{key}={getattr(self, key)}: must be at least 1")
        if self.batch_size <= 0 or (self.batch_size > 1 and self.batch_size != int(self.batch_size)):
            given = f"algorithm.batch_size={self.batch_size}"
            raise ConfigError(f"{given}: must be a whole number of env_steps, or a fraction in (0, 1]")
        in_unit_interval(self, "gamma", "gae_lambda")
        positive(self, "learning_rate", "clip_range", "value_clip_range", "max_grad_norm", "target_kl")
        length, burn_in = self.sequence_length, self.torso.memory.burn_in
        if self.n_steps % length:
            where = f"algorithm.torso.memory.sequence_length={length}"
            raise ConfigError(f"{where} does not divide algorithm.n_steps={self.n_steps}")
        if burn_in > self.n_steps - length:
            where = f"algorithm.torso.memory.burn_in={burn_in}"
            raise ConfigError(f"{where}: a rollout of {self.n_steps} steps has no more than {self.n_steps - length}")

    @property
    def sequence_length(self) -> int:
        """Steps that are learned from in their order; 1 without a memory."""
        memory = self.torso.memory
        return 1 if memory.type == "none" else memory.sequence_length or self.n_steps

    def minibatch(self, num_envs: int) -> int:
        """Sequences in one minibatch: single steps without a memory."""
        rollout = self.n_steps * num_envs
        size = max(1, int(rollout * self.batch_size)) if self.batch_size <= 1 else int(self.batch_size)
        if size > rollout or rollout % size:
            raise ConfigError(
                f"algorithm.batch_size={self.batch_size:g} ({size} steps) does not divide the rollout of "
                f"{rollout} steps (environment.num_envs={num_envs} x algorithm.n_steps={self.n_steps})"
            )
        if size % self.sequence_length:
            raise ConfigError(
                f"algorithm.batch_size={self.batch_size:g} ({size} steps) is no multiple of the sequences of "
                f"{self.sequence_length} steps that a policy with a memory learns from"
            )
        return size // self.sequence_length

    def gradient_steps_per_env_step(self, num_envs: int) -> float:
        return self.n_epochs / (self.minibatch(num_envs) * self.sequence_length)

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        self.minibatch(num_envs)
        check_actor_critic(self, env)
