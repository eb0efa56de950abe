"""The settings of REINFORCE; the algorithm is in `reinforce.py`. They import without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cadenza.config.algorithm_settings import AlgorithmSettings, accumulation
from cadenza.config.checks import check_actor_critic
from cadenza.config.networks import EstimatorConfig, HeadConfig, NetworkConfig, OptimizerConfig, TorsoConfig
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


@dataclass(frozen=True)
class ReinforceConfig(AlgorithmSettings):
    """REINFORCE: the Monte-Carlo policy gradient."""

    scheduled: ClassVar[str] = "learning_rate gamma gae_lambda entropy_coef max_grad_norm"
    name: str = setting("reinforce", "name of the variant")
    episodes_per_update: int = setting(8, "episodes finished before each gradient step", "episodes", least=1)
    learning_rate: float = setting(1e-3, "step size of the optimizer", above=0)
    accumulate: int = accumulation()
    optimizer: OptimizerConfig = setting(doc="the optimizer", factory=OptimizerConfig)
    gamma: float = setting(0.99, "discount", least=0, most=1)
    returns_type: Literal["mc:rtg", "mc:episode"] = setting(
        "mc:rtg", "return credited to an action: the rewards from it on, or those of its whole episode"
    )
    policy_targets: Literal["returns", "advantages"] = setting(
        "returns", "weight of each action: its return, or its return minus a learned baseline"
    )
    advantage: EstimatorConfig = setting(
        doc="estimator of advantages and of what the baseline predicts; monte_carlo: all rewards to the episode's end",
        factory=lambda: EstimatorConfig("monte_carlo"),
        sparse=True,
        needs="policy_targets=advantages and returns_type=mc:rtg",
    )
    gae_lambda: float = setting(
        0.95,
        "bias-variance trade-off of gae, td_lambda and vtrace",
        sparse=True,
        least=0,
        most=1,
        needs="policy_targets=advantages",
    )
    normalize_targets: bool = setting(True, "standardise these weights in each update")
    baseline_epochs: int = setting(4, "advantages: passes of the baseline over the episodes of each update", least=1)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    max_grad_norm: float | None = setting(0.5, "clip gradients of each group to this norm; null: never", above=0)
    normalize_obs: bool | Literal["rolling", "static"] = setting(
        False, "put observations on one scale: rolling (or true) by their statistics so far, static by their bounds"
    )
    torso: TorsoConfig = setting(doc="from observations to features", factory=TorsoConfig)
    actor: NetworkConfig = setting(doc="policy network", factory=NetworkConfig)
    critic: NetworkConfig = setting(doc="network of the baseline, if there is one", factory=NetworkConfig)
    head: HeadConfig = setting(doc="distribution of continuous actions", factory=HeadConfig)

    def __post_init__(self) -> None:
        if self.torso.memory.sequence_length is not None:
            raise ConfigError("algorithm.torso.memory.sequence_length: reinforce learns from whole episodes")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in."""
        check_actor_critic(self, env)
