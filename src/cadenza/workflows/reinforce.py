"""REINFORCE (Williams 1992): the Monte-Carlo policy gradient on whole episodes, for any number of agent groups.

Settings: `reinforce_config.py`. Letters in shapes: T steps of the longest of E episodes, A agents of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cadenza.config.schedules import TimedSettings
from cadenza.config.schema import Hook, Phase
from cadenza.data.episode_store import Episodes, EpisodeStore
from cadenza.nets.actor_critic import ActorCritic, act
from cadenza.nets.numpy.actor_critic_kernel import ActorCriticKernel, actor_critic_kernel
from cadenza.nets.observe import ObservationTensors, Observer
from cadenza.nets.optimizers import Optimizer, in_parts, optimizer
from cadenza.ops.returns import discounted_sum, explained_variance, monte_carlo
from cadenza.ops.surrogate import masked_mean, masked_standardise
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Credit, Explained, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.parts import Parts, both, estimator, own_states
from cadenza.workflows.reinforce_config import ReinforceConfig

if TYPE_CHECKING:
    from cadenza.nets.deployed import Deployed


@dataclass(frozen=True)
class EpisodeBatch:
    """The episodes of one group, prepared for the update, [T, E, A, …]."""

    obs: ObservationTensors
    first: Tensor
    action: Tensor
    mask: Tensor | None
    weight: Tensor  # 1 where the agent acted, else 0
    returns: Tensor  # what the baseline predicts: the rewards from each step on
    target: Tensor  # the weight of each action's log-probability
    value: Tensor  # the baseline before this update


class Reinforce:
    """The workflow of REINFORCE, with or without a baseline."""

    hooks: tuple[str, ...] = ("update", "update_value", "update_policy")
    joint_hooks = ("update_value", "update_policy")  # of the same episodes: both together are `update`

    def __init__(self, config: ReinforceConfig, context: Context) -> None:
        self.config, self.timed = config, TimedSettings(config)
        self.context = context
        self.device = context.device
        self.nets: dict[str, ActorCritic] = {}
        self.kernels: dict[str, ActorCriticKernel] = {}  # for acting, where they support the network
        self.optimizers: dict[str, Optimizer] = {}
        self.observers: dict[str, Observer] = {}
        for name, group in context.env.groups.items():
            self.nets[name] = ActorCritic(group, config).to(self.device)
            self.optimizers[name] = optimizer(self.nets[name], config.optimizer, self.nets[name].parts())
            if context.kernels == "numpy" and (kernel := actor_critic_kernel(self.nets[name])):
                self.kernels[name] = kernel
            raw = config.torso.encoder != "auto"
            self.observers[name] = Observer(group.observation, self.device, config.normalize_obs, raw)
        self.estimator = estimator(config.advantage, "algorithm.advantage")
        kinds: dict[str, Any] = {"networks": self.nets, "optimizers": self.optimizers, "normalisers": self.observers}
        self.parts = Parts(**kinds, **own_states(advantage=self.estimator))
        if config.policy_targets == "returns":  # there is no baseline
            self.hooks = ("update", "update_policy")

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        groups = self.context.env.groups
        return {name: net.initial_carry(num_envs, len(groups[name].agents)) for name, net in self.nets.items()}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Sample actions from the policy while exploring, else take the most likely ones."""
        return act(self.nets, self.kernels, self.observers, step, carry, mode)

    # learning

    def update(self, store: EpisodeStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of the policy, then `baseline_epochs` of the baseline, for each group in turn."""
        return self._update(store, phase)

    def update_policy(self, store: EpisodeStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of the policy alone."""
        return self._update(store, phase, value=False)

    def update_value(self, store: EpisodeStore, phase: PhaseInfo) -> Updated:
        """Make `baseline_epochs` gradient steps of the baseline alone."""
        return self._update(store, phase, policy=False)

    def _update(self, store: EpisodeStore, phase: PhaseInfo, policy: bool = True, value: bool = True) -> Updated:
        """Train policy or baseline or both on the finished episodes, for each group in turn."""
        episodes = store.take()
        metrics: dict[str, Any] = {}
        updates = 0
        for name in self.nets:
            batch = self._prepare(name, episodes, self.timed.at(phase))
            if not batch.weight.any():  # no agent of this group acted
                continue
            steps, group_metrics = self._fit(name, batch, phase, policy, value)
            updates += steps
            prefix = "train/" if len(self.nets) == 1 else f"train/{name}/"
            metrics |= {prefix + key: value for key, value in group_metrics.items()}
            self.observers[name].learn(episodes.groups[name]["obs"], batch.weight > 0)
        return Updated(updates, metrics)

    @torch.no_grad()
    def _prepare(self, name: str, episodes: Episodes, config: ReinforceConfig) -> EpisodeBatch:
        """Compute returns, the baseline's values and the weights of the actions of one group."""
        net, data, observer = self.nets[name], episodes.groups[name], self.observers[name]
        count = len(episodes.length)
        obs, died = observer(data["obs"]), self._tensor(data["died"])
        time = torch.arange(len(died), device=self.device)[:, None, None]
        last = time == self._tensor(episodes.length)[:, None] - 1
        first = (time == 0).expand(died.shape)
        reward = self._tensor(data["reward"])
        value = torch.zeros_like(reward)
        if config.policy_targets == "advantages":
            judged = net(obs, net.initial_carry(count, died.shape[-1]), first, carries=True)
            value = judged.value
            # truncated episodes bootstrap from the baseline's value of their final observation
            ends = (self._tensor(episodes.length) - 1, torch.arange(count, device=self.device))
            finals = map_tree(lambda x: x[None], observer(episodes.final_obs[name]))
            before = map_tree(lambda x: x[ends], judged.carries)
            final_value = net(finals, before, torch.zeros_like(first[:1])).value
            is_truncated = last & ~self._tensor(episodes.terminated)[:, None] & ~died
            reward = reward + config.gamma * final_value * is_truncated
        weight = self._tensor(data["active"]).float()
        if self.estimator is monte_carlo:
            returns = discounted_sum(reward, last | died, config.gamma)
            target = (returns if config.returns_type == "mc:rtg" else returns[0].expand_as(returns)) - value
        else:  # the reward of a truncated last step contains the value after it
            next_value = torch.cat([value[1:], value[:1]]).masked_fill(last | died, 0.0)
            numbers = (config.gamma, config.gae_lambda)
            target, returns = both(self.estimator(reward, value, next_value, last | died, *numbers), value)
        if config.normalize_targets:
            target = masked_standardise(target, weight)
        mask = self._tensor(data["mask"]) if "mask" in data else None
        return EpisodeBatch(obs, first, self._tensor(data["action"]), mask, weight, returns, target, value)

    def _fit(
        self, name: str, batch: EpisodeBatch, phase: PhaseInfo, policy: bool = True, value: bool = True
    ) -> tuple[int, dict[str, Tensor]]:
        """Make the gradient steps of one group; return their number and metrics."""
        config, net = self.timed.at(phase), self.nets[name]
        value = value and config.policy_targets == "advantages"
        now = {key: torch.tensor(getattr(config, key), device=self.device) for key in ("learning_rate", "entropy_coef")}
        inputs = {"obs": batch.obs, "first": batch.first}

        def forward(function: Callable[..., Tensor]) -> Tensor:
            def compute(part: Tree) -> Tensor:
                return function(part["obs"], net.initial_carry(*part["first"].shape[1:]), part["first"])

            output: Tensor = in_parts(compute, inputs, config.accumulate, dim=1)
            return output

        metrics = {"learning_rate": now["learning_rate"]}
        if policy:
            output = forward(lambda obs, carry, first: net.policy(obs, carry, first, carries=False)[0])
            log_prob, entropy = net.head.evaluate(output, batch.mask, batch.action)
            policy_loss = -masked_mean(log_prob * batch.target, batch.weight)
            mean_entropy = masked_mean(entropy, batch.weight)
            loss, parts = policy_loss - now["entropy_coef"] * mean_entropy, set(net.parts()) - {"critic"}
            norms = self._step(name, loss, now["learning_rate"], config.max_grad_norm, parts)
            metrics |= {"policy_loss": policy_loss.detach(), "entropy": mean_entropy.detach()}
            metrics |= {f"grad_norm/{part}": norm for part, norm in norms.items()}
        if value:
            for _ in range(config.baseline_epochs):
                baseline = forward(lambda *part: net(*part).value)
                value_loss = masked_mean((baseline - batch.returns).square(), batch.weight)
                limit = config.max_grad_norm
                self._step(name, value_loss, now["learning_rate"], limit, ("critic",))  # a shared torso is the policy's
            metrics["value_loss"] = value_loss.detach()
            metrics["explained_variance"] = explained_variance(batch.value, batch.returns, batch.weight)
        return policy + value * config.baseline_epochs, metrics

    def _step(
        self, name: str, loss: Tensor, learning_rate: Tensor, max_norm: float | None, only: Collection[str]
    ) -> dict[str, Tensor]:
        """Make one gradient step of the parts `only`; return the norms of the gradients."""
        self.optimizers[name].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return self.optimizers[name].step(learning_rate, max_norm, only)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    # what the lab shows

    def deployed(self, group: str) -> Deployed:
        from cadenza.nets.deployed import deployed_actor_critic

        return deployed_actor_critic(self.nets[group], self.observers[group])

    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return action probabilities (or means and deviations) and the baseline's values."""
        from cadenza.nets.opinions import actor_critic_opinions

        opinions, after = actor_critic_opinions(self.nets, self.observers, steps, carry)
        config = self.timed.at(mode.phase)
        credit = Credit(config.gamma, config.gae_lambda, estimate=self.estimator)
        return Explained(opinions, after, dict.fromkeys(self.nets, credit))

    # phases and state

    def stores(self) -> dict[str, Store]:
        return {"episodes": self.context.store("episodes", EpisodeStore)}

    def phases(self) -> tuple[Phase, ...]:
        collect = Hook("collect", episodes=self.config.episodes_per_update)
        return (Phase("train", (collect, Hook("update")), buffer="episodes"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        self.parts.load_weights(state)

    def state_dict(self) -> dict[str, Any]:
        return self.parts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
