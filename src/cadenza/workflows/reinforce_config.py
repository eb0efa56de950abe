"""REINFORCE's settings; the algorithm is in `reinforce.py`. Torch-free, so that mistakes are reported at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.checks import check_actor_critic, in_unit_interval, positive
from cadenza.config.networks import HeadConfig, MLPConfig, OptimizerConfig, TorsoConfig
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


@dataclass(frozen=True)
class ReinforceConfig(AlgorithmSettings):
    """REINFORCE: the Monte-Carlo policy gradient."""

    name: str = setting("reinforce", "name of the variant")
    episodes_per_update: int = setting(8, "episodes finished before each gradient step", "episodes")
    learning_rate: float | Schedule = setting(1e-3, "the optimizer's step size")
    optimizer: OptimizerConfig = setting(doc="what turns gradients into steps", factory=OptimizerConfig)
    gamma: float = setting(0.99, "discount")
    returns_type: Literal["mc:rtg", "mc:episode"] = setting(
        "mc:rtg", "what an action is credited with: the rewards from it on, or those of its whole episode"
    )
    policy_targets: Literal["returns", "advantages"] = setting(
        "returns", "weight of each action: its return, or what that exceeds a learned baseline by"
    )
    normalize_targets: bool = setting(True, "standardise those weights over each update")
    baseline_epochs: int = setting(4, "advantages: passes of the baseline over the episodes of each update")
    entropy_coef: float | Schedule = setting(0.0, "weight of the entropy bonus")
    max_grad_norm: float | None = setting(0.5, "gradients of each group are clipped to this norm; null: never")
    normalize_obs: bool | Literal["rolling", "static"] = setting(
        False, "put observations on one scale: rolling (or true) by their statistics so far, static by their bounds"
    )
    torso: TorsoConfig = setting(doc="from observations to features", factory=TorsoConfig)
    actor: MLPConfig = setting(doc="policy network", factory=MLPConfig)
    critic: MLPConfig = setting(doc="baseline network, where there is one", factory=MLPConfig)
    head: HeadConfig = setting(doc="distribution of continuous actions", factory=HeadConfig)

    def __post_init__(self) -> None:
        for key in ("episodes_per_update", "baseline_epochs"):
            if getattr(self, key) < 1:
                raise ConfigError(f"algorithm.{key}={getattr(self, key)}: must be at least 1")
        in_unit_interval(self, "gamma")
        positive(self, "learning_rate", "max_grad_norm")
        memory = self.torso.memory
        if memory.sequence_length is not None:
            raise ConfigError("algorithm.torso.memory.sequence_length: reinforce learns from whole episodes")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in."""
        check_actor_critic(self, env)
