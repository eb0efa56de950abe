"""The settings of SAC; the algorithm is in `sac.py`. They import without torch, so that mistakes show at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cadenza.config.algorithm_settings import accumulation
from cadenza.config.checks import check_actions, check_encoder, check_single_transitions, refuse_memory
from cadenza.config.networks import NetworkConfig, OptimizerConfig, OwnHead, TorsoConfig
from cadenza.config.replay_settings import OffPolicySettings
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


@dataclass(frozen=True)
class SACConfig(OffPolicySettings):
    """Soft Actor-Critic."""

    has_graphs: ClassVar[bool] = True
    scheduled: ClassVar[str] = (
        "learning_rate critic_learning_rate temperature_learning_rate max_grad_norm gamma tau temperature "
        "target_entropy"
    )
    name: str = setting("sac", "name of the variant")
    learning_rate: float = setting(3e-4, "step size of the optimizers", above=0)
    critic_learning_rate: float | None = setting(None, "critics' step size; null: learning_rate", above=0)
    temperature_learning_rate: float | None = setting(
        None, "step size for the temperature; null: learning_rate", above=0, needs="temperature=auto"
    )
    accumulate: int = accumulation()
    optimizer: OptimizerConfig = setting(doc="the optimizer", factory=lambda: OptimizerConfig(eps=1e-8))
    max_grad_norm: float | None = setting(None, "clip gradients to this norm; null: never", above=0)
    gamma: float = setting(0.99, "discount", least=0, most=1)
    n_step: int = setting(1, "rewards summed before the critics' estimate", "steps", least=1)
    tau: float = setting(0.005, "share of the critics' weights in each update of the target critics", above=0, most=1)
    target_every: int = setting(1, "gradient steps between updates of the target critics", "updates", least=1)
    policy_every: int = setting(1, "gradient steps between those of policy and temperature", "updates", least=1)
    temperature: float | Literal["auto"] = setting("auto", "weight of the entropy; auto: learned", least=0)
    initial_temperature: float = setting(1.0, "initial temperature", above=0, needs="temperature=auto")
    target_entropy: float | Literal["auto"] = setting(
        "auto", "desired entropy; auto: -1 per dimension, or 0.98 of the highest if discrete", needs="temperature=auto"
    )
    head: Literal["auto"] | OwnHead = setting(
        "auto", "distribution of actions: a normal squashed by tanh, a categorical one, or a head of yours", sparse=True
    )
    log_std_init: float = setting(
        0.0, "initial log standard deviation of actions, before tanh", least=-20, most=2, needs="head=auto"
    )
    critics: int = setting(2, "number of critics; the lowest estimate counts", least=1)
    policy_trusts: Literal["min", "mean"] = setting("min", "which of the critics' estimates the policy maximises")
    layer_norm: bool = setting(False, "layer norm in the critics")
    dropout: float = setting(0.0, "dropout rate in the critics during updates", least=0, below=1)
    normalize_obs: bool = setting(False, "map observations from their bounds to [-1, 1]")
    torso: TorsoConfig = setting(doc="from observations to features, for policy and critics each", factory=TorsoConfig)
    actor: NetworkConfig = setting(doc="policy network", factory=lambda: NetworkConfig((256, 256), "relu"))
    critic: NetworkConfig = setting(doc="network of each critic", factory=lambda: NetworkConfig((256, 256), "relu"))

    def __post_init__(self) -> None:
        if self.accumulate > 1 and self.dropout:
            raise ConfigError(
                f"algorithm.accumulate={self.accumulate}: not with dropout, which is drawn in the network"
            )
        refuse_memory(
            self.torso,
            f"{self.name} learns from single transitions and has no memory",
            "policy and critics have separate torsos in any case",
        )
        if self.critic.network != "mlp" and (self.layer_norm or self.dropout):
            raise ConfigError("algorithm.critic.network: layer_norm and dropout are for cadenza's own critics")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        from gymnasium.spaces import Box

        check_single_transitions(self, env)
        self.check_room(num_envs, 2 + self.n_step, f"algorithm.n_step={self.n_step}")
        check_encoder(self)
        if self.log_std_init and not any(isinstance(group.action, Box) for group in env.groups.values()):
            discrete = f"does nothing for the discrete actions of {env.id}"
            raise ConfigError(f"algorithm.log_std_init={self.log_std_init:g}: {discrete}")
        check_actions(self, env)
