"""The settings of TD-MPC and TD-MPC2; the algorithms are in `tdmpc.py`. They import without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cadenza.config.algorithm_settings import accumulation
from cadenza.config.checks import check_actions, check_one_agent
from cadenza.config.networks import OptimizerConfig, OwnDynamics, OwnNetwork, OwnPlanner
from cadenza.config.replay_settings import OffPolicySettings
from cadenza.config.setting import setting, with_default
from cadenza.config.world_model_settings import LatentModelConfig, PathIntegralConfig
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

EPISODES_SEEN = 5  # gamma=auto: rewards further away than this share of an episode hardly count
UNKNOWN_LENGTH = 0.99  # gamma=auto: where episodes have no limit


@dataclass(frozen=True)
class TDMPCConfig(OffPolicySettings):
    """Planning in a learned latent model, with learned values beyond the plans. The defaults are TD-MPC2."""

    scheduled: ClassVar[str] = (
        "priority_beta rho gamma consistency_coef reward_coef value_coef end_coef tau entropy_coef learning_rate "
        "encoder_rate max_grad_norm policy_max_grad_norm"
    )
    one_graph: ClassVar[bool] = True

    name: str = setting("tdmpc2", "name of the variant")
    priority_alpha: float | None = setting(None, "prioritised replay: power of the TD error; null: uniform", above=0)
    priority_beta: float = setting(
        0.4, "share of the priorities' bias that importance weights correct", least=0, needs="priority_alpha"
    )
    warmup_steps: int = with_default(OffPolicySettings, "warmup_steps", 2500)
    pretrain_updates: int | None = setting(
        None, "gradient steps after the warm-up, before the first plan; null: one per step of the warm-up", least=0
    )
    batch_size: int = setting(256, "sequences in a gradient step", least=1)
    horizon: int = setting(3, "steps of each sequence: how far the model is unrolled", "steps", least=1)
    rho: float = setting(0.5, "factor by which the loss shrinks with each step of a sequence", least=0, most=1)
    gamma: float | Literal["auto"] = setting(
        "auto", "discount; auto: by the length of an episode T, 1 - 5 / T, within 0.95 and 0.995", least=0, most=1
    )
    model: LatentModelConfig = setting(doc="the latent model", factory=LatentModelConfig)
    encoder: Literal["auto"] | OwnNetwork = setting(
        "auto", "its encoder, before the hidden layers: by the kinds of observations, or one of yours", sparse=True
    )
    dynamics: Literal["mlp"] | OwnDynamics = setting(
        "mlp", "its latent dynamics: fully connected layers, or a network of yours from latent and action", sparse=True
    )
    critic: Literal["mlp"] | OwnNetwork = setting(
        "mlp", "network of each critic: fully connected layers, or one of yours from latent and action", sparse=True
    )
    planning: PathIntegralConfig = setting(doc="the search for actions", factory=PathIntegralConfig)
    planner: Literal["mppi"] | OwnPlanner = setting(
        "mppi", "the search: MPPI, or a function of yours with its arguments", sparse=True
    )
    consistency_coef: float = setting(20.0, "weight of the error of predicted latent states", least=0)
    reward_coef: float = setting(0.1, "weight of the loss of predicted rewards", least=0)
    value_coef: float = setting(0.1, "weight of the mean loss of the critics", least=0)
    end_coef: float = setting(1.0, "weight of the loss of predicted ends", least=0, needs="model.ends")
    latent_target: Literal["online", "slow"] = setting(
        "online", "targets for predicted latent states: the encoder's, or those of a slowly following copy"
    )
    tau: float = setting(0.01, "share of the weights in each update of the slow critics (and encoder)", above=0, most=1)
    target_every: int = setting(1, "gradient steps between these updates", "updates", least=1)
    policy: Literal["squashed", "noisy"] | OwnNetwork = setting(
        "squashed",
        "squashed: a tanh-squashed normal with a learned deviation; noisy: one action, plus noise; or one of yours, "
        "made with latent and actions",
    )
    policy_std: float = setting(0.05, "standard deviation of the noise, in [-1, 1]", least=0, needs="policy=noisy")
    policy_trusts: Literal["min", "mean"] = setting("mean", "which of two critics' estimates policy and planning use")
    entropy_coef: float = setting(1e-4, "weight of the policy's entropy", least=0, needs="policy=squashed|yours")
    scale_values: bool = setting(True, "divide the values that the policy maximises by their spread")
    learning_rate: float = setting(3e-4, "step size of the optimizers", above=0)
    encoder_rate: float = setting(0.3, "step size for the encoder, as a share of learning_rate", above=0)
    accumulate: int = accumulation()
    optimizer: OptimizerConfig = setting(doc="the optimizer", factory=lambda: OptimizerConfig(eps=1e-8))
    policy_optimizer: OptimizerConfig = setting(doc="the policy's optimizer", factory=lambda: OptimizerConfig(eps=1e-5))
    max_grad_norm: float | None = setting(20.0, "clip gradients of the model to this norm; null: never", above=0)
    policy_max_grad_norm: float | None = setting(20.0, "the same for the policy's gradients", above=0)

    def __post_init__(self) -> None:
        if self.pretrain_updates and not self.warmup_steps:
            raise ConfigError(f"algorithm.pretrain_updates={self.pretrain_updates}: does nothing without warmup_steps")
        if self.model.style == "elu" and self.model.critics != 2:
            why = "TD-MPC (model.style=elu) has 2, and size=… is for TD-MPC2"
            raise ConfigError(f"algorithm.model.critics={self.model.critics}: {why}")

    def discount(self, env: EnvSpec) -> float:
        """Return the discount for an environment."""
        if not isinstance(self.gamma, str):
            return self.gamma
        length = env.max_episode_steps
        return UNKNOWN_LENGTH if length is None else min(max(1 - EPISODES_SEEN / length, 0.95), 0.995)

    def shrunk(self) -> TDMPCConfig:
        """Return settings with few and small gradient steps and short searches."""
        return replace(super().shrunk(), planning=self.planning.shrunk())

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        check_one_agent(self, env)
        self.check_room(num_envs, self.horizon + 3, f"algorithm.horizon={self.horizon}")
        check_actions(self, env, discrete=False)
