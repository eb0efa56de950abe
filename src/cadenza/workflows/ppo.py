"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347) for any number of agent groups.

Each group has its own networks, optimizer and normaliser, shared by its agents. Settings: `ppo_config.py`. Updates of
all groups together, from their own rewards, are IPPO, and MAPPO with a central critic (Yu et al. 2022,
arXiv:2103.01955). Sequential updates, weighted by how those before changed the team's policy, are HAPPO (Kuba et al.
2022, arXiv:2109.11251). On a CPU, a hand-written kernel computes the gradient of `_loss` where it supports the network;
if `_loss` is edited or overridden, that is noticed before the first step and autograd computes it.
Letters in shapes: T steps, N environments, A agents of the group; S sequences of L steps each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from cadenza.config.schedules import TimedSettings, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.rollout import Rollout, RolloutStore
from cadenza.nets.actor_critic import ActorCritic, ActorCriticOutput, act
from cadenza.nets.normalisers import RewardScale, ValueScale
from cadenza.nets.numpy.actor_critic_kernel import (
    ActorCriticKernel,
    Minibatch,
    actor_critic_kernel,
    example_samples,
    has_example,
    minibatches,
)
from cadenza.nets.observe import CriticView, ObservationTensors, Observer
from cadenza.nets.optimizers import Optimizer, in_parts, optimizer
from cadenza.ops.returns import explained_variance
from cadenza.ops.surrogate import FIGURES, ClippedObjective, Terms
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Credit, Explained, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.parts import Parts, both, estimator, own_states, takes_ratio
from cadenza.workflows.ppo_config import PPOConfig

if TYPE_CHECKING:
    from cadenza.nets.deployed import Deployed

TERMS = 16_384  # rows of minibatches whose figures are computed together
Part = Literal["all", "value", "policy"]
FIGURES_OF: dict[Part, tuple[str, ...]] = {  # what an update of this part reports
    "all": FIGURES,
    "value": ("value_loss",),
    "policy": ("policy_loss", "entropy", "kl", "clip_fraction"),
}


@dataclass(frozen=True)
class Samples:
    """A group's rollout as samples: S sequences of L steps, each [L, S, A, …]. Without a memory L is 1."""

    obs: ObservationTensors
    critic_obs: ObservationTensors | None  # None: the same
    first: Tensor  # whether an episode starts
    action: Tensor
    mask: Tensor | None
    weight: Tensor  # 1 where the agent acted and the step counts, else 0
    value_weight: Tensor  # the same for the critic, which may learn from more steps
    factor: Tensor | None  # likelihood ratio of the actions of the groups updated before; None: this is the first
    advantage: Tensor
    target: Tensor  # of the value
    old_value: Tensor
    old_log_prob: Tensor
    carry: Tree  # the memory before each sequence, [S, A, …]

    def rows(self, index: Tensor) -> Samples:
        """Return the sequences at `index`."""
        steps = {name: part for name, part in vars(self).items() if name != "carry"}
        selected = map_tree(lambda x: None if x is None else x.index_select(1, index), steps)
        return Samples(**selected, carry=map_tree(lambda x: x.index_select(0, index), self.carry))

    def slice(self, start: int, count: int) -> Samples:
        """Return `count` sequences from `start` on, without copying them."""
        steps = {name: part for name, part in vars(self).items() if name != "carry"}
        selected = map_tree(lambda x: None if x is None else x.narrow(1, start, count), steps)
        return Samples(**selected, carry=map_tree(lambda x: x.narrow(0, start, count), self.carry))


class PPO:
    """Proximal Policy Optimization, and its variants A2C, IPPO, MAPPO and HAPPO."""

    hooks = ("update", "update_value", "update_policy")
    joint_hooks = ("update_value", "update_policy")  # of one rollout: both together are `update`

    def __init__(self, config: PPOConfig, context: Context) -> None:
        self.config = config
        self.context = context
        self.device = context.device
        self._compiled_loss: Callable[..., tuple[Tensor, Tensor]] = self._loss
        if config.accumulate == 1:
            self._compiled_loss = context.compiled(self._loss)
        self.configs = config.by_group(context.env.groups)
        self.timed = {name: TimedSettings(settings) for name, settings in self.configs.items()}
        self.nets: dict[str, ActorCritic] = {}
        self.kernels: dict[str, ActorCriticKernel] = {}  # hand-written, where they support the network
        self.optimizers: dict[str, Optimizer] = {}
        self.observers: dict[str, Observer] = {}
        self.views: dict[str, CriticView] = {}  # of critics that observe something other than the policy
        self.estimators = {
            name: estimator(settings.advantage, "algorithm.advantage") for name, settings in self.configs.items()
        }
        self.by_ratio = {name: takes_ratio(estimate) for name, estimate in self.estimators.items()}
        self.reward_scales: dict[str, RewardScale] = {}
        self.value_scales: dict[str, ValueScale] = {}
        self._graphs: dict[tuple[str, Part], Callable[[Tree], Tree]] = {}  # of epochs
        self.dead: dict[str, Tensor] = {}  # agents dead at the end of the last rollout [N, A]
        self.log_factors: dict[str, Tensor] = {}  # of a sequential update, by team [T, N]
        for name, group in context.env.groups.items():
            settings = self.configs[name]
            is_raw, sees = settings.torso.encoder != "auto", settings.critic.sees
            if sees != "own":
                extras = (sees == "both", settings.torso.memory.type != "none")
                self.views[name] = CriticView(context.env, name, *extras, self.device, settings.normalize_obs, is_raw)
            critic_space = self.views[name].space if name in self.views else None
            net = self.nets[name] = ActorCritic(group, settings, critic_space).to(self.device)
            self.optimizers[name] = optimizer(net, settings.optimizer, net.parts())
            if context.kernels == "numpy" and (kernel := actor_critic_kernel(net)):
                self.kernels[name] = kernel
            self.observers[name] = Observer(group.observation, self.device, settings.normalize_obs, is_raw)
            agents = len(group.agents)
            self.dead[name] = torch.zeros(context.num_envs, agents, dtype=torch.bool, device=self.device)
            if settings.normalize_reward:
                gamma = value_at(settings.gamma, now=0, horizon=1)
                self.reward_scales[name] = RewardScale(context.num_envs, agents, gamma, self.device)
            if settings.normalize_value:
                self.value_scales[name] = ValueScale(self.device)
        normalisers: dict[str, Any] = {
            **self.observers,
            **{f"{name}.critic": view for name, view in self.views.items()},
            **{f"{name}.value": scale for name, scale in self.value_scales.items()},
            **{f"{name}.reward": scale for name, scale in self.reward_scales.items()},
        }
        starts = [
            self._sequences(name, config.n_steps)[0][0].tolist() for name, net in self.nets.items() if net.has_memory
        ]
        self.carry_at = sorted(
            {step for steps in starts for step in steps}
        )  # the steps before which carries are stored
        kinds: dict[str, Any] = {"networks": self.nets, "optimizers": self.optimizers, "normalisers": normalisers}
        self.parts = Parts(**kinds, **own_states(**self.estimators))

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        groups = self.context.env.groups
        return {name: net.initial_carry(num_envs, len(groups[name].agents)) for name, net in self.nets.items()}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Choose actions. Log-probabilities and values are computed by the update in one batch, by the same networks.

        Networks of images note them here: they cost one head more, and in the update a second pass over all images.
        """
        kernels, keep_outputs = self.kernels, mode.explore
        return act(self.nets, kernels, self.observers, step, carry, mode, self.views, keep_outputs=keep_outputs)

    def deployed(self, group: str) -> Deployed:
        from cadenza.nets.deployed import deployed_actor_critic

        return deployed_actor_critic(self.nets[group], self.observers[group])

    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return action probabilities (or means and deviations) and values."""
        from cadenza.nets.opinions import actor_critic_opinions

        opinions, after = actor_critic_opinions(self.nets, self.observers, steps, carry, self.views, self.value_scales)
        return Explained(opinions, after, {name: self._credit(name, mode.phase) for name in self.nets})

    def _credit(self, name: str, phase: PhaseInfo) -> Credit:
        config, scale = self.timed[name].at(phase), self.reward_scales.get(name)
        team, estimate = self.config.rewards == "team", self.estimators[name]
        credit = Credit(config.gamma, config.gae_lambda, team=team, estimate=estimate)
        return credit if scale is None else credit._replace(reward_scale=scale.deviation(), reward_clip=scale.clip)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    # learning

    def update(self, store: RolloutStore, phase: PhaseInfo) -> Updated:
        """Learn from one rollout: several epochs of minibatches, group after group."""
        return self._update(store, phase)

    def update_value(self, store: RolloutStore, phase: PhaseInfo) -> Updated:
        """Train the critic alone; the policy, and a torso that it shares with the critic, stay as they are."""
        return self._update(store, phase, "value")

    def update_policy(self, store: RolloutStore, phase: PhaseInfo) -> Updated:
        """Train the policy alone, with the torso that it may share with the critic."""
        return self._update(store, phase, "policy")

    def _update(self, store: RolloutStore, phase: PhaseInfo, part: Part = "all") -> Updated:
        """Train the policy, the critic or all of each group on a rollout."""
        rollout = store.take()
        metrics: dict[str, Any] = {}
        updates = 0
        self.reset_factor()
        for name in self._order():
            samples, again = self._prepare(name, rollout, phase)
            if not samples.weight.any():  # no agent of this group acted
                continue
            before = self._likelihood(name, rollout) if self._is_sequential else None
            group_updates, group_metrics = self._fit(name, samples, phase, part, again)
            updates += group_updates
            prefix = "train/" if len(self.nets) == 1 else f"train/{name}/"
            metrics |= {prefix + key: value for key, value in group_metrics.items()}
            if before is not None:
                self.update_factor(name, before, self._likelihood(name, rollout))
            # only now, so that this rollout was acted on and learned from with the same normalisation
            acted = self._tensor(rollout.groups[name]["active"])
            self.observers[name].learn(rollout.groups[name]["obs"], acted)
            if name in self.views:
                self.views[name].learn(observations(rollout), rollout.state, acted)
        return Updated(updates, metrics)

    def reset_factor(self) -> None:
        """Begin a sequential update: the factor of every team is one."""
        self.log_factors = {}

    def factor(self, name: str) -> Tensor | None:
        """Return the weights [T, N] of a group's policy loss, by the groups of its team before; None: all are one."""
        log_factor = self.log_factors.get(self.context.env.groups[name].team)
        return None if log_factor is None else log_factor.exp()

    def update_factor(self, name: str, before: Tensor, after: Tensor) -> None:
        """Multiply the factor of a group's team by the likelihood ratio of the group's actions.

        `before` and `after` its update are the log-probabilities of its joint actions [T, N].
        """
        team = self.context.env.groups[name].team
        self.log_factors[team] = self.log_factors.get(team, 0) + after - before

    @property
    def _is_sequential(self) -> bool:
        return self.config.update == "sequential" and len(self.nets) > 1

    def _order(self) -> list[str]:
        """Return the groups in the order of their updates."""
        names = list(self.nets)
        if self.config.update == "together" or self.config.order == "fixed":
            return names
        return [names[index] for index in self.context.streams.numpy("order").permutation(len(names))]

    @torch.no_grad()
    def _prepare(self, name: str, rollout: Rollout, phase: PhaseInfo) -> tuple[Samples, Callable[[], Samples] | None]:
        """Return a group's samples, and the function that estimates their advantages anew, where an estimator does.

        Samples have advantages and value targets, and are cut into sequences.
        """
        data, config = rollout.groups[name], self.timed[name].at(phase)
        acted, is_first = self._tensor(data["active"]), self._tensor(rollout.is_first)[..., None]
        first, factor = is_first.expand(acted.shape), self.factor(name)
        alive = self._alive(name, first, self._tensor(data["died"])) & self._tensor(anyone_acted(rollout))[..., None]
        reward, terminated = self._earned(name, rollout)
        ended = terminated | self._tensor(rollout.truncated)[..., None]
        if name in self.reward_scales:
            self.reward_scales[name].gamma = config.gamma
            reward = self.reward_scales[name](reward, ended, alive, first)
        steps: dict[str, Any] = {
            **dict(zip(("obs", "critic_obs"), self._observe(name, observations(rollout), rollout.state), strict=True)),
            "first": first,
            "action": self._tensor(data["action"]),
            "mask": self._tensor(data["mask"]) if "mask" in data else None,
            "factor": None if factor is None else factor[..., None].expand(acted.shape),
        }
        carry = map_tree(self._tensor, rollout.carry.get(name, {}))  # [before some steps, N, A, …]
        earned = (reward, terminated, ended, alive)
        steps["old_log_prob"], steps["old_value"], next_value = self._judge(name, rollout, steps, carry, ended)
        estimates = self._estimate(name, config, earned, steps["old_value"], next_value)

        @torch.no_grad()
        def again() -> Samples:
            """Estimate by the present policy and critic."""
            log_prob, value, next_value = self._judge(name, rollout, steps, carry, ended, noted=False)
            ratio = (log_prob - steps["old_log_prob"]).exp().masked_fill(~acted, 1.0)  # idle agents choose nothing
            estimates = self._estimate(name, config, earned, value, next_value, ratio)
            return self._cut(name, {**steps, **estimates}, acted, alive, carry)

        samples = self._cut(name, {**steps, **estimates}, acted, alive, carry)
        return samples, again if self.by_ratio[name] else None

    def _estimate(
        self,
        name: str,
        config: PPOConfig,
        earned: tuple[Tensor, Tensor, Tensor, Tensor],
        value: Tensor,
        next_value: Tensor,
        ratio: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return advantages and value targets.

        `earned` are rewards, where episodes terminated or ended, and where agents were alive, [T, N, A]. `ratio` is the
        likelihood of the actions by the present policy per that by the one that acted.
        """
        reward, terminated, ended, alive = earned
        scale = self.value_scales.get(name)
        if scale is not None:
            value, next_value = scale.to_returns(value), scale.to_returns(next_value)
        next_value = next_value.masked_fill(terminated, 0.0)
        settings: dict[str, Any] = {} if ratio is None else {"ratio": ratio}
        estimate, numbers = self.estimators[name], (config.gamma, config.gae_lambda)
        advantage, target = both(estimate(reward, value, next_value, ended, *numbers, **settings), value)
        if scale is not None:
            if ratio is None:
                scale.learn(target[alive])
            target = scale.from_returns(target)
        return {"advantage": advantage, "target": target}

    def _cut(self, name: str, steps: dict[str, Any], acted: Tensor, alive: Tensor, carry: Tree) -> Samples:
        """Cut the steps of a rollout [T, N, A, …] into sequences [L, S, A, …]."""
        times, counts = self._sequences(name, len(acted))
        counts = counts[..., None, None]
        if len(times) == 1:  # single steps, all of them in order: views where possible, as a rollout may be large
            sequences = map_tree(lambda x: None if x is None else x[None].flatten(1, 2), steps)
        else:
            sequences = map_tree(lambda x: None if x is None else x[times].flatten(1, 2), steps)
        weight = (acted.float()[times] * counts).flatten(1, 2)
        value_weight = weight if torch.equal(alive, acted) else (alive.float()[times] * counts).flatten(1, 2)
        carry = map_tree(lambda x: x[[self.carry_at.index(t) for t in times[0].tolist()]].flatten(0, 1), carry)
        return Samples(**sequences, weight=weight, value_weight=value_weight, carry=carry)

    def _judge(
        self, name: str, rollout: Rollout, steps: dict[str, Any], carry: Tree, ended: Tensor, noted: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-probability of every action, the value of its step and of the observation after it [T, N, A].

        The observation after the last step of an episode is its true final one. What networks of images noted while
        acting is used if `noted`.
        """
        net, data, first, critic_obs = self._network(name), rollout.groups[name], steps["first"], steps["critic_obs"]
        if "output" in data and noted:
            result = ActorCriticOutput(self._tensor(data["output"]), self._tensor(data["value"]), {})
        else:
            result = net(steps["obs"], map_tree(lambda x: x[0], carry), first, True, critic_obs)
        after, after_critic = map(one_step, self._observe(name, rollout.after_obs, rollout.after_state))
        last = net(after, map_tree(lambda x: x[-1], result.carries), ended[-1:], False, after_critic).value
        value, next_value = result.value.expand(ended.shape), torch.cat([result.value[1:], last]).expand(ended.shape)
        if len(rollout.final_index[0]):
            ends = tuple(self._tensor(index) for index in rollout.final_index)
            final, final_critic = map(one_step, self._observe(name, rollout.final_obs, rollout.final_state))
            before, next_value = map_tree(lambda x: x[ends], result.carries), next_value.clone()
            next_value[ends] = net(final, before, torch.zeros_like(ended[ends])[None], False, final_critic).value[0]
        head = self.nets[name].head
        return head.evaluate(result.output, steps["mask"], steps["action"])[0], value, next_value

    def _network(self, name: str) -> Callable[..., ActorCriticOutput]:
        """Return a group's network, or the kernel that computes it."""
        if name not in self.kernels:
            return self.nets[name]
        kernel = self.kernels[name]

        def judge(
            obs: ObservationTensors, carry: Tree, first: Tensor, carries: bool, critic_obs: Any
        ) -> ActorCriticOutput:
            return kernel.judge(obs, critic_obs)

        return judge

    def _observe(
        self, name: str, obs: dict[str, Tree], state: np.ndarray | None
    ) -> tuple[ObservationTensors, ObservationTensors | None]:
        """Return the observations of a group's policy, and those of its critic if they differ."""
        return self.observers[name](obs[name]), self.views[name](obs, state) if name in self.views else None

    def _earned(self, name: str, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return rewards [T, N, A], and where no future counts: after an end, and after the death of a lone agent."""
        data, groups = rollout.groups[name], self.context.env.groups
        reward, over = self._tensor(data["reward"]), self._tensor(rollout.terminated)[..., None]
        if self.config.rewards == "own":
            return reward, over | self._tensor(data["died"])
        mates = [other for other, group in groups.items() if group.team == groups[name].team]
        total = torch.stack([self._tensor(rollout.groups[other]["reward"]).sum(-1) for other in mates]).sum(0)
        return total[..., None].expand(reward.shape), over.expand(reward.shape)

    def _alive(self, name: str, first: Tensor, died: Tensor) -> Tensor:
        """Return whose values are learned [T, N, A]: not the dead's; with a team's rewards, everyone's."""
        if self.config.rewards == "team":
            return torch.ones_like(died)
        dead, alive = self.dead[name], torch.ones_like(died)
        if dead.any() or died.any():
            for step in range(len(died)):
                dead = dead & ~first[step]
                alive[step] = ~dead
                dead = dead | died[step]
        self.dead[name] = dead
        return alive

    @torch.no_grad()
    def _likelihood(self, name: str, rollout: Rollout) -> Tensor:
        """Return the log-probability of the joint actions of this group by its present policy [T, N]."""
        net, data = self.nets[name], rollout.groups[name]
        carry = map_tree(lambda x: self._tensor(x[0]), rollout.carry.get(name, {}))
        acted = self._tensor(data["active"])
        first = self._tensor(rollout.is_first)[..., None].expand(acted.shape)
        output, _ = net.policy(self.observers[name](data["obs"]), carry, first, carries=False)
        mask = self._tensor(data["mask"]) if "mask" in data else None
        log_prob, _ = net.head.evaluate(output, mask, self._tensor(data["action"]))
        return log_prob.masked_fill(~acted, 0.0).sum(-1)

    def _sequences(self, name: str, n_steps: int) -> tuple[Tensor, Tensor]:
        """Return the steps of each sequence [L, C] of a group, and which count: burn-in only warms up the memory."""
        length, burn_in = self.configs[name].sequence_length, self.configs[name].torso.memory.burn_in
        starts = torch.arange(0, n_steps, length, device=self.device)
        # the first sequence has no steps before it: it runs on a little instead, so that all are equally long
        times = (starts - burn_in).clamp(min=0) + torch.arange(length + burn_in, device=self.device)[:, None]
        counts = (times >= starts) & (times < starts + length) & (times < n_steps)
        return times.clamp(max=n_steps - 1), counts.float()  # the last rollout may end within a sequence

    def _fit(
        self,
        name: str,
        samples: Samples,
        phase: PhaseInfo,
        part: Part = "all",
        again: Callable[[], Samples] | None = None,
    ) -> tuple[int, dict[str, Tensor]]:
        """Take the gradient steps of all epochs; return their number and the means of their figures.

        `again` returns the samples of each further epoch, if its advantages are estimated anew.
        """
        config, optimizer = self.timed[name].at(phase), self.optimizers[name]
        learning_rate = self._tensor_of(config.learning_rate)
        objective = self._objective(name, phase)
        parts = None if part == "all" else {"critic"} if part == "value" else set(optimizer.blocks) - {"critic"}
        if part == "policy":  # a torso that both share learns from the policy's loss alone
            objective = replace(objective, value_coef=0.0)
        minibatch = config.minibatch(self.context.num_envs)
        shuffle = self.context.streams.torch(f"minibatches.{name}")
        figures: list[Tensor] = []
        norms: list[dict[str, Tensor]] = []
        terms: list[Tensor | Terms] = []
        stops = False
        graphs = self._captures(name) and again is None
        for epoch in range(config.n_epochs):
            if again is not None and epoch:
                samples = again()
            order = torch.randperm(samples.weight.shape[1], generator=shuffle)
            if graphs:
                numbers = (objective, learning_rate, config, part, parts)
                for step_figures, step_norms in self._epoch_by_graph(name, samples, order, *numbers):
                    terms.append(step_figures)
                    norms.append(step_norms)
            else:
                order = order.to(self.device)
                rows = torch.tensor_split(order, -(-len(order) // minibatch))  # equal parts, of a short rollout too
                for batch in self._minibatches(name, samples, rows, objective):
                    terms.append(self._gradients(name, batch, objective))
                    if config.target_kl is not None:
                        kl = objective.figures(terms[-1:])[0, FIGURES.index("kl")]
                        if stops := bool(kl > 1.5 * config.target_kl):
                            break
                    norms.append(optimizer.step(learning_rate, config.max_grad_norm, parts))
            if stops or len(terms) * minibatch >= TERMS or epoch == config.n_epochs - 1:
                figures.append(objective.figures(terms))
                terms = []
            if stops:
                break
        means = dict(zip(FIGURES, torch.cat(figures).mean(0), strict=True))
        metrics = {figure: means[figure] for figure in FIGURES_OF[part]}
        for block in norms[0] if norms else ():
            metrics[f"grad_norm/{block}"] = torch.stack([norm[block] for norm in norms]).mean()
        if part != "policy":
            value = samples.old_value
            if name in self.value_scales and again is None:  # which changed after the critic's estimate
                value = samples.target - samples.advantage / self.value_scales[name].deviation()
            metrics["explained_variance"] = explained_variance(value, samples.target, samples.value_weight)
        metrics["learning_rate"] = learning_rate
        if self.configs[name] is not self.config:  # the run reports the schedules of settings that all groups share
            metrics |= {key: self._tensor_of(getattr(config, key)) for key in self.timed[name].schedules}
        return len(norms), metrics

    def _captures(self, name: str) -> bool:
        """Return whether an epoch of a group is a CUDA graph: nothing in it depends on what the host would read."""
        config, schedules = self.configs[name], self.timed[name].schedules
        is_fixed = config.target_kl is None and "max_grad_norm" not in schedules and config.accumulate == 1
        return self.context.captures and is_fixed and not self.nets[name].has_memory

    def _epoch_by_graph(
        self,
        name: str,
        samples: Samples,
        order: Tensor,
        objective: ClippedObjective,
        learning_rate: Tensor,
        config: PPOConfig,
        part: Part,
        parts: set[str] | None,
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Take the gradient steps of an epoch, with the samples in this order; yield the figures and norms of each."""
        if (name, part) not in self._graphs:
            minibatch = config.minibatch(self.context.num_envs)
            settings = (objective, minibatch, config.max_grad_norm, parts)
            self._graphs[name, part] = self.context.captured(partial(self._epoch, name, settings))
        inputs = {
            "samples": {key: value for key, value in vars(samples).items() if value is not None},
            "order": order.numpy(),
            "objective": {key: value for key, value in vars(objective).items() if isinstance(value, Tensor)},
            "learning_rate": learning_rate,
        }
        outputs = self._graphs[name, part](inputs)
        # copied, because the next epoch writes its results over these
        for row in outputs["results"].clone().unbind():
            yield row[: len(FIGURES)], dict(zip(outputs["blocks"], row[len(FIGURES) :].unbind(), strict=True))

    def _epoch(self, name: str, settings: tuple[Any, ...], inputs: Tree) -> Tree:
        """Take the gradient steps of an epoch on tensors alone; return figures and norms, a row for each."""
        (objective, minibatch, max_norm, parts), optimizer = settings, self.optimizers[name]
        objective = replace(objective, **inputs["objective"])
        absent = dict.fromkeys((field.name for field in fields(Samples)), None)
        samples, results = Samples(**{**absent, **inputs["samples"]}).rows(inputs["order"]), []
        count = len(inputs["order"])
        norms: dict[str, Tensor] = {}
        for rows in torch.tensor_split(torch.arange(count), -(-count // minibatch)):
            loss, figures = self._compiled_loss(self.nets[name], samples.slice(int(rows[0]), len(rows)), objective)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norms = optimizer.step(inputs["learning_rate"], max_norm, parts)
            results.append(torch.cat([figures, torch.stack(list(norms.values()))]))
        return {"results": torch.stack(results), "blocks": tuple(norms)}

    def _objective(self, name: str, phase: PhaseInfo) -> ClippedObjective:
        """Return the objective with the present coefficients; tensors where they change, as in a compiled loss."""
        config, schedules = self.timed[name].at(phase), self.timed[name].schedules
        value_coef, reach = (
            self._tensor_of(getattr(config, key)) if key in schedules else getattr(config, key)
            for key in ("value_coef", "value_clip_range")
        )
        clip_range, entropy_coef = self._tensor_of(config.clip_range), self._tensor_of(config.entropy_coef)
        return ClippedObjective(clip_range, entropy_coef, value_coef, reach, config.normalize_advantage)

    def _tensor_of(self, number: float) -> Tensor:
        return torch.tensor(number, device=self.device)

    def _minibatches(
        self, name: str, samples: Samples, rows: Sequence[Tensor], objective: ClippedObjective
    ) -> Iterator[Samples | Minibatch]:
        """Yield the sequences at the indices of each of `rows`, as arrays if a kernel computes the gradients."""
        if name in self.kernels and self.config.accumulate == 1:
            return minibatches(samples, rows, objective)
        return map(samples.rows, rows)

    def _gradients(self, name: str, batch: Samples | Minibatch, objective: ClippedObjective) -> Tensor | Terms:
        """Set the parameters' gradients to those of `_loss` on a minibatch; return its figures, or their terms."""
        if isinstance(batch, Minibatch):  # the kernel computes what `_loss` says, which was checked
            return self.kernels[name].gradients(batch, objective)
        loss, figures = self._compiled_loss(self.nets[name], batch, objective)
        self.optimizers[name].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return figures

    def _gradients_at(self, name: str, samples: Samples, rows: Tensor, objective: ClippedObjective) -> Tensor:
        """Set the parameters' gradients to those of `_loss` on the sequences `rows`; return its figures."""
        [batch] = self._minibatches(name, samples, [rows], objective)
        return objective.figures([self._gradients(name, batch, objective)])[0]

    def _loss(self, net: ActorCritic, batch: Samples, objective: ClippedObjective) -> tuple[Tensor, Tensor]:
        """Return the scalar to minimise, and the objective's figures. Agents that did not act weigh nothing."""
        names = ("obs", "critic_obs", "first", "mask", "action")
        inputs = {**{name: getattr(batch, name) for name in names}, "carry": map_tree(lambda x: x[None], batch.carry)}

        def judge(part: Tree) -> dict[str, Tensor]:
            carry = map_tree(lambda x: x[0], part["carry"])
            result = net(part["obs"], carry, part["first"], critic_obs=part["critic_obs"])
            log_prob, entropy = net.head.evaluate(result.output, part["mask"], part["action"])
            return {"log_prob": log_prob, "entropy": entropy, "value": result.value.expand(log_prob.shape)}

        judged = in_parts(judge, inputs, self.config.accumulate, dim=1)
        return objective.loss(judged["log_prob"], judged["entropy"], judged["value"], batch)

    def loss_example(self, group: str, numbers: np.random.Generator) -> tuple[dict[str, Any], list[ActorCritic]] | None:
        """Set the networks' gradients to those that an update computes on a made-up batch; return figures and networks.

        None if the group's loss cannot be computed this way. See `HandWritten`.
        """
        net, view = self.nets[group], self.views.get(group)
        if not has_example(net) or (self.context.kernels == "numpy" and group not in self.kernels):
            return None
        agents, critic_agents = len(self.context.env.groups[group].agents), None if view is None else view.agents
        samples = Samples(**example_samples(net, numbers, agents, critic_agents, self._is_sequential))
        objective = self._objective(group, PhaseInfo("train", "online", now=1, horizon=2))
        figures = self._gradients_at(group, samples, torch.arange(samples.weight.shape[1]), objective)
        return dict(zip(FIGURES, figures, strict=True)), [net]

    # phases and state

    def stores(self) -> dict[str, Store]:
        options = {"on_disk": True} if self.config.buffer_on_disk else {}
        return {"rollout": self.context.store("rollout", RolloutStore, self.config.n_steps, self.carry_at, **options)}

    def phases(self) -> tuple[Phase, ...]:
        steps = self.config.n_steps * self.context.num_envs
        return (Phase("train", (Hook("collect", steps=steps), Hook("update")), buffer="rollout"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load networks and normalisers; of reward scales not the sums of episodes that were under way there."""
        self.parts.load_weights(state, skip=[f"normalisers.{name}.reward" for name in self.reward_scales])
        for name, scale in self.reward_scales.items():
            if (saved := state["normalisers"].get(f"{name}.reward")) is not None:
                scale.norm.load_state_dict(saved)

    def state_dict(self) -> dict[str, Any]:
        return {**self.parts.state_dict(), "dead": dict(self.dead)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
        self.dead = {name: dead.to(self.device) for name, dead in state["dead"].items()}


def observations(rollout: Rollout) -> dict[str, Tree]:
    """Return the observations of every group [T, N, A, …]."""
    return {name: data["obs"] for name, data in rollout.groups.items()}


def anyone_acted(rollout: Rollout) -> np.ndarray:
    """Return where any agent acts [T, N]: not where an environment only waits for its reset."""
    acted: np.ndarray = np.logical_or.reduce([data["active"].any(-1) for data in rollout.groups.values()])
    return acted


def one_step(obs: ObservationTensors | None) -> Any:
    """Return observations as a sequence of one step."""
    return None if obs is None else map_tree(lambda x: x[None], obs)
