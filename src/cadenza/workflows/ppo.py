"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347) for any number of agent groups.

Each group has networks, optimizer and normaliser of its own, shared by its agents. Settings: `ppo_config.py`.
Letters in shapes: T steps, N environments, A agents of the group, M = T * N rows of a rollout, F features.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.config.schedules import value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.normalisers import RunningNorm
from cadenza.data.rollout import Rollout, RolloutStore
from cadenza.nets.adam import Adam
from cadenza.nets.flatten import flat_size, flatten
from cadenza.nets.heads import action_head
from cadenza.nets.mlp import MLP
from cadenza.ops.returns import gae
from cadenza.ops.surrogate import approximate_kl, clipped_surrogate, masked_mean, value_error
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, GroupSpec, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.ppo_config import PPOConfig


class ActorCritic(nn.Module):
    """Policy and value of one group: two networks that share nothing."""

    def __init__(self, group: GroupSpec, config: PPOConfig) -> None:
        super().__init__()
        features = flat_size(group.observation)
        self.head = action_head(group.action, config.log_std_init)
        self.actor = MLP(features, self.head.outputs, config.actor, output_gain=0.01)
        self.critic = MLP(features, 1, config.critic)

    def value(self, features: Tensor) -> Tensor:
        value: Tensor = self.critic(features).squeeze(-1)
        return value


@dataclass(frozen=True)
class Samples:
    """A group's rollout ready to learn from; the first axis is M, then A."""

    features: Tensor
    action: Tensor
    mask: Tensor | None
    weight: Tensor  # 1 where the agent acted, else 0
    advantage: Tensor
    target: Tensor  # of the value
    old_value: Tensor
    old_log_prob: Tensor

    def rows(self, index: Tensor) -> Samples:
        return self.map(lambda x: x[index])

    def map(self, function: Callable[[Tensor], Tensor]) -> Samples:
        mapped: dict[str, Any] = {name: x if x is None else function(x) for name, x in vars(self).items()}
        return Samples(**mapped)


class PPO:
    hooks = ("update",)

    def __init__(self, config: PPOConfig, context: Context) -> None:
        self.config = config
        self.context = context
        self.device = context.device
        self.batch_size = config.minibatch(context.num_envs)
        self.nets: dict[str, ActorCritic] = {}
        self.optimizers: dict[str, Adam] = {}
        self.norms: dict[str, RunningNorm] = {}
        for name, group in context.env.groups.items():
            self.nets[name] = ActorCritic(group, config).to(self.device)
            self.optimizers[name] = Adam(self.nets[name].named_parameters(), eps=config.adam_eps)
            if config.normalize_obs == "rolling":
                self.norms[name] = RunningNorm(flat_size(group.observation), self.device)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Sample (or take the most likely) actions [N, A, …].

        Log-probabilities and values are computed at the update, in one batch, by the same networks.
        """
        action = {}
        with torch.inference_mode():
            for name, net in self.nets.items():
                output = net.actor(self._features(name, step.obs[name]))
                mask = self._tensor(step.mask[name]) if name in step.mask else None
                if mode.explore:
                    chosen, _ = net.head.sample(output, mask, mode.streams.torch(f"act.{name}", self.device))
                else:
                    chosen = net.head.mode(output, mask)
                action[name] = chosen.cpu().numpy()
        return Acted(action, {name: {} for name in action}, carry)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _raw_features(self, name: str, obs: Tree) -> Tensor:
        return flatten(self.context.env.groups[name].observation, map_tree(self._tensor, obs))

    def _features(self, name: str, obs: Tree) -> Tensor:
        raw = self._raw_features(name, obs)
        return self.norms[name](raw) if name in self.norms else raw

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
            if name in self.norms:  # only now, so that acting and learning saw this rollout through the same eyes
                acted = samples.weight.flatten() > 0
                self.norms[name].update(self._raw_features(name, rollout.groups[name]["obs"]).flatten(0, 2)[acted])
        return Updated(updates, metrics)

    @torch.no_grad()
    def _prepare(self, name: str, rollout: Rollout) -> Samples:
        """Advantages and value targets, with the true ends of episodes; [T, N, A, …] is flattened to [M, A, …]."""
        net, data = self.nets[name], rollout.groups[name]
        features = self._features(name, data["obs"])  # [T, N, A, F]
        action = self._tensor(data["action"])
        mask = self._tensor(data["mask"]) if "mask" in data else None
        value = net.value(features)
        next_value = torch.cat([value[1:], net.value(self._features(name, rollout.after_obs[name]))[None]])
        if len(rollout.final_index[0]):
            ends = tuple(self._tensor(index) for index in rollout.final_index)
            next_value[ends] = net.value(self._features(name, rollout.final_obs[name]))
        # an episode's end concerns all agents, a death one of them
        terminated = self._tensor(rollout.terminated)[..., None] | self._tensor(data["died"])
        done = terminated | self._tensor(rollout.truncated)[..., None]
        next_value = next_value.masked_fill(terminated, 0.0)
        reward = self._tensor(data["reward"])
        advantage = gae(reward, value, next_value, done, self.config.gamma, self.config.gae_lambda)
        log_prob, _ = net.head.evaluate(net.actor(features), mask, action)
        weight = self._tensor(data["active"]).float()
        samples = Samples(features, action, mask, weight, advantage, advantage + value, value, log_prob)
        return samples.map(lambda x: x.flatten(0, 1))

    def _fit(self, name: str, samples: Samples, phase: PhaseInfo) -> tuple[int, dict[str, Tensor]]:
        config, net, optimizer = self.config, self.nets[name], self.optimizers[name]
        now = {
            key: torch.tensor(value_at(getattr(config, key), phase.now, phase.horizon), device=self.device)
            for key in ("learning_rate", "clip_range", "entropy_coef")
        }
        shuffle = self.context.streams.torch(f"minibatches.{name}")
        seen: dict[str, list[Tensor]] = defaultdict(list)
        updates = 0
        for _ in range(config.n_epochs):
            order = torch.randperm(len(samples.weight), generator=shuffle).to(self.device)
            for rows in torch.split(order, self.batch_size):
                loss, diagnostics = self._loss(net, samples.rows(rows), now["clip_range"], now["entropy_coef"])
                if config.target_kl is not None and diagnostics["kl"] > 1.5 * config.target_kl:
                    break
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                limit = config.max_grad_norm if config.max_grad_norm is not None else float("inf")
                diagnostics["grad_norm"] = nn.utils.clip_grad_norm_(net.parameters(), limit)
                optimizer.step(now["learning_rate"])
                updates += 1
                for key, value in diagnostics.items():
                    seen[key].append(value)
            else:
                continue
            break
        metrics = {key: torch.stack(values).mean() for key, values in seen.items()}
        metrics["explained_variance"] = explained_variance(samples)
        metrics["learning_rate"] = now["learning_rate"]
        return updates, metrics

    def _loss(
        self, net: ActorCritic, batch: Samples, clip: Tensor, entropy_coef: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise, and what to log. Entries of agents that did not act weigh nothing."""
        weight, advantage = batch.weight, batch.advantage
        if self.config.normalize_advantage and len(weight) > 1:
            mean = masked_mean(advantage, weight)
            variance = ((advantage - mean).square() * weight).sum() / (weight.sum() - 1).clamp(min=1)
            advantage = (advantage - mean) / (variance.sqrt() + 1e-8)
        log_prob, entropy = net.head.evaluate(net.actor(batch.features), batch.mask, batch.action)
        log_ratio = log_prob - batch.old_log_prob
        policy_loss = -masked_mean(clipped_surrogate(log_ratio, advantage, clip), weight)
        error = value_error(net.value(batch.features), batch.old_value, batch.target, self.config.value_clip_range)
        value_loss = masked_mean(error, weight)
        mean_entropy = masked_mean(entropy, weight)
        loss = policy_loss + self.config.value_coef * value_loss - entropy_coef * mean_entropy
        with torch.no_grad():
            diagnostics = {
                "loss": loss.detach(),
                "policy_loss": policy_loss.detach(),
                "value_loss": value_loss.detach(),
                "entropy": mean_entropy.detach(),
                "kl": masked_mean(approximate_kl(log_ratio), weight),
                "clip_fraction": masked_mean(((log_ratio.exp() - 1).abs() > clip).float(), weight),
            }
        return loss, diagnostics

    # phases and state

    def stores(self) -> dict[str, Store]:
        return {"rollout": RolloutStore(self.config.n_steps)}

    def phases(self) -> tuple[Phase, ...]:
        steps = self.config.n_steps * self.context.num_envs
        return (Phase("train", (Hook("collect", steps=steps), Hook("update")), buffer="rollout"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        self.load_state_dict({**self.state_dict(), "networks": state["networks"], "normalisers": state["normalisers"]})

    def _parts(self) -> dict[str, Mapping[str, Any]]:
        return {"networks": self.nets, "optimizers": self.optimizers, "normalisers": self.norms}

    def state_dict(self) -> dict[str, Any]:
        parts = self._parts().items()
        return {kind: {name: part.state_dict() for name, part in of_kind.items()} for kind, of_kind in parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for kind, parts in self._parts().items():
            for name, part in parts.items():
                part.load_state_dict(state[kind][name])


def explained_variance(samples: Samples) -> Tensor:
    """1 where the old values predicted the targets perfectly, 0 where a constant would do as well."""
    acted = samples.weight > 0
    target = samples.target[acted]
    residual = target - samples.old_value[acted]
    return 1 - residual.var(correction=0) / target.var(correction=0).clamp(min=1e-8)
