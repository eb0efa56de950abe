"""Soft Actor-Critic (Haarnoja et al. 2018, arXiv:1812.05905), with discrete actions too (Christodoulou 2019).

Each group has its own policy, critics and temperature, shared by its agents. Settings: `sac_config.py`. On a CPU, a
hand-written kernel computes the gradients of `_critic_loss` and `_policy_loss` where it supports the networks; if one
of them is edited or overridden, that is noticed before the first step and autograd computes both.
Letters in shapes: B transitions, A agents of the group, E critics, n discrete actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config.networks import HeadConfig, OwnPart
from cadenza.config.schedules import TimedSettings
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Transitions
from cadenza.data.replay import ReplayStore
from cadenza.nets.deployed import Deployed
from cadenza.nets.ensemble import Ensemble, OwnEnsemble
from cadenza.nets.heads import CategoricalHead, SquashedHead
from cadenza.nets.mlp import MLP, network
from cadenza.nets.numpy.actor_critic_kernel import fill_parameters, observes_vectors
from cadenza.nets.numpy.sac_kernel import SACKernel, Sample, example_batch, sac_kernel
from cadenza.nets.observe import VECTOR, ObservationTensors, Observer
from cadenza.nets.opinions import action_mask, policy_opinion, to_numpy
from cadenza.nets.optimizers import Optimizer, in_parts, optimizer
from cadenza.nets.target import Target
from cadenza.nets.torso import Torso
from cadenza.ops.surrogate import masked_mean
from cadenza.trees import map_tree
from cadenza.types import (
    Acted,
    Context,
    Credit,
    Explained,
    GroupSpec,
    Mode,
    Opinion,
    PhaseInfo,
    Step,
    Store,
    Tree,
    Updated,
)
from cadenza.workflows.parts import Parts
from cadenza.workflows.sac_config import SACConfig

RATE = "learning_rate"  # in the metrics
AS_CONSTANTS = {"tau", "temperature", "target_entropy"}  # of a CUDA graph
SHARE = 0.98  # of the highest entropy that discrete actions can have


class SACPolicy(nn.Module):
    """Maps observations to the input of the action head."""

    def __init__(self, group: GroupSpec, config: SACConfig) -> None:
        super().__init__()
        self.torso = Torso(group.observation, config.torso)
        self.is_continuous = isinstance(group.action, spaces.Box)
        self.head: Any
        if isinstance(config.head, OwnPart):
            from cadenza.nets.own_parts import own_sac_head

            self.head = own_sac_head(group.action, config.head)
        elif isinstance(group.action, spaces.Box):
            normal = HeadConfig(std="state", squash=True, log_std_init=config.log_std_init)
            self.head = SquashedHead(group.action, normal)
        else:
            assert isinstance(group.action, spaces.Discrete)
            self.head = CategoricalHead(group.action)
        self.actor = network(self.torso.features, self.head.outputs, config.actor)
        for layer in self.actor if isinstance(self.actor, MLP) else ():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()  # torch's own start, as in the authors' code

    def forward(self, obs: ObservationTensors) -> Tensor:
        features, _ = self.torso(obs, {}, torch.empty(0))
        output: Tensor = self.actor(features)
        return output


class Critics(nn.Module):
    """Map observations and continuous actions to values [E, *], or observations to those of all actions [E, *, n]."""

    def __init__(self, group: GroupSpec, config: SACConfig) -> None:
        super().__init__()
        self.torso = Torso(group.observation, config.torso)
        size = math.prod(group.action.shape) if isinstance(group.action, spaces.Box) else 0
        outputs = 1 if size else int(group.action.n)  # type: ignore[attr-defined]
        inputs, extras = self.torso.features + size, (config.layer_norm, config.dropout)
        self.critics: Ensemble | OwnEnsemble
        if config.critic.network == "mlp":
            self.critics = Ensemble(config.critics, inputs, outputs, config.critic, *extras)
        else:
            self.critics = OwnEnsemble(config.critics, inputs, outputs, config.critic)

    def forward(
        self, obs: ObservationTensors, action: Tensor | None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the values; `action` is on the scale [-1, 1], None if discrete. The generator enables dropout."""
        features, _ = self.torso(obs, {}, torch.empty(0))
        inputs = features if action is None else torch.cat([features, action], -1)
        values: Tensor = self.critics(inputs.flatten(0, -2), generator)
        values = values.view(len(values), *inputs.shape[:-1], -1)
        return values if action is None else values.squeeze(-1)


class Temperature(nn.Module):
    """The weight of the entropy: learned as its logarithm, or fixed."""

    def __init__(self, group: GroupSpec, config: SACConfig) -> None:
        super().__init__()
        is_learned = config.temperature == "auto"
        self.fixed: float | None = None  # set by `follow`
        self.log = nn.Parameter(torch.tensor(math.log(config.initial_temperature)), requires_grad=is_learned)
        self.by_mask = config.target_entropy == "auto" and isinstance(group.action, spaces.Discrete)
        if isinstance(group.action, spaces.Discrete):
            self.target = SHARE * math.log(int(group.action.n))
        else:
            self.target = -float(math.prod(group.action.shape or ()))
        self.follow(config)

    def target_entropy(self, mask: Tensor | None, weight: Tensor) -> float | Tensor:
        """Return the entropy that the temperature is learned for; with masks, that of the allowed actions."""
        if mask is None or not self.by_mask:
            return self.target
        return masked_mean(SHARE * mask.sum(-1).clamp(min=1).log(), weight)

    def follow(self, config: SACConfig) -> None:
        """Take over what the settings fix and may change in a run."""
        if config.temperature != "auto":
            self.fixed = config.temperature
        if config.target_entropy != "auto":
            self.target = config.target_entropy

    def now(self) -> Tensor:
        return self.log.detach().exp() if self.fixed is None else torch.full_like(self.log, self.fixed)


@dataclass(frozen=True)
class Batch:
    """The transitions of a group [B, A, …], as tensors, or as arrays for a kernel."""

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    goes_on: Any  # weight of the value of next_obs: 0 after an end, else the discount
    mask: Any
    next_mask: Any
    weight: Any  # 1 where the agent acted, else 0


class SAC:
    """Soft Actor-Critic, and its variants REDQ and DroQ."""

    hooks = ("update", "update_value", "update_policy")

    def __init__(self, config: SACConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        self.timed = TimedSettings(config)
        self.policies: dict[str, SACPolicy] = {}
        self.critics: dict[str, Critics] = {}
        self.targets: dict[str, Target[Critics]] = {}
        self.temperatures: dict[str, Temperature] = {}
        self.observers: dict[str, Observer] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.kernels: dict[str, SACKernel] = {}  # hand-written, where they support the networks
        self.updates = 0
        self._captured: dict[tuple[str, bool, bool, bool], Callable[[Tree], Tree]] = {}
        # one temperature for a whole run may be a constant of a graph, and so may the targets' pace
        self._captures = context.captures and config.accumulate == 1 and not AS_CONSTANTS & set(self.timed.schedules)
        first = self.timed.at(PhaseInfo("train", "online", now=0, horizon=1))
        for name, group in context.env.groups.items():
            policy = self.policies[name] = SACPolicy(group, config).to(self.device)
            critics = self.critics[name] = Critics(group, config).to(self.device)
            self.temperatures[name] = Temperature(group, first).to(self.device)
            parts: dict[str, nn.Module] = {"policy": policy, "critics": critics}
            if config.temperature == "auto":
                parts["temperature"] = self.temperatures[name]
            for part, net in parts.items():
                self.optimizers[f"{name}.{part}"] = optimizer(net, config.optimizer)
            self.targets[name] = Target(critics, self.optimizers[f"{name}.critics"])
            raw, scale = config.torso.encoder != "auto", config.normalize_obs
            self.observers[name] = Observer(group.observation, self.device, "static" if scale else False, raw)
            if context.kernels == "numpy" and (kernel := self._kernel(name)):
                self.kernels[name] = kernel
        self.parts = Parts(
            policies=self.policies,
            critics=self.critics,
            targets={name: target.net for name, target in self.targets.items()},
            temperatures=self.temperatures,
            optimizers=self.optimizers,
            normalisers=self.observers,
        )

    def _kernel(self, name: str) -> SACKernel | None:
        policy, critics, targets = self.policies[name], self.critics[name], self.targets[name].net
        torsos, trusts = (policy.torso, critics.torso), self.config.policy_trusts
        ensemble, slow = critics.critics, targets.critics
        if isinstance(self.config.head, OwnPart) or not isinstance(policy.actor, MLP):
            return None
        if isinstance(ensemble, OwnEnsemble) or isinstance(slow, OwnEnsemble):
            return None
        return sac_kernel(policy.head, policy.actor, ensemble, slow, torsos, trusts)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        action = mode.forced
        if action is None:
            action = {name: self._choose(name, step, mode) for name in self.policies}
        return Acted(action, {name: {} for name in self.policies}, carry)

    def _choose(self, name: str, step: Step, mode: Mode) -> np.ndarray:
        if name in self.kernels:
            generator = mode.streams.numpy(f"act.{name}") if mode.explore else None
            return self.kernels[name].act(self.observers[name].vector(step.obs[name]), generator)
        return self._choose_by_module(name, step, mode)

    @torch.inference_mode()
    def _choose_by_module(self, name: str, step: Step, mode: Mode) -> np.ndarray:
        policy, observer, obs = self.policies[name], self.observers[name], step.obs[name]
        output = policy(observer(obs))
        mask = torch.from_numpy(step.mask[name]).to(self.device) if name in step.mask else None
        if mode.explore:
            action: Tensor = policy.head.sample(output, mask, mode.streams.torch(f"act.{name}", self.device))
        else:
            action = policy.head.mode(output, mask)
        return action.cpu().numpy()

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return the distribution of actions, its value by the lowest critic, and of discrete actions Q values."""
        opinions = {name: self._opinion(name, steps) for name in self.policies}
        return Explained(opinions, carry, dict.fromkeys(self.policies, Credit(self.timed.at(mode.phase).gamma)))

    def _opinion(self, name: str, steps: Step) -> Opinion:
        policy, critics, obs = self.policies[name], self.critics[name], self.observers[name](steps.obs[name])
        output, mask = policy(obs), action_mask(steps, name, self.device)
        if policy.is_continuous:
            action = policy.head.to_unit(policy.head.mode(output, mask))
            return policy_opinion(policy.head, output, mask, critics(obs, action).amin(0))
        values, probs = critics(obs, None).amin(0), policy.head.log_probs(output, mask).exp()
        return Opinion(probs=to_numpy(probs), q=to_numpy(values), value=to_numpy((values * probs.double()).sum(-1)))

    def deployed(self, group: str) -> Deployed:
        policy = self.policies[group]

        def network(obs: ObservationTensors, carry: Tree, first: Tensor) -> tuple[Tensor, Tree]:
            return policy(obs), {}

        return Deployed(self.observers[group], [policy], network, policy.head.mode)

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Take a gradient step of the critics, and if due of policy, temperature and targets, group after group."""
        return self._update(store, phase, critics=True, policy=self.updates % self.config.policy_every == 0)

    def update_value(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Take a gradient step of the critics alone, which their targets follow."""
        return self._update(store, phase, critics=True, policy=False)

    def update_policy(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Take a gradient step of policy and temperature alone."""
        return self._update(store, phase, critics=False, policy=True)

    def _update(self, store: ReplayStore, phase: PhaseInfo, critics: bool, policy: bool) -> Updated:
        """Sample transitions, and learn these parts from them, group after group."""
        config = self.timed.at(phase)
        sampled = store.sample(config.batch_size, self.context.streams.numpy("replay"), config.n_step, config.gamma)
        metrics: dict[str, Any] = {}
        for name in self.policies:
            if not sampled.groups[name]["active"].any():  # no agent of this group acted
                continue
            if self._captures:
                figures = self._learn_by_graph(name, sampled, phase, critics, policy)
            else:
                figures = self._learn(name, self._batch(name, sampled), config, critics, policy)
            prefix = "train/" if len(self.policies) == 1 else f"train/{name}/"
            metrics |= {prefix + key: value for key, value in figures.items()}
        self.updates += critics
        return Updated(1, metrics)

    def _batch(self, name: str, sampled: Transitions) -> Batch:
        data, observer, arrays = sampled.groups[name], self.observers[name], self._arrays(name, sampled)
        if self._uses_kernel(name):
            return Batch(observer.vector(data["obs"]), next_obs=observer.vector(data["next_obs"]), **arrays)
        tensors = {key: None if x is None else torch.from_numpy(x).to(self.device) for key, x in arrays.items()}
        return Batch(observer(data["obs"]), next_obs=observer(data["next_obs"]), **tensors)

    def _arrays(self, name: str, sampled: Transitions) -> dict[str, Any]:
        """Return the transitions of a group without the observations."""
        data = sampled.groups[name]
        action = data["action"]
        return {
            "action": action if action.dtype != np.float64 else action.astype(np.float32),
            "reward": data["reward"],
            "goes_on": sampled.discount[:, None] * ~data["terminated"],
            "mask": data.get("mask"),
            "next_mask": data.get("next_mask"),
            "weight": data["active"].astype(np.float32),
        }

    def _learn_by_graph(
        self, name: str, sampled: Transitions, phase: PhaseInfo, critics: bool, policy: bool
    ) -> dict[str, Any]:
        """Do what `_learn` does, as a CUDA graph for each choice of parts."""
        key = (name, critics, policy, critics and (self.updates + 1) % self.config.target_every == 0)

        def learn(inputs: Tree) -> Tree:
            config, masks = self.timed.filled(inputs["settings"]), {"mask": None, "next_mask": None}
            obs, next_obs = (self.observers[name].from_tensors(inputs[key]) for key in ("obs", "next_obs"))
            batch = Batch(obs, next_obs=next_obs, **{**masks, **inputs["arrays"]})
            figures = self._learn(name, batch, config, critics, policy)
            tensors = {key: torch.as_tensor(value, device=self.device) for key, value in figures.items() if key != RATE}
            return {"names": tuple(tensors), "figures": torch.stack(list(tensors.values()))}

        def generators() -> list[torch.Generator]:
            streams = [f"policy.{name}", *([f"dropout.{name}"] if self.config.dropout else [])]
            return [self.context.streams.torch(stream, self.device) for stream in streams]

        if key not in self._captured:
            self._captured[key] = self.context.captured(learn, generators)
        settings = self.timed.values(phase.now, phase.horizon) if self.timed.schedules else {}
        data, arrays = sampled.groups[name], self._arrays(name, sampled)
        inputs = {
            **{key: data[key] for key in ("obs", "next_obs")},
            "arrays": {key: x for key, x in arrays.items() if x is not None},
            "settings": {key: np.array(value, np.float32) for key, value in settings.items()},
        }
        outputs = self._captured[key](inputs)
        # copied, because the next call writes its figures over these
        figures = dict(zip(outputs["names"], outputs["figures"].clone().unbind(), strict=True))
        return {RATE: self.timed.at(phase).learning_rate, **figures}

    def _learn(self, name: str, batch: Batch, config: SACConfig, critics: bool, policy: bool) -> dict[str, Any]:
        optimizers, rate = self.optimizers, config.learning_rate
        self.temperatures[name].follow(config)
        temperature = self.temperatures[name].now()
        metrics: dict[str, Any] = {RATE: rate, "temperature": temperature}
        next_sample = sample = None
        if self._uses_kernel(name) and critics and policy:  # the policy does not change in between
            next_sample, sample = self._samples(name, batch.next_obs, batch.obs)
        if critics:
            loss, value = self._critic_gradients(name, batch, temperature, next_sample)
            critic_rate = rate if config.critic_learning_rate is None else config.critic_learning_rate
            norm = optimizers[f"{name}.critics"].step(critic_rate, config.max_grad_norm)["all"]
            metrics |= {"critic_loss": loss, "q_mean": value, "grad_norm/critics": norm}
        if policy:
            loss, entropy = self._policy_gradients(name, batch, temperature, sample)
            norm = optimizers[f"{name}.policy"].step(rate, config.max_grad_norm)["all"]
            metrics |= {"policy_loss": loss, "entropy": entropy, "grad_norm/policy": norm}
            if config.temperature == "auto":
                # of the logarithm times the entropy above its target
                gradient = self.temperatures[name].log.grad
                assert gradient is not None
                gradient.copy_(
                    torch.as_tensor(entropy - self.temperatures[name].target_entropy(batch.mask, batch.weight))
                )
                own_rate = config.temperature_learning_rate
                temperature_rate = rate if own_rate is None else own_rate
                optimizers[f"{name}.temperature"].step(temperature_rate, config.max_grad_norm)
        if critics and (self.updates + 1) % config.target_every == 0:
            self.targets[name].follow(config.tau)
        return metrics

    def _critic_gradients(
        self, name: str, batch: Batch, temperature: Tensor, next_sample: Sample | None = None
    ) -> tuple[Any, Any]:
        """Set the critics' gradients; return their loss and the mean of their values."""
        if self._uses_kernel(name):  # computes what `_critic_loss` says, which was checked
            (drawn,) = [next_sample] if next_sample else self._samples(name, batch.next_obs)
            return self.kernels[name].critic_gradients(batch, float(temperature), drawn)
        loss, value = self._critic_loss(name, batch, temperature)
        self._backward(f"{name}.critics", self.critics[name], loss)
        return loss.detach(), value

    def _policy_gradients(
        self, name: str, batch: Batch, temperature: Tensor, sample: Sample | None = None
    ) -> tuple[Any, Any]:
        """Set the policy's gradients; return its loss and its entropy."""
        if self._uses_kernel(name):
            (drawn,) = [sample] if sample else self._samples(name, batch.obs)
            return self.kernels[name].policy_gradients(batch, float(temperature), drawn)
        loss, entropy = self._policy_loss(name, batch, temperature)
        self._backward(f"{name}.policy", self.policies[name], loss)
        return loss.detach(), entropy

    def _uses_kernel(self, name: str) -> bool:
        return name in self.kernels and self.config.accumulate == 1

    def _backward(self, name: str, net: nn.Module, loss: Tensor) -> None:
        """Set the gradients of this network's parameters alone."""
        self.optimizers[name].zero_grad()
        loss.backward(inputs=[p for p in net.parameters() if p.requires_grad])  # type: ignore[no-untyped-call]

    def _samples(self, name: str, *observed: np.ndarray) -> list[Sample]:
        """Draw an action for each row of each batch of observations, with noise as the head of the policy draws it."""
        size = math.prod(self.context.env.groups[name].action.shape or ())
        generator = self.context.streams.torch(f"policy.{name}", self.device)
        noises = [torch.empty(math.prod(obs.shape[:2]), size).normal_(generator=generator) for obs in observed]
        return self.kernels[name].draw(*((obs, noise.numpy()) for obs, noise in zip(observed, noises, strict=True)))

    def _actions(self, name: str, obs: ObservationTensors, mask: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Return an action on the scale [-1, 1] and its log-probability, or None and those of all discrete actions."""
        policy = self.policies[name]
        output = in_parts(policy, obs, self.config.accumulate)
        if policy.is_continuous:
            drawn: tuple[Tensor, Tensor] = policy.head.draw(
                output, self.context.streams.torch(f"policy.{name}", self.device)
            )
            return drawn
        return None, policy.head.log_probs(output, mask)

    def _critic_values(self, name: str, obs: ObservationTensors, action: Tensor | None) -> Tensor:
        """Return the values of the critics that learn."""
        critics, noise, parts = self.critics[name], self._dropout(name), self.config.accumulate
        values: Tensor = in_parts(
            lambda part: critics(part["obs"], part["action"], noise), {"obs": obs, "action": action}, parts, out_dim=1
        )
        return values

    def _critic_loss(self, name: str, batch: Batch, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' loss, and the mean of their values."""
        policy, noise = self.policies[name], self._dropout(name)
        with torch.no_grad():
            action, log_prob = self._actions(name, batch.next_obs, batch.next_mask)
            next_value = self.targets[name].net(batch.next_obs, action, noise).amin(0)
            if action is not None:
                next_value = next_value - temperature * log_prob
            else:
                next_value = soft_value(next_value, log_prob, temperature)
            target = batch.reward + batch.goes_on * next_value
        if policy.is_continuous:
            value = self._critic_values(name, batch.obs, policy.head.to_unit(batch.action))
        else:
            values = self._critic_values(name, batch.obs, None)
            start = self.context.env.groups[name].action.start  # type: ignore[attr-defined]
            index = (batch.action - int(start)).long()[..., None].expand(*values.shape[:-1], 1)
            value = values.gather(-1, index).squeeze(-1)
        loss = 0.5 * masked_mean((value - target).square().sum(0), batch.weight)
        return loss, masked_mean(value.detach().mean(0), batch.weight)

    def _policy_loss(self, name: str, batch: Batch, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's loss and its entropy."""
        action, log_prob = self._actions(name, batch.obs, batch.mask)
        values = self._critic_values(name, batch.obs, action)
        value = values.amin(0) if self.config.policy_trusts == "min" else values.mean(0)
        if action is not None:
            loss, entropy = temperature * log_prob - value, -log_prob
        else:
            loss = -soft_value(value.detach(), log_prob, temperature)
            entropy = soft_value(torch.zeros_like(value), log_prob, torch.ones_like(temperature))
        return masked_mean(loss, batch.weight), masked_mean(entropy.detach(), batch.weight)

    def _dropout(self, name: str) -> torch.Generator | None:
        return self.context.streams.torch(f"dropout.{name}", self.device) if self.config.dropout else None

    def loss_example(self, group: str, numbers: np.random.Generator) -> tuple[dict[str, Any], list[nn.Module]] | None:
        """Set the networks' gradients to those that an update computes on a made-up batch; return figures and networks.

        None if the group's loss cannot be computed this way. See `HandWritten`.
        """
        policy, critics = self.policies[group], self.critics[group]
        if not observes_vectors(policy.torso) or (self.context.kernels == "numpy" and group not in self.kernels):
            return None
        fill_parameters(numbers, policy, critics, self.targets[group].net)
        agents, temperature = len(self.context.env.groups[group].agents), torch.tensor(0.3)
        features = policy.torso.encoder.features
        example = example_batch(policy.head, features, numbers, agents)  # type: ignore[arg-type]
        if not self._uses_kernel(group):
            example = map_tree(lambda x: None if x is None else torch.from_numpy(x), example)
            example |= {key: {VECTOR: example[key]} for key in ("obs", "next_obs")}
        batch = Batch(**example)
        critic_loss, q_mean = self._critic_gradients(group, batch, temperature)
        policy_loss, entropy = self._policy_gradients(group, batch, temperature)
        figures = {"critic_loss": critic_loss, "q_mean": q_mean, "policy_loss": policy_loss, "entropy": entropy}
        return figures, [critics, policy]

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        size, on_disk = config.buffer_size, config.buffer_on_disk
        return {"replay": self.context.store("replay", ReplayStore, size, num_envs, stack=stack, on_disk=on_disk)}

    def phases(self) -> tuple[Phase, ...]:
        """Return a warm-up of random actions, and the phase that collects and updates."""
        collect = Hook("collect", steps=self.config.train_every)
        train = Phase("train", (collect, Hook("update", ratio=self.config.update_ratio)), buffer="replay")
        if not self.config.warmup_steps:
            return (train,)
        gather = Hook("collect", steps=self.config.warmup_steps)
        return (Phase("warmup", (gather,), buffer="replay", actions="random", duration_cycles=1), train)

    def load_weights(self, state: dict[str, Any]) -> None:
        self.parts.load_weights(state)

    def state_dict(self) -> dict[str, Any]:
        return {**self.parts.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
        self.updates = state["updates"]


def soft_value(value: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return the mean over discrete actions [*, n] of value plus entropy; impossible actions count nothing."""
    probs = log_prob.exp()
    return (probs * (value - temperature * log_prob.masked_fill(probs == 0, 0.0))).sum(-1)
