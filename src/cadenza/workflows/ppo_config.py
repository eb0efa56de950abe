"""The settings of PPO; the algorithm is in `ppo.py`. They import without torch, so that mistakes show at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from cadenza.config.algorithm_settings import AlgorithmSettings, accumulation
from cadenza.config.checks import check_actor_critic
from cadenza.config.networks import (
    CriticConfig,
    EstimatorConfig,
    HeadConfig,
    NetworkConfig,
    OptimizerConfig,
    TorsoConfig,
)
from cadenza.config.setting import setting
from cadenza.errors import ConfigError, nearest
from cadenza.types import EnvSpec, GroupSpec

# what all groups of a run have in common
COMMON = ("name", "n_steps", "buffer_on_disk", "accumulate", "update", "order", "rewards", "groups")


@dataclass(frozen=True)
class PPOConfig(AlgorithmSettings):
    """Proximal Policy Optimization, of one agent or of a team."""

    has_graphs: ClassVar[bool] = True
    scheduled: ClassVar[str] = (
        "learning_rate gamma gae_lambda clip_range value_clip_range entropy_coef value_coef max_grad_norm target_kl"
    )
    name: str = setting("ppo", "name of the variant")
    n_steps: int = setting(128, "steps collected in each environment before an update", "vec_steps", least=1)
    buffer_on_disk: bool = setting(False, "map the rollout from files instead of holding it in memory")
    batch_size: int | float = setting(
        0.25, "minibatch, which must divide the rollout; in (0, 1] a fraction of the rollout", "env_steps", above=0
    )
    accumulate: int = accumulation()
    n_epochs: int = setting(10, "passes over each rollout", least=1)
    learning_rate: float = setting(3e-4, "step size of the optimizer", above=0)
    optimizer: OptimizerConfig = setting(doc="the optimizer", factory=OptimizerConfig)
    gamma: float = setting(0.99, "discount", least=0, most=1)
    advantage: EstimatorConfig = setting(
        doc="estimator of advantages and value targets", factory=lambda: EstimatorConfig("gae"), sparse=True
    )
    gae_lambda: float = setting(0.95, "bias-variance trade-off of the advantage estimate", least=0, most=1)
    clip_range: float = setting(
        0.2, "largest deviation of the probability ratio from 1 that the objective rewards", above=0
    )
    value_clip_range: float | None = setting(None, "largest change of a value in an update; null: any", above=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    value_coef: float = setting(0.5, "weight of the value loss")
    max_grad_norm: float | None = setting(0.5, "clip gradients of each group to this norm; null: never", above=0)
    target_kl: float | None = setting(
        None, "end an update when the KL divergence from the old policy exceeds 1.5 times this; null: never", above=0
    )
    normalize_advantage: bool = setting(True, "standardise advantages within each minibatch")
    normalize_obs: bool | Literal["rolling", "static"] = setting(
        False, "put observations on one scale: rolling (or true) by their statistics so far, static by their bounds"
    )
    normalize_reward: bool = setting(False, "divide rewards by the standard deviation of the discounted return so far")
    normalize_value: bool = setting(False, "the critic learns returns standardised by their statistics so far")
    update: Literal["together", "sequential"] = setting(
        "together", "groups of a team learn independently, or one after another, each weighting by the others' changes"
    )
    order: Literal["random", "fixed"] = setting("random", "sequential: order of groups; random: drawn per rollout")
    rewards: Literal["own", "team"] = setting("own", "reward of an agent: its own, or the sum of its team's")
    groups: Mapping[str, Any] = setting(
        doc="settings that differ for single groups, by the name of a group, or of a type of agents", factory=dict
    )
    torso: TorsoConfig = setting(doc="from observations to features", factory=TorsoConfig)
    actor: NetworkConfig = setting(doc="policy network", factory=NetworkConfig)
    critic: CriticConfig = setting(doc="value network", factory=CriticConfig)
    head: HeadConfig = setting(doc="distribution of continuous actions", factory=HeadConfig)

    def __post_init__(self) -> None:
        if self.batch_size > 1 and self.batch_size != int(self.batch_size):
            where = f"algorithm.batch_size={self.batch_size}"
            raise ConfigError(f"{where}: must be a whole number of env_steps, or a fraction in (0, 1]")
        length, burn_in = self.sequence_length, self.torso.memory.burn_in
        if self.n_steps % length:
            where = f"algorithm.torso.memory.sequence_length={length}"
            raise ConfigError(f"{where} does not divide algorithm.n_steps={self.n_steps}")
        if burn_in > self.n_steps - length:
            where = f"algorithm.torso.memory.burn_in={burn_in}"
            raise ConfigError(f"{where}: a rollout of {self.n_steps} steps has no more than {self.n_steps - length}")

    def by_group(self, groups: Mapping[str, GroupSpec]) -> dict[str, PPOConfig]:
        """Return the settings of each group: those under its name, else those under the type of all its agents."""
        kinds = {name: group.kind for name, group in groups.items() if group.kind not in groups}
        return {name: self.for_group(name if name in self.groups else kinds.get(name) or name) for name in groups}

    def for_group(self, group: str) -> PPOConfig:
        """Return the settings under the name of a group, or of a type of agents."""
        changes = self.groups.get(group)
        if changes is None:
            return self
        from cadenza.config.convert import build, to_dict

        where = f"algorithm.groups.{group}"
        if not isinstance(changes, Mapping):
            raise ConfigError(f"{where}={changes}: must be settings of this group")
        for key in changes:
            if key in COMMON:
                raise ConfigError(f"{where}.{key}: the same for all groups; set algorithm.{key}")
        base, torso = to_dict(self), changes.get("torso")
        memory = torso.get("memory") if isinstance(torso, Mapping) else None
        if isinstance(memory, Mapping) and memory.get("type") == "none":  # without the sequences of the common memory
            base = merged(base, {"torso": {"memory": {"sequence_length": None, "burn_in": 0}}})
        return build(type(self), {**merged(base, changes), "groups": {}}, where)

    @property
    def default_groups(self) -> str:
        """`agent`, a group for each agent, where groups learn one after another and so share no networks."""
        return "agent" if self.update == "sequential" else "auto"

    @property
    def sequence_length(self) -> int:
        """The length of training sequences; 1 without a memory."""
        memory = self.torso.memory
        return 1 if memory.type == "none" else memory.sequence_length or self.n_steps

    def minibatch(self, num_envs: int) -> int:
        """Return the number of sequences (steps, without a memory) in a minibatch."""
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

    def updates_per_env_step(self, num_envs: int) -> float:
        """Return the number of gradient steps per env_step."""
        return self.n_epochs / (self.minibatch(num_envs) * self.sequence_length)

    def for_one_environment(self, num_envs: int) -> PPOConfig:
        """Return settings with longer rollouts, but with the same sequences for memories."""

        def length(config: PPOConfig) -> int | None:
            return None if config.torso.memory.type == "none" else config.sequence_length

        torso = replace(self.torso, memory=replace(self.torso.memory, sequence_length=length(self)))
        groups = {
            name: merged(settings, {"torso": {"memory": {"sequence_length": length(self.for_group(name))}}})
            for name, settings in self.groups.items()
        }
        return replace(self, n_steps=self.n_steps * num_envs, torso=torso, groups=groups)

    def check(self, env: EnvSpec, num_envs: int) -> None:
        """Refuse environments this algorithm cannot act in, and sizes that do not fit."""
        names = dict.fromkeys([*env.groups, *(group.kind for group in env.groups.values() if group.kind)])
        for name in self.groups:
            if name not in names:
                choices = f"(groups and types: {', '.join(names)}; environment.groups makes others)"
                raise ConfigError(f"algorithm.groups.{name}: no such group or type{nearest(name, names)} {choices}")
        for name, config in self.by_group(env.groups).items():
            config.minibatch(num_envs)
            check_actor_critic(config, EnvSpec(env.id, {name: env.groups[name]}) if self.groups else env)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with changes; blocks are merged likewise."""
    both = {**base, **changes}
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) and "schedule" not in value:
            both[key] = merged(base[key], value)
    return both
