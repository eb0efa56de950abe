"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347) for any number of agent groups.

Each group has networks, optimizer and normaliser of its own, shared by its agents. Settings: `ppo_config.py`.
Letters in shapes: T steps, N environments, A agents of the group; S sequences of L steps each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.config.schedules import Scheduled, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.normalisers import RewardScale
from cadenza.data.rollout import Rollout, RolloutStore
from cadenza.nets.actor_critic import ActorCritic, act
from cadenza.nets.observe import Observed, Observer
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.nets.plain import plain
from cadenza.ops.returns import explained_variance, gae
from cadenza.ops.surrogate import FIGURES, ClippedObjective
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.parts import Parts, load_parts, parts_state
from cadenza.workflows.ppo_config import PPOConfig


@dataclass(frozen=True)
class Samples:
    """A group's rollout ready to learn from: S sequences of L steps, each [L, S, A, …]. Without a memory L is 1."""

    obs: Observed
    first: Tensor  # an episode begins
    action: Tensor
    mask: Tensor | None
    weight: Tensor  # 1 where the agent acted and the step counts, else 0
    advantage: Tensor
    target: Tensor  # of the value
    old_value: Tensor
    old_log_prob: Tensor
    carry: Tree  # the memory before each sequence, [S, A, …]

    def rows(self, index: Tensor) -> Samples:
        """Some of the sequences."""
        steps = {name: part for name, part in vars(self).items() if name != "carry"}
        chosen = map_tree(lambda x: None if x is None else x[:, index], steps)
        return Samples(**chosen, carry=map_tree(lambda x: x[index], self.carry))


class PPO:
    hooks = ("update",)

    def __init__(self, config: PPOConfig, context: Context) -> None:
        self.config = config
        self.context = context
        self.device = context.device
        self.minibatch = config.minibatch(context.num_envs)
        self._compiled_loss: Callable[..., tuple[Tensor, Tensor]] = context.compiled(self._loss)
        self.nets: dict[str, ActorCritic] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.observers: dict[str, Observer] = {}
        self.reward_scales: dict[str, RewardScale] = {}
        for name, group in context.env.groups.items():
            self.nets[name] = ActorCritic(group, config).to(self.device)
            self.optimizers[name] = optimizer(self.nets[name], config.optimizer, self.nets[name].parts())
            self.nets[name].plain = plain(self.nets[name], context.kernels)
            raw = config.torso.encoder != "auto"
            self.observers[name] = Observer(group.observation, self.device, config.normalize_obs, raw)
            if config.normalize_reward:
                self.reward_scales[name] = RewardScale(context.num_envs, len(group.agents), config.gamma, self.device)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        groups = self.context.env.groups
        return {name: net.initial_carry(num_envs, len(groups[name].agents)) for name, net in self.nets.items()}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Log-probabilities and values are computed at the update, in one batch, by the same networks."""
        return act(self.nets, self.observers, step, carry, mode)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    # learning

    def update(self, store: RolloutStore, phase: PhaseInfo) -> Updated:
        """Several epochs of minibatches over the rollout, group after group."""
        rollout = store.take()
        metrics: dict[str, Any] = {}
        updates = 0
        for name in self.nets:
            samples = self._prepare(name, rollout)
            if not samples.weight.any():  # nobody of this group acted
                continue
            done, group_metrics = self._fit(name, samples, phase)
            updates += done
            prefix = "train/" if len(self.nets) == 1 else f"train/{name}/"
            metrics |= {prefix + key: value for key, value in group_metrics.items()}
            # only now, so that acting and learning saw this rollout through the same eyes
            self.observers[name].learn(rollout.groups[name]["obs"], self._tensor(rollout.groups[name]["active"]))
        return Updated(updates, metrics)

    @torch.no_grad()
    def _prepare(self, name: str, rollout: Rollout) -> Samples:
        """Advantages and value targets [T, N, A], with the true ends of episodes; then cut into sequences."""
        net, data, observer = self.nets[name], rollout.groups[name], self.observers[name]
        obs, action = observer(data["obs"]), self._tensor(data["action"])
        mask = self._tensor(data["mask"]) if "mask" in data else None
        carry = map_tree(self._tensor, rollout.carry.get(name, {}))  # [before some steps, N, A, …]
        first = self._tensor(rollout.is_first)[..., None].expand(data["active"].shape)
        # an episode's end concerns all agents, a death one of them
        terminated = self._tensor(rollout.terminated)[..., None] | self._tensor(data["died"])
        done = terminated | self._tensor(rollout.truncated)[..., None]

        judged = net(obs, map_tree(lambda x: x[0], carry), first, carries=True)
        following = map_tree(lambda x: x[None], observer(rollout.after_obs[name]))
        last = net(following, map_tree(lambda x: x[-1], judged.carries), done[-1:]).value
        next_value = torch.cat([judged.value[1:], last])
        if len(rollout.final_index[0]):
            ends = tuple(self._tensor(index) for index in rollout.final_index)
            finals = map_tree(lambda x: x[None], observer(rollout.final_obs[name]))
            before = map_tree(lambda x: x[ends], judged.carries)
            next_value[ends] = net(finals, before, torch.zeros_like(done[ends])[None]).value[0]
        next_value = next_value.masked_fill(terminated, 0.0)
        reward = self._tensor(data["reward"])
        if name in self.reward_scales:
            reward = self.reward_scales[name](reward, done, self._tensor(data["active"]))
        advantage = gae(reward, judged.value, next_value, done, self.config.gamma, self.config.gae_lambda)
        log_prob, _ = net.head.evaluate(judged.output, mask, action)
        times, counts = self._sequences()

        def cut(x: Tensor) -> Tensor:
            return x[times].flatten(1, 2)

        acted = self._tensor(data["active"]).float()
        return Samples(
            obs=map_tree(cut, obs),
            first=cut(first),
            action=cut(action),
            mask=None if mask is None else cut(mask),
            weight=(acted[times] * counts[..., None, None]).flatten(1, 2),
            advantage=cut(advantage),
            target=cut(advantage + judged.value),
            old_value=cut(judged.value),
            old_log_prob=cut(log_prob),
            carry=map_tree(lambda x: x[torch.unique(times[0], return_inverse=True)[1]].flatten(0, 1), carry),
        )

    def _sequences(self) -> tuple[Tensor, Tensor]:
        """The steps of each sequence [L, C], and which of them count (the others warm up the memory)."""
        length, burn_in = self.config.sequence_length, self.config.torso.memory.burn_in
        starts = torch.arange(0, self.config.n_steps, length, device=self.device)
        # the first has nothing before it: it runs on a little instead, so that all are equally long
        times = (starts - burn_in).clamp(min=0) + torch.arange(length + burn_in, device=self.device)[:, None]
        return times, ((times >= starts) & (times < starts + length)).float()

    def _fit(self, name: str, samples: Samples, phase: PhaseInfo) -> tuple[int, dict[str, Tensor]]:
        config, optimizer = self.config, self.optimizers[name]
        learning_rate = self._now(config.learning_rate, phase)
        objective = self._objective(phase)
        shuffle = self.context.streams.torch(f"minibatches.{name}")
        figures: list[Tensor] = []
        norms: list[dict[str, Tensor]] = []
        for _ in range(config.n_epochs):
            order = torch.randperm(samples.weight.shape[1], generator=shuffle).to(self.device)
            for rows in torch.split(order, self.minibatch):
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
        metrics["explained_variance"] = explained_variance(samples.old_value, samples.target, samples.weight)
        metrics["learning_rate"] = learning_rate
        return len(norms), metrics

    def _objective(self, phase: PhaseInfo) -> ClippedObjective:
        config = self.config
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
        judged = net(batch.obs, batch.carry, batch.first)
        log_prob, entropy = net.head.evaluate(judged.output, batch.mask, batch.action)
        return objective.loss(log_prob, entropy, judged.value, batch)

    # phases and state

    def stores(self) -> dict[str, Store]:
        remembers = any(net.remembers for net in self.nets.values())
        carry_at = sorted(set(self._sequences()[0][0].tolist())) if remembers else ()
        return {"rollout": RolloutStore(self.config.n_steps, carry_at)}

    def phases(self) -> tuple[Phase, ...]:
        steps = self.config.n_steps * self.context.num_envs
        return (Phase("train", (Hook("collect", steps=steps), Hook("update")), buffer="rollout"),)

    def _parts(self) -> Parts:
        normalisers = {**self.observers, **{f"{name}.reward": scale for name, scale in self.reward_scales.items()}}
        return {"networks": self.nets, "optimizers": self.optimizers, "normalisers": normalisers}

    def load_weights(self, state: dict[str, Any]) -> None:
        load_parts({"networks": self.nets, "normalisers": self.observers}, state)
        for name, scale in self.reward_scales.items():  # the scale, not the sums of episodes that were under way there
            if (saved := state["normalisers"].get(f"{name}.reward")) is not None:
                scale.norm.load_state_dict(saved)

    def state_dict(self) -> dict[str, Any]:
        return parts_state(self._parts())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_parts(self._parts(), state)
