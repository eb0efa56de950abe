"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347) for any number of agent groups.

Each group has networks, optimizer and normaliser of its own, shared by its agents. Settings: `ppo_config.py`. Groups
that learn side by side from their own rewards are IPPO, with a central critic MAPPO (Yu et al. 2022, arXiv:2103.01955);
in turn, each weighing what those before it changed, HAPPO (Kuba et al. 2022, arXiv:2109.11251).
Letters in shapes: T steps, N environments, A agents of the group; S sequences of L steps each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.config.registry import load_own
from cadenza.config.schedules import Scheduled, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.rollout import Rollout, RolloutStore
from cadenza.errors import ConfigError
from cadenza.nets.actor_critic import ActorCritic, ActorCriticOutput, act, deployed
from cadenza.nets.critic_view import CriticView
from cadenza.nets.deployed import Deployed
from cadenza.nets.normalisers import RewardScale, ValueScale
from cadenza.nets.numpy.actor_critic_kernel import plain
from cadenza.nets.observe import ObservationTensors, Observer
from cadenza.nets.opinions import actor_critic_opinions
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.ops.returns import explained_variance, gae
from cadenza.ops.surrogate import FIGURES, ClippedObjective
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Credit, Explained, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.parts import Parts
from cadenza.workflows.ppo_config import PPOConfig


@dataclass(frozen=True)
class Samples:
    """A group's rollout ready to learn from: S sequences of L steps, each [L, S, A, …]. Without a memory L is 1."""

    obs: ObservationTensors
    critic_obs: ObservationTensors | None  # None: the same
    first: Tensor  # an episode begins
    action: Tensor
    mask: Tensor | None
    weight: Tensor  # 1 where the agent acted and the step counts, else 0
    value_weight: Tensor  # the same for the critic, which may learn from more
    factor: Tensor | None  # how much likelier what the groups before did has become; None: nobody was before
    advantage: Tensor
    target: Tensor  # of the value
    old_value: Tensor
    old_log_prob: Tensor
    carry: Tree  # the memory before each sequence, [S, A, …]

    def rows(self, index: Tensor) -> Samples:
        """Some of the sequences."""
        steps = {name: part for name, part in vars(self).items() if name != "carry"}
        chosen = map_tree(lambda x: None if x is None else x.index_select(1, index), steps)
        return Samples(**chosen, carry=map_tree(lambda x: x.index_select(0, index), self.carry))


class PPO:
    hooks = ("update",)

    def __init__(self, config: PPOConfig, context: Context) -> None:
        self.config = config
        self.context = context
        self.device = context.device
        self._compiled_loss: Callable[..., tuple[Tensor, Tensor]] = context.compiled(self._loss)
        self.configs = {name: config.of(name) for name in context.env.groups}
        self.nets: dict[str, ActorCritic] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.observers: dict[str, Observer] = {}
        self.views: dict[str, CriticView] = {}  # of critics that see something else than the policy
        self.estimators = {name: advantage_estimator(own.advantage) for name, own in self.configs.items()}
        self.reward_scales: dict[str, RewardScale] = {}
        self.value_scales: dict[str, ValueScale] = {}
        self.dead: dict[str, Tensor] = {}  # who was, when the last rollout ended [N, A]
        for name, group in context.env.groups.items():
            own = self.configs[name]
            raw, sees = own.torso.encoder != "auto", own.critic.sees
            if sees != "own":
                both, remembers = sees == "both", own.torso.memory.type != "none"
                self.views[name] = CriticView(context.env, name, both, remembers, self.device, own.normalize_obs, raw)
            critic_space = self.views[name].space if name in self.views else None
            self.nets[name] = ActorCritic(group, own, critic_space).to(self.device)
            self.optimizers[name] = optimizer(self.nets[name], own.optimizer, self.nets[name].parts())
            self.nets[name].plain = plain(self.nets[name], context.kernels)
            self.observers[name] = Observer(group.observation, self.device, own.normalize_obs, raw)
            agents = len(group.agents)
            self.dead[name] = torch.zeros(context.num_envs, agents, dtype=torch.bool, device=self.device)
            if own.normalize_reward:
                self.reward_scales[name] = RewardScale(context.num_envs, agents, own.gamma, self.device)
            if own.normalize_value:
                self.value_scales[name] = ValueScale(self.device)
        normalisers: dict[str, Any] = {
            **self.observers,
            **{f"{name}.critic": view for name, view in self.views.items()},
            **{f"{name}.value": scale for name, scale in self.value_scales.items()},
            **{f"{name}.reward": scale for name, scale in self.reward_scales.items()},
        }
        starts = [self._sequences(name)[0][0].tolist() for name, net in self.nets.items() if net.has_memory]
        self.carry_at = sorted(
            {step for steps in starts for step in steps}
        )  # the steps before which carries are stored
        self.parts = Parts(networks=self.nets, optimizers=self.optimizers, normalisers=normalisers)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        groups = self.context.env.groups
        return {name: net.initial_carry(num_envs, len(groups[name].agents)) for name, net in self.nets.items()}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Log-probabilities and values are computed at the update, in one batch, by the same networks.

        Those that look at images have them from acting: there they are a head more, later a look at all images again.
        """
        return act(self.nets, self.observers, step, carry, mode, self.views, keep_outputs=mode.explore)

    def deployed(self, group: str) -> Deployed:
        return deployed(self.nets[group], self.observers[group])

    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return action probabilities (or means and deviations) and values."""
        opinions, after = actor_critic_opinions(self.nets, self.observers, steps, carry, self.views, self.value_scales)
        return Explained(opinions, after, {name: self._credit(name) for name in self.nets})

    def _credit(self, name: str) -> Credit:
        config, scale = self.configs[name], self.reward_scales.get(name)
        credit = Credit(config.gamma, config.gae_lambda, team=self.config.rewards == "team")
        return credit if scale is None else credit._replace(reward_scale=scale.deviation(), reward_clip=scale.clip)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    # learning

    def update(self, store: RolloutStore, phase: PhaseInfo) -> Updated:
        """Several epochs of minibatches over the rollout, group after group."""
        rollout = store.take()
        metrics: dict[str, Any] = {}
        updates = 0
        in_turn = self.config.update == "sequential" and len(self.nets) > 1
        moved: dict[str, Tensor] = {}  # team -> log of how much likelier its actions have become [T, N]
        for name in self._order():
            team = self.context.env.groups[name].team
            samples = self._prepare(name, rollout, moved.get(team))
            if not samples.weight.any():  # nobody of this group acted
                continue
            before = self._likelihood(name, rollout) if in_turn else None
            done, group_metrics = self._fit(name, samples, phase)
            updates += done
            prefix = "train/" if len(self.nets) == 1 else f"train/{name}/"
            metrics |= {prefix + key: value for key, value in group_metrics.items()}
            if before is not None:
                moved[team] = moved.get(team, 0) + self._likelihood(name, rollout) - before
            # only now, so that acting and learning saw this rollout through the same eyes
            acted = self._tensor(rollout.groups[name]["active"])
            self.observers[name].learn(rollout.groups[name]["obs"], acted)
            if name in self.views:
                seen = {group: data["obs"] for group, data in rollout.groups.items()}
                self.views[name].learn(seen, rollout.state, acted)
        return Updated(updates, metrics)

    def _order(self) -> list[str]:
        """Whose turn it is to learn."""
        names = list(self.nets)
        if self.config.update == "together" or self.config.order == "fixed":
            return names
        return [names[index] for index in self.context.streams.numpy("order").permutation(len(names))]

    @torch.no_grad()
    def _prepare(self, name: str, rollout: Rollout, moved: Tensor | None = None) -> Samples:
        """Advantages and value targets [T, N, A], with the true ends of episodes; then cut into sequences."""
        net, data, observer, config = self.nets[name], rollout.groups[name], self.observers[name], self.configs[name]
        obs, action = observer(data["obs"]), self._tensor(data["action"])
        critic_obs = self._critic_obs(
            name, {group: each["obs"] for group, each in rollout.groups.items()}, rollout.state
        )
        mask = self._tensor(data["mask"]) if "mask" in data else None
        carry = map_tree(self._tensor, rollout.carry.get(name, {}))  # [before some steps, N, A, …]
        acted = self._tensor(data["active"])
        first = self._tensor(rollout.is_first)[..., None].expand(acted.shape)
        alive = self._alive(name, first, self._tensor(data["died"])) & self._tensor(anyone(rollout))[..., None]
        reward, terminated = self._earned(name, rollout)
        done = terminated | self._tensor(rollout.truncated)[..., None]

        if "output" in data:
            judged = ActorCriticOutput(self._tensor(data["output"]), self._tensor(data["value"]), {})
        else:
            judged = net(obs, map_tree(lambda x: x[0], carry), first, True, critic_obs)
        following = one_step(observer(rollout.after_obs[name]))
        following_critic = one_step(self._critic_obs(name, rollout.after_obs, rollout.after_state))
        last = net(following, map_tree(lambda x: x[-1], judged.carries), done[-1:], False, following_critic).value
        value, next_value = judged.value.expand(acted.shape), torch.cat([judged.value[1:], last]).expand(acted.shape)
        if len(rollout.final_index[0]):
            ends = tuple(self._tensor(index) for index in rollout.final_index)
            finals = one_step(observer(rollout.final_obs[name]))
            finals_critic = one_step(self._critic_obs(name, rollout.final_obs, rollout.final_state))
            before, next_value = map_tree(lambda x: x[ends], judged.carries), next_value.clone()
            next_value[ends] = net(finals, before, torch.zeros_like(done[ends])[None], False, finals_critic).value[0]
        old_value = value
        if name in self.value_scales:
            value, next_value = map(self.value_scales[name].to_returns, (value, next_value))
        next_value = next_value.masked_fill(terminated, 0.0)
        if name in self.reward_scales:
            reward = self.reward_scales[name](reward, done, alive, first)
        advantage = self.estimators[name](reward, value, next_value, done, config.gamma, config.gae_lambda)
        target = advantage + value
        if name in self.value_scales:
            self.value_scales[name].learn(target[alive])
            target = self.value_scales[name].from_returns(target)
        log_prob, _ = net.head.evaluate(judged.output, mask, action)
        times, counts = self._sequences(name)

        def cut(x: Tensor) -> Tensor:
            return x[times].flatten(1, 2)

        def counted(x: Tensor) -> Tensor:
            return (x.float()[times] * counts[..., None, None]).flatten(1, 2)

        weight = counted(acted)
        return Samples(
            obs=map_tree(cut, obs),
            critic_obs=None if critic_obs is None else map_tree(cut, critic_obs),
            first=cut(first),
            action=cut(action),
            mask=None if mask is None else cut(mask),
            weight=weight,
            value_weight=weight if torch.equal(alive, acted) else counted(alive),
            factor=None if moved is None else cut(moved.exp()[..., None].expand(acted.shape)),
            advantage=cut(advantage),
            target=cut(target),
            old_value=cut(old_value),
            old_log_prob=cut(log_prob),
            carry=map_tree(lambda x: x[[self.carry_at.index(t) for t in times[0].tolist()]].flatten(0, 1), carry),
        )

    def _critic_obs(self, name: str, obs: dict[str, Tree], state: np.ndarray | None) -> ObservationTensors | None:
        return self.views[name](obs, state) if name in self.views else None

    def _earned(self, name: str, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Rewards [T, N, A], and where nothing follows: at the end, and at an agent's death if it is on its own."""
        data, groups = rollout.groups[name], self.context.env.groups
        reward, over = self._tensor(data["reward"]), self._tensor(rollout.terminated)[..., None]
        if self.config.rewards == "own":
            return reward, over | self._tensor(data["died"])
        mates = [other for other, group in groups.items() if group.team == groups[name].team]
        earned = torch.stack([self._tensor(rollout.groups[other]["reward"]).sum(-1) for other in mates]).sum(0)
        return earned[..., None].expand(reward.shape), over.expand(reward.shape)

    def _alive(self, name: str, first: Tensor, died: Tensor) -> Tensor:
        """Whose future is worth knowing [T, N, A]: not the dead's; with a team's rewards, everyone's."""
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
        """Log-probability of what this group's agents did together, by its policy as it is now [T, N]."""
        net, data = self.nets[name], rollout.groups[name]
        carry = map_tree(lambda x: self._tensor(x[0]), rollout.carry.get(name, {}))
        acted = self._tensor(data["active"])
        first = self._tensor(rollout.is_first)[..., None].expand(acted.shape)
        output, _ = net.policy(self.observers[name](data["obs"]), carry, first, carries=False)
        mask = self._tensor(data["mask"]) if "mask" in data else None
        log_prob, _ = net.head.evaluate(output, mask, self._tensor(data["action"]))
        return log_prob.masked_fill(~acted, 0.0).sum(-1)

    def _sequences(self, name: str) -> tuple[Tensor, Tensor]:
        """Return a group's steps in each sequence [L, C], and which of them count (the others warm up the memory)."""
        length, burn_in = self.configs[name].sequence_length, self.configs[name].torso.memory.burn_in
        starts = torch.arange(0, self.config.n_steps, length, device=self.device)
        # the first has nothing before it: it runs on a little instead, so that all are equally long
        times = (starts - burn_in).clamp(min=0) + torch.arange(length + burn_in, device=self.device)[:, None]
        return times, ((times >= starts) & (times < starts + length)).float()

    def _fit(self, name: str, samples: Samples, phase: PhaseInfo) -> tuple[int, dict[str, Tensor]]:
        config, optimizer = self.configs[name], self.optimizers[name]
        learning_rate = self._now(config.learning_rate, phase)
        objective = self._objective(config, phase)
        minibatch = config.minibatch(self.context.num_envs)
        shuffle = self.context.streams.torch(f"minibatches.{name}")
        figures: list[Tensor] = []
        norms: list[dict[str, Tensor]] = []
        for _ in range(config.n_epochs):
            order = torch.randperm(samples.weight.shape[1], generator=shuffle).to(self.device)
            for rows in torch.split(order, minibatch):
                figures.append(self._gradients(name, samples, rows, objective))
                if config.target_kl is not None and figures[-1][FIGURES.index("kl")] > 1.5 * config.target_kl:
                    break
                norms.append(optimizer.step(learning_rate, config.max_grad_norm))
            else:
                continue
            break
        metrics = dict(zip(FIGURES, torch.stack(figures).mean(0), strict=True))
        for part in norms[0] if norms else ():
            metrics[f"grad_norm/{part}"] = torch.stack([norm[part] for norm in norms]).mean()
        value = samples.old_value
        if name in self.value_scales:  # which has moved since the critic spoke
            value = samples.target - samples.advantage / self.value_scales[name].deviation()
        metrics["explained_variance"] = explained_variance(value, samples.target, samples.value_weight)
        metrics["learning_rate"] = learning_rate
        return len(norms), metrics

    def _objective(self, config: PPOConfig, phase: PhaseInfo) -> ClippedObjective:
        clip_range, entropy_coef = self._now(config.clip_range, phase), self._now(config.entropy_coef, phase)
        return ClippedObjective(
            clip_range, entropy_coef, config.value_coef, config.value_clip_range, config.normalize_advantage
        )

    def _now(self, schedule: Scheduled, phase: PhaseInfo) -> Tensor:
        return torch.tensor(value_at(schedule, phase.now, phase.horizon), device=self.device)

    def _gradients(self, name: str, samples: Samples, rows: Tensor, objective: ClippedObjective) -> Tensor:
        """Leave the gradients of the objective on some of the samples with the parameters; its figures."""
        net = self.nets[name]
        if net.plain is not None:
            return net.plain.gradients(samples, rows, objective)
        loss, figures = self._compiled_loss(net, samples.rows(rows), objective)
        self.optimizers[name].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return figures

    def _loss(self, net: ActorCritic, batch: Samples, objective: ClippedObjective) -> tuple[Tensor, Tensor]:
        """The scalar to minimise, and the objective's figures. Entries of agents that did not act weigh nothing."""
        judged = net(batch.obs, batch.carry, batch.first, critic_obs=batch.critic_obs)
        log_prob, entropy = net.head.evaluate(judged.output, batch.mask, batch.action)
        return objective.loss(log_prob, entropy, judged.value.expand(log_prob.shape), batch)

    # phases and state

    def stores(self) -> dict[str, Store]:
        return {"rollout": self.context.store("rollout", RolloutStore, self.config.n_steps, self.carry_at)}

    def phases(self) -> tuple[Phase, ...]:
        steps = self.config.n_steps * self.context.num_envs
        return (Phase("train", (Hook("collect", steps=steps), Hook("update")), buffer="rollout"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        self.parts.load_weights(state, skip=[f"normalisers.{name}.reward" for name in self.reward_scales])
        for name, scale in self.reward_scales.items():  # the scale, not the sums of episodes that were under way there
            if (saved := state["normalisers"].get(f"{name}.reward")) is not None:
                scale.norm.load_state_dict(saved)

    def state_dict(self) -> dict[str, Any]:
        return {**self.parts.state_dict(), "dead": dict(self.dead)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
        self.dead = {name: dead.to(self.device) for name, dead in state["dead"].items()}


def anyone(rollout: Rollout) -> np.ndarray:
    """Where somebody acts [T, N]: not where an environment only waits to begin anew."""
    found: np.ndarray = np.logical_or.reduce([data["active"].any(-1) for data in rollout.groups.values()])
    return found


def one_step(obs: ObservationTensors | None) -> Any:
    """A sequence of one step."""
    return None if obs is None else map_tree(lambda x: x[None], obs)


def advantage_estimator(name: str) -> Callable[..., Tensor]:
    """Return the estimator of advantages with the arguments of `gae`; refuse one that does not return [T, N, A]."""
    if name == "gae":
        return gae
    estimate: Callable[..., Tensor] = load_own(name)
    trial = torch.zeros(3, 2, 1)
    try:
        result = estimate(trial, trial, trial, trial.bool(), 0.99, 0.95)
    except Exception as problem:  # whatever a user's function may raise
        reason = f"{type(problem).__name__}: {problem}"
        raise ConfigError(f"algorithm.advantage={name} cannot be called as gae is ({reason})") from problem
    if not isinstance(result, Tensor) or result.shape != trial.shape:
        raise ConfigError(f"algorithm.advantage={name} must return a tensor of the shape of the rewards, [T, N, A]")
    return estimate
