"""Settings of TD-MPC and TD-MPC2; the algorithms are in `tdmpc.py`. Torch-free, so that mistakes show at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cadenza.config.algorithm_settings import SMALL_BATCH, SMALL_RATIO, AlgorithmSettings
from cadenza.config.checks import ends, in_unit_interval, positive, refuse_unused
from cadenza.config.networks import OptimizerConfig
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting
from cadenza.config.world_model_settings import LatentModelConfig, PathIntegralConfig
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

EPISODES_SEEN = 5  # gamma=auto: rewards further away than this share of an episode hardly count
UNKNOWN_LENGTH = 0.99  # gamma=auto: where episodes have no limit


def _adam() -> OptimizerConfig:
    return OptimizerConfig(eps=1e-8)


def _policy_adam() -> OptimizerConfig:
    return OptimizerConfig(eps=1e-5)


@dataclass(frozen=True)
class TDMPCConfig(AlgorithmSettings):
    """Plans in a learned latent model, with values beyond them. The defaults are TD-MPC2."""

    one_graph: ClassVar[bool] = True

    name: str = setting("tdmpc2", "name of the variant")
    buffer_size: int = setting(1_000_000, "rows of the replay: transitions, and one for each end of an episode", "rows")
    buffer_on_disk: bool = setting(False, "map the replay from a file instead of holding it in memory")
    priority_alpha: float | None = setting(None, "replay by error to this power; null: uniformly")
    priority_beta: float | Schedule = setting(0.4, "how far weights correct for that")
    warmup_steps: int = setting(2500, "random actions before anything is learned", "env_steps")
    pretrain_updates: int | None = setting(
        None, "gradient steps on what the warm-up brought, before anything is planned; null: one for each of its steps"
    )
    train_every: int = setting(1, "steps collected between updates", "env_steps")
    update_ratio: float = setting(1.0, "gradient steps per env_step collected after the warm-up")
    batch_size: int = setting(256, "stretches of experience in a gradient step")
    horizon: int = setting(3, "steps of each: how far the model is unrolled", "steps")
    rho: float = setting(0.5, "how much less each further step of a stretch counts")
    gamma: float | Literal["auto"] = setting(
        "auto", "discount; auto: by the length of an episode T, 1 - 5 / T, within 0.95 and 0.995"
    )
    model: LatentModelConfig = setting(doc="what is predicted, and how", factory=LatentModelConfig)
    planning: PathIntegralConfig = setting(doc="the search for actions", factory=PathIntegralConfig)
    consistency_coef: float = setting(20.0, "weight of the error of predicted latent states")
    reward_coef: float = setting(0.1, "weight of the loss of predicted rewards")
    value_coef: float = setting(0.1, "weight of the loss of the critics, their mean")
    end_coef: float = setting(1.0, "weight of the loss of predicted ends")
    latent_target: Literal["online", "slow"] = setting(
        "online", "whose latent states are to be predicted: the encoder's, or those of a copy that follows it"
    )
    tau: float = setting(0.01, "how far slow critics (and encoder) move at a time")
    target_every: int = setting(1, "gradient steps between their moves", "updates")
    policy: Literal["squashed", "noisy"] = setting(
        "squashed", "squashed: a normal through tanh that learns its deviation; noisy: one action, and noise around it"
    )
    policy_std: float = setting(0.05, "policy=noisy: deviation of the noise, on a scale of -1 to 1")
    policy_trusts: Literal["min", "mean"] = setting("mean", "what policy and planning take of two critics")
    entropy_coef: float | Schedule = setting(1e-4, "policy=squashed: weight of its entropy")
    scale_values: bool = setting(True, "values that the policy climbs are divided by their spread")
    learning_rate: float | Schedule = setting(3e-4, "the optimizers' step size")
    encoder_rate: float = setting(0.3, "that of the encoder, as a share of it")
    optimizer: OptimizerConfig = setting(doc="what turns gradients into steps", factory=_adam)
    policy_optimizer: OptimizerConfig = setting(doc="the same for the policy", factory=_policy_adam)
    max_grad_norm: float | None = setting(20.0, "gradients of the model are clipped to this norm; null: never")
    policy_max_grad_norm: float | None = setting(20.0, "those of the policy")

    def __post_init__(self) -> None:
        for key in ("buffer_size", "train_every", "batch_size", "horizon", "target_every"):
            if getattr(self, key) < 1:
                raise ConfigError(f"algorithm.{key}={getattr(self, key)}: must be at least 1")
        positive(self, "update_ratio", "learning_rate", "encoder_rate", "max_grad_norm", "policy_max_grad_norm", "tau")
        positive(self, "priority_alpha")
        in_unit_interval(self, "rho", "tau")
        if self.gamma != "auto":
            in_unit_interval(self, "gamma")
        for key in ("consistency_coef", "reward_coef", "value_coef", "end_coef", "policy_std", "warmup_steps"):
            if getattr(self, key) < 0:
                raise ConfigError(f"algorithm.{key}={getattr(self, key):g}: cannot be negative")
        if self.pretrain_updates is not None and self.pretrain_updates < 0:
            raise ConfigError(f"algorithm.pretrain_updates={self.pretrain_updates}: cannot be negative")
        for key in ("entropy_coef", "priority_beta"):
            if min(ends(getattr(self, key))) < 0:
                raise ConfigError(f"algorithm.{key}: cannot be negative")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """What belongs to the other variant would change nothing here, and is better refused than left out silently."""
        model, squashed = self.model, self.policy == "squashed"
        unused = {
            "policy=noisy": ("policy_std",) if squashed else (),
            "policy=squashed": () if squashed else ("entropy_coef",),
            "priority_alpha": ("priority_beta",) if self.priority_alpha is None else (),
            "model.numbers=two_hot": () if model.numbers == "two_hot" else ("model.bins", "model.reach"),
            "model.ends=true": () if model.ends else ("end_coef",),
            "warmup_steps": ("pretrain_updates",) if self.pretrain_updates and not self.warmup_steps else (),
        }
        refuse_unused(self, unused)
        if model.style == "elu" and model.critics != 2:
            what = "TD-MPC (model.style=elu) has 2, and size=… is for TD-MPC2"
            raise ConfigError(f"algorithm.model.critics={model.critics}: {what}")

    def discount(self, env: EnvSpec) -> float:
        if self.gamma != "auto":
            return self.gamma
        length = env.max_episode_steps
        return UNKNOWN_LENGTH if length is None else min(max(1 - EPISODES_SEEN / length, 0.95), 0.995)

    def updates_per_env_step(self, num_envs: int) -> float:
        return self.update_ratio

    def shrunk(self) -> TDMPCConfig:
        return replace(
            self,
            update_ratio=min(self.update_ratio, SMALL_RATIO),
            batch_size=min(self.batch_size, SMALL_BATCH),
            planning=replace(self.planning, iterations=1),
        )

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        import numpy as np
        from gymnasium.spaces import Box, Discrete

        agents = sum(len(group.agents) for group in env.groups.values())
        if agents > 1:
            raise ConfigError(f"{self.name} models the world of one agent; {env.id} has {agents}")
        least = num_envs * (self.horizon + 3)
        if self.buffer_size < least:
            given = f"algorithm.buffer_size={self.buffer_size}"
            raise ConfigError(f"{given}: at least {least} for {num_envs} environments and this horizon")
        (group,) = env.groups.values()
        action = group.action
        if isinstance(action, Discrete):
            raise ConfigError(f"{self.name} plans continuous actions; those of {env.id} are discrete")
        if not isinstance(action, Box) or not np.issubdtype(action.dtype, np.floating):
            raise ConfigError(f"{self.name} takes Box actions of floats; {env.id} has {action}")
        reach = action.high.astype(np.float64) - action.low
        if not ((reach > 0) & (reach < 1e30)).all():
            raise ConfigError(f"{self.name}: the actions of {env.id} need a lower and an upper bound each")
