"""The settings of PlaNet and Dreamer; the algorithms are in `dreamer.py`. They import without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cadenza.config.algorithm_settings import accumulation
from cadenza.config.checks import check_actions, check_one_agent, ends
from cadenza.config.networks import EstimatorConfig, OptimizerConfig, OwnDecoder, OwnDynamics, OwnNetwork, OwnPlanner
from cadenza.config.replay_settings import ReplaySettings
from cadenza.config.setting import setting
from cadenza.config.world_model_settings import PlanningConfig, WorldModelConfig
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec

ACTOR = "behaviour=v1|v2|v3"


@dataclass(frozen=True)
class DreamerConfig(ReplaySettings):
    """A world model, and a behaviour learned (or planned) inside it. The defaults are Dreamer v3."""

    scheduled: ClassVar[str] = (
        "free_nats kl_scale representation_scale kl_balance vector_scale reward_scale continue_scale gamma "
        "return_lambda entropy_coef slow_critic_rate slow_critic_weight replay_value_scale exploration_noise "
        "learning_rate actor_learning_rate critic_learning_rate max_grad_norm"
    )
    one_graph: ClassVar[bool] = True
    has_bf16: ClassVar[bool] = True
    name: str = setting("dreamer_v3", "name of the variant")
    warmup_steps: int = setting(
        1024, "random actions before the first update; at least as many as a sequence needs", "env_steps", least=0
    )
    pretrain_updates: int = setting(0, "gradient steps after the warm-up, before the policy acts", "updates", least=0)
    train_every: int = setting(1, "steps collected between updates", "env_steps", least=1)
    train_ratio: float = setting(
        512.0, "steps replayed per env_step: gradient steps times batch_size times batch_length", "steps", above=0
    )
    batch_size: int = setting(16, "sequences in a gradient step", least=1)
    batch_length: int = setting(64, "steps of each sequence", "steps", least=2)
    stored_latents: bool = setting(
        True, "sequences start from the state last computed there, which the replay stores; false: from the zero state"
    )
    model: WorldModelConfig = setting(doc="the world model", factory=WorldModelConfig)
    encoder: Literal["auto"] | OwnNetwork = setting(
        "auto", "its encoder: by the kinds of observations, or an encoder of yours", sparse=True
    )
    dynamics: Literal["rssm"] | OwnDynamics = setting(
        "rssm", "its latent dynamics: the recurrent state-space model, or a model of yours", sparse=True
    )
    decoder: Literal["auto"] | OwnDecoder = setting(
        "auto", "its decoder: by the kinds of observations, or a decoder of yours", sparse=True
    )
    kl: Literal["planet", "v1", "v2", "v3"] = setting(
        "v3", "the divergence loss between posterior and prior: that of which algorithm"
    )
    free_nats: float = setting(1.0, "divergence that costs nothing", "nats", least=0)
    kl_scale: float = setting(1.0, "weight of the divergence; kl=v3: of its part that trains the prior", least=0)
    representation_scale: float = setting(
        0.1, "weight of the part of the divergence that trains the posterior", least=0, needs="kl=v3"
    )
    kl_balance: float = setting(0.8, "share of the divergence that trains the prior", least=0, most=1, needs="kl=v2")
    vector_scale: float = setting(1.0, "weight of the loss of predicted vectors; 1: unit normal", least=0)
    reward_scale: float = setting(1.0, "weight of the loss of predicted rewards", least=0)
    continue_scale: float = setting(1.0, "weight of the loss of predicted ends", least=0, needs="model.continues")
    behaviour: Literal["plan", "v1", "v2", "v3"] = setting(
        "v3", "plan: actions by search in the model (PlaNet); else the actor and critic of which Dreamer"
    )
    horizon: int = setting(15, "length of imagined trajectories, and of plans", "steps", least=1)
    gamma: float = setting(0.997, "discount", least=0, most=1)
    returns: EstimatorConfig = setting(
        doc="estimator of imagined (and of replayed) returns: one of PPO's estimators of advantages, plus the value",
        factory=lambda: EstimatorConfig("td_lambda"),
        sparse=True,
        needs=ACTOR,
    )
    return_lambda: float = setting(
        0.95, "lambda-return: 1 uses imagined rewards up to the horizon, 0 the next value", least=0, most=1, needs=ACTOR
    )
    entropy_coef: float = setting(3e-4, "weight of the policy's entropy", least=0, needs=ACTOR)
    actor_gradient: Literal["auto", "reinforce", "dynamics"] = setting(
        "reinforce", "likelihood-ratio gradient, or back through the model; auto: as v2, reinforce if discrete"
    )
    actor_head: Literal["bounded_normal", "tanh_normal", "trunc_normal"] = setting(
        "bounded_normal", "distribution of continuous actions: of v3, v1, v2", needs=ACTOR
    )
    actor_std: float = setting(5.0, "initial standard deviation before tanh", above=0, needs="actor_head=tanh_normal")
    actor: Literal["mlp"] | OwnNetwork = setting(
        "mlp", "network of the policy: fully connected layers, or one of yours", sparse=True, needs=ACTOR
    )
    critic: Literal["mlp"] | OwnNetwork = setting("mlp", "that of the critic", sparse=True, needs=ACTOR)
    actor_layers: int = setting(3, "hidden layers of the policy", least=0, needs=ACTOR)
    actor_unimix: float = setting(0.01, "uniform share mixed into discrete actions", least=0, most=1, needs=ACTOR)
    critic_layers: int = setting(3, "hidden layers of the critic", least=0, needs=ACTOR)
    slow_critic_every: int = setting(1, "gradient steps per update of the slow critic; 0: none", "updates", least=0)
    slow_critic_rate: float = setting(
        0.02, "share of the critic's weights in each of these updates", above=0, most=1, needs="slow_critic_every"
    )
    slow_critic_weight: float = setting(
        1.0, "weight of the loss that keeps the critic near the slow one", least=0, needs="behaviour=v3"
    )
    replay_value_scale: float = setting(0.3, "weight of the critic's loss on replay", least=0, needs="behaviour=v3")
    exploration_noise: float = setting(
        0.0, "standard deviation of noise on continuous actions in [-1, 1]; chance of a random discrete one", least=0
    )
    planning: PlanningConfig = setting(doc="the search for actions", factory=PlanningConfig, needs="behaviour=plan")
    planner: Literal["cem"] | OwnPlanner = setting(
        "cem",
        "the search: the cross-entropy method, or a function of yours with its arguments",
        sparse=True,
        needs="behaviour=plan",
    )
    learning_rate: float = setting(4e-5, "step size of the optimizers", above=0)
    actor_learning_rate: float | None = setting(
        None, "step size for the policy; null: learning_rate", above=0, needs=ACTOR
    )
    critic_learning_rate: float | None = setting(
        None, "step size for the critic; null: learning_rate", above=0, needs=ACTOR
    )
    accumulate: int = accumulation()
    optimizer: OptimizerConfig = setting(
        doc="the optimizer", factory=lambda: OptimizerConfig("laprop", eps=1e-20, agc=0.3, warmup=1000)
    )
    max_grad_norm: float | None = setting(None, "clip gradients of each network to this norm; null: never", above=0)

    def __post_init__(self) -> None:
        if self.behaviour == "v3":
            if self.model.reward != "two_hot" or not self.slow_critic_every:
                needs = "model.reward=two_hot and a slow critic (slow_critic_every of at least 1)"
                raise ConfigError(f"algorithm.behaviour=v3: needs {needs}")
            if self.actor_gradient != "reinforce":
                raise ConfigError(f"algorithm.actor_gradient={self.actor_gradient}: behaviour=v3 takes reinforce alone")
        if self.behaviour in ("v1", "v2") and self.horizon < 2:
            raise ConfigError(f"algorithm.horizon={self.horizon}: behaviour={self.behaviour} needs at least 2")
        if self.actor_head == "tanh_normal" and max(ends(self.entropy_coef)) > 0:
            raise ConfigError("algorithm.entropy_coef: actor_head=tanh_normal has no entropy in closed form; use 0")
        if self.behaviour in ("v1", "v2") and self.model.reward != "normal":
            raise ConfigError(f"algorithm.model.reward=two_hot: behaviour={self.behaviour} predicts plain numbers")
        if self.behaviour == "v1" and self.actor_gradient != "dynamics":
            raise ConfigError(f"algorithm.actor_gradient={self.actor_gradient}: behaviour=v1 takes dynamics alone")
        if self.behaviour == "v1" and self.slow_critic_every:
            raise ConfigError(f"algorithm.slow_critic_every={self.slow_critic_every}: behaviour=v1 has none; use 0")
        if self.behaviour == "v1" and max(ends(self.entropy_coef)) > 0:
            raise ConfigError("algorithm.entropy_coef: behaviour=v1 does not reward entropy; use 0")

    @property
    def values_count_arrival(self) -> bool:
        """Whether the value of a state includes the reward for reaching it; v3's does not."""
        return self.behaviour in ("v1", "v2")

    def updates_per_env_step(self, num_envs: int) -> float:
        """Return the number of gradient steps per env_step."""
        return self.train_ratio / (self.batch_size * self.batch_length)

    def shrunk(self) -> DreamerConfig:
        """Return settings with short searches."""
        return replace(self, planning=self.planning.shrunk()) if self.behaviour == "plan" else self

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        check_one_agent(self, env)
        self.check_room(num_envs, self.batch_length + 3, f"algorithm.batch_length={self.batch_length}")
        check_actions(self, env, discrete=self.behaviour != "plan")
