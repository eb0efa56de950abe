"""Settings of PlaNet and Dreamer; the algorithms are in `dreamer.py`. Torch-free, so that mistakes show at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.checks import ends, in_unit_interval, positive, refuse_unused
from cadenza.config.networks import OptimizerConfig
from cadenza.config.schedules import Schedule
from cadenza.config.setting import setting
from cadenza.config.world_model_settings import PlanningConfig, WorldModelConfig
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


def _laprop() -> OptimizerConfig:
    return OptimizerConfig("laprop", eps=1e-20, agc=0.3, warmup=1000)


@dataclass(frozen=True)
class DreamerConfig(AlgorithmSettings):
    """A world model, and a behaviour learned (or planned) inside it. The defaults are Dreamer v3."""

    one_graph: ClassVar[bool] = True
    name: str = setting("dreamer_v3", "name of the variant")
    buffer_size: int = setting(1_000_000, "rows of the replay: transitions, and one for each end of an episode", "rows")
    buffer_on_disk: bool = setting(False, "map the replay from a file instead of holding it in memory")
    warmup_steps: int = setting(
        1024, "random actions before anything is learned, and at least as many as a sequence needs", "env_steps"
    )
    pretrain_updates: int = setting(0, "gradient steps on what the warm-up brought, before the policy acts", "updates")
    train_every: int = setting(1, "steps collected between updates", "env_steps")
    train_ratio: float = setting(
        512.0, "replayed per env_step collected: gradient steps times batch_size times batch_length", "steps"
    )
    batch_size: int = setting(16, "sequences in a gradient step")
    batch_length: int = setting(64, "steps of each", "steps")
    stored_latents: bool = setting(
        True, "sequences begin with the state that was last computed there, kept in the replay; false: with none"
    )
    model: WorldModelConfig = setting(doc="what predicts the world", factory=WorldModelConfig)
    kl: Literal["planet", "v1", "v2", "v3"] = setting(
        "v3", "what pulls posterior and prior together: the divergence loss of which algorithm"
    )
    free_nats: float = setting(1.0, "divergence that costs nothing", "nats")
    kl_scale: float = setting(1.0, "weight of the divergence; kl=v3: of what teaches the prior")
    representation_scale: float = setting(0.1, "kl=v3: weight of what teaches the posterior")
    kl_balance: float = setting(0.8, "kl=v2: share of the divergence that teaches the prior")
    vector_scale: float = setting(1.0, "weight of the loss of predicted vectors; 1: normal with deviation 1")
    reward_scale: float = setting(1.0, "weight of the loss of predicted rewards")
    continue_scale: float = setting(1.0, "weight of the loss of predicted ends")
    behaviour: Literal["plan", "v1", "v2", "v3"] = setting(
        "v3", "plan: actions by search in the model (PlaNet); else the actor and critic of which Dreamer"
    )
    horizon: int = setting(15, "steps imagined from each state that was seen; of a plan", "steps")
    gamma: float = setting(0.997, "discount")
    return_lambda: float = setting(0.95, "how far rewards are trusted over values in returns")
    entropy_coef: float | Schedule = setting(3e-4, "weight of the policy's entropy")
    actor_gradient: Literal["auto", "reinforce", "dynamics"] = setting(
        "reinforce", "by likelihood of actions, or back through the model; auto: as v2, for discrete actions the former"
    )
    actor_head: Literal["bounded_normal", "tanh_normal", "trunc_normal"] = setting(
        "bounded_normal", "how continuous actions are distributed: in v3, v1, v2"
    )
    actor_std: float = setting(5.0, "actor_head=tanh_normal: deviation below the tanh at the start")
    actor_layers: int = setting(3, "hidden layers of the policy")
    actor_unimix: float = setting(0.01, "share of the probability that is spread evenly over discrete actions")
    critic_layers: int = setting(3, "hidden layers of the critic")
    slow_critic_every: int = setting(1, "gradient steps between moves of the slow critic; 0: there is none", "updates")
    slow_critic_rate: float = setting(0.02, "how far it moves at a time")
    slow_critic_weight: float = setting(1.0, "behaviour=v3: weight of the loss that keeps the critic near the slow one")
    replay_value_scale: float = setting(0.3, "behaviour=v3: weight of the critic's loss on what really happened")
    exploration_noise: float | Schedule = setting(
        0.0, "deviation of noise added to continuous actions, on a scale of -1 to 1; chance of any discrete one"
    )
    planning: PlanningConfig = setting(doc="behaviour=plan: the search", factory=PlanningConfig)
    learning_rate: float | Schedule = setting(4e-5, "the optimizers' step size")
    actor_learning_rate: float | Schedule | None = setting(None, "that of the policy; null: learning_rate")
    critic_learning_rate: float | Schedule | None = setting(None, "that of the critic; null: learning_rate")
    optimizer: OptimizerConfig = setting(doc="what turns gradients into steps", factory=_laprop)
    max_grad_norm: float | None = setting(None, "gradients of each network are clipped to this norm; null: never")

    def __post_init__(self) -> None:
        for key in ("buffer_size", "train_every", "batch_size", "horizon"):
            self._at_least(key, 1)
        for key in ("warmup_steps", "pretrain_updates", "actor_layers", "critic_layers", "slow_critic_every"):
            self._at_least(key, 0)
        self._at_least("batch_length", 2)
        positive(self, "train_ratio", "learning_rate", "actor_learning_rate", "critic_learning_rate", "max_grad_norm")
        positive(self, "slow_critic_rate", "actor_std")
        in_unit_interval(self, "gamma", "return_lambda", "kl_balance", "slow_critic_rate", "actor_unimix")
        for key in ("free_nats", "kl_scale", "representation_scale", "vector_scale", "reward_scale", "continue_scale"):
            self._at_least(key, 0)
        for key in ("slow_critic_weight", "replay_value_scale"):
            self._at_least(key, 0)
        for key in ("entropy_coef", "exploration_noise"):
            if min(ends(getattr(self, key))) < 0:
                raise ConfigError(f"algorithm.{key}: cannot be negative")
        self._check_behaviour()
        self._refuse_unused()

    def _at_least(self, key: str, least: int) -> None:
        if getattr(self, key) < least:
            raise ConfigError(f"algorithm.{key}={getattr(self, key)}: must be at least {least}")

    def _check_behaviour(self) -> None:
        if self.behaviour == "v3":
            if self.model.reward != "two_hot" or not self.slow_critic_every:
                needs = "model.reward=two_hot and a slow critic (slow_critic_every of at least 1)"
                raise ConfigError(f"algorithm.behaviour=v3: needs {needs}")
            if self.actor_gradient != "reinforce":
                raise ConfigError(f"algorithm.actor_gradient={self.actor_gradient}: behaviour=v3 knows reinforce alone")
        if self.behaviour in ("v1", "v2") and self.horizon < 2:
            raise ConfigError(f"algorithm.horizon={self.horizon}: behaviour={self.behaviour} needs at least 2")
        if self.actor_head == "tanh_normal" and max(ends(self.entropy_coef)) > 0:
            raise ConfigError("algorithm.entropy_coef: the entropy of actor_head=tanh_normal is not known; take 0")
        if self.behaviour in ("v1", "v2") and self.model.reward != "normal":
            raise ConfigError(f"algorithm.model.reward=two_hot: behaviour={self.behaviour} predicts plain numbers")
        if self.behaviour == "v1" and self.actor_gradient != "dynamics":
            raise ConfigError(f"algorithm.actor_gradient={self.actor_gradient}: behaviour=v1 knows dynamics alone")

    def _refuse_unused(self) -> None:
        """What belongs to another variant would change nothing here, and is better refused than left out silently."""
        model, learned = self.model, self.behaviour != "plan"
        actor = ("entropy_coef", "return_lambda", "actor_head", "actor_layers", "actor_unimix", "actor_learning_rate")
        unused = {
            "kl=v3": () if self.kl == "v3" else ("representation_scale",),
            "kl=v2": () if self.kl == "v2" else ("kl_balance",),
            "behaviour=v3": () if self.behaviour == "v3" else ("slow_critic_weight", "replay_value_scale"),
            "behaviour=plan": () if not learned else ("planning.candidates", "planning.elites", "planning.iterations"),
            "an actor (behaviour=v1, v2 or v3)": () if learned else (*actor, "critic_layers", "critic_learning_rate"),
            "a slow critic (slow_critic_every)": () if self.slow_critic_every else ("slow_critic_rate",),
            "actor_head=tanh_normal": () if self.actor_head == "tanh_normal" else ("actor_std",),
            "model.continues=true": () if model.continues else ("continue_scale", "model.continue_layers"),
            "model.latent=categorical": () if model.latent == "categorical" else ("model.unimix",),
            "model.latent=gaussian": () if model.latent == "gaussian" else ("model.std", "model.min_std"),
            "model.cell=block": () if model.cell == "block" else ("model.blocks",),
        }
        refuse_unused(self, unused)
        if self.behaviour == "v1" and self.slow_critic_every:
            raise ConfigError(f"algorithm.slow_critic_every={self.slow_critic_every}: behaviour=v1 has none; take 0")
        if self.behaviour == "v1" and max(ends(self.entropy_coef)) > 0:
            raise ConfigError("algorithm.entropy_coef: behaviour=v1 does not reward entropy; take 0")

    @property
    def values_count_arrival(self) -> bool:
        """Whether the value of a state includes the reward for getting there; v3's does not."""
        return self.behaviour in ("v1", "v2")

    def updates_per_env_step(self, num_envs: int) -> float:
        return self.train_ratio / (self.batch_size * self.batch_length)

    def shrunk(self) -> DreamerConfig:
        return replace(self, planning=replace(self.planning, iterations=1)) if self.behaviour == "plan" else self

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        import numpy as np
        from gymnasium.spaces import Box, Discrete

        agents = sum(len(group.agents) for group in env.groups.values())
        if agents > 1:
            raise ConfigError(f"{self.name} models the world of one agent; {env.id} has {agents}")
        least = num_envs * (self.batch_length + 3)
        if self.buffer_size < least:
            given = f"algorithm.buffer_size={self.buffer_size}"
            raise ConfigError(f"{given}: at least {least} for {num_envs} environments and this batch_length")
        (group,) = env.groups.values()
        action = group.action
        if isinstance(action, Discrete):
            if self.behaviour == "plan":
                raise ConfigError(f"{self.name} plans continuous actions; those of {env.id} are discrete")
        elif not isinstance(action, Box) or not np.issubdtype(action.dtype, np.floating):
            raise ConfigError(f"{self.name} takes Discrete actions and Box actions of floats; {env.id} has {action}")
        else:
            reach = action.high.astype(np.float64) - action.low
            if not ((reach > 0) & (reach < 1e30)).all():
                raise ConfigError(f"{self.name}: the actions of {env.id} need a lower and an upper bound each")
