"""The settings of DQN; the algorithm is in `dqn.py`. They import without torch, so that mistakes show at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cadenza.config.algorithm_settings import accumulation
from cadenza.config.checks import check_discrete_actions, check_encoder, check_single_transitions, refuse_memory
from cadenza.config.networks import NetworkConfig, OptimizerConfig, TorsoConfig
from cadenza.config.replay_settings import OffPolicySettings
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting, with_default
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


@dataclass(frozen=True)
class DQNConfig(OffPolicySettings):
    """Deep Q-learning, with the extensions of Rainbow."""

    scheduled: ClassVar[str] = "learning_rate max_grad_norm gamma tau epsilon priority_beta"
    name: str = setting("dqn", "name of the variant")
    buffer_size: int = with_default(OffPolicySettings, "buffer_size", 100_000)
    warmup_steps: int = setting(
        1000, "random actions before the first update; rounded up to a multiple of train_every", "env_steps", least=0
    )
    train_every: int = with_default(OffPolicySettings, "train_every", 4)
    update_ratio: float = with_default(OffPolicySettings, "update_ratio", 0.25)
    batch_size: int = with_default(OffPolicySettings, "batch_size", 64)
    learning_rate: float = setting(5e-4, "step size of the optimizer", above=0)
    accumulate: int = accumulation()
    optimizer: OptimizerConfig = setting(doc="the optimizer", factory=lambda: OptimizerConfig(eps=1e-8))
    max_grad_norm: float | None = setting(10.0, "clip gradients of each group to this norm; null: never", above=0)
    gamma: float = setting(0.99, "discount", least=0, most=1)
    n_step: int = setting(1, "rewards summed before the network's estimate", "steps", least=1)
    target_every: int = setting(250, "gradient steps between updates of the target network", "updates", least=1)
    tau: float = setting(1.0, "share of the network's weights in each update of the target; 1: a copy", above=0, most=1)
    epsilon: float = setting(
        doc="chance of a random action",
        factory=lambda: Schedule(start_value=1.0, end_value=0.05, end=0.1),
        least=0,
        most=1,
    )
    evaluation_epsilon: float = setting(0.0, "the same during evaluation and playback", least=0, most=1)
    double: bool = setting(False, "the network selects the best next action, the target network evaluates it")
    dueling: bool = setting(False, "separate outputs for the state's value and the actions' advantages")
    distribution: Literal["none", "c51", "quantile"] = setting(
        "none", "learn the distribution of returns: probabilities of fixed returns, or quantiles; none: their mean"
    )
    atoms: int = setting(51, "c51: number of fixed returns; quantile: number of quantiles", least=1)
    v_min: float = setting(-10.0, "c51: lowest return")
    v_max: float = setting(10.0, "c51: highest return")
    kappa: float = setting(1.0, "quantile: errors up to this enter the loss squared, larger ones linearly", above=0)
    noisy: bool = setting(False, "explore by learned noise on the weights, drawn anew at every step")
    noisy_sigma: float = setting(0.5, "noisy: initial scale of the noise", above=0)
    priority_alpha: float | None = setting(None, "prioritised replay: power of the TD error; null: uniform", above=0)
    priority_beta: float = setting(
        doc="share of the priorities' bias that importance weights correct; 1: all of it",
        factory=lambda: Schedule(start_value=0.4, end_value=1.0),
        least=0,
        most=1,
    )
    loss: Literal["huber", "mse"] = setting("huber", "loss of a value's error; huber: squared up to 1, linear above")
    normalize_obs: bool = setting(False, "map observations from their bounds to [-1, 1]")
    torso: TorsoConfig = setting(doc="from observations to features", factory=TorsoConfig)
    hidden: NetworkConfig = setting(
        doc="from features to values; dueling: one such network each", factory=lambda: NetworkConfig((64, 64), "relu")
    )

    def __post_init__(self) -> None:
        if self.distribution == "c51" and self.atoms < 2:
            raise ConfigError(f"algorithm.atoms={self.atoms}: must be at least 2 for distribution=c51")
        if self.distribution == "c51" and self.v_min >= self.v_max:
            raise ConfigError(f"algorithm.v_min={self.v_min:g}: must be below algorithm.v_max={self.v_max:g}")
        if self.distribution != "none" and self.loss != "huber":
            other = f"algorithm.distribution={self.distribution} has its own loss"
            raise ConfigError(f"algorithm.loss={self.loss} is for plain values, and {other}")
        if self.hidden.network != "mlp" and self.noisy:
            raise ConfigError("algorithm.hidden.network: noisy is for cadenza's own layers")
        refuse_memory(
            self.torso,
            f"{self.name} learns from single transitions and has no memory",
            f"{self.name} has one network, nothing to share it with",
        )

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        check_single_transitions(self, env)
        self.check_room(num_envs, 2 + self.n_step, f"algorithm.n_step={self.n_step}")
        check_encoder(self)
        check_discrete_actions(self, env)
