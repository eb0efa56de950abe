"""Deep Q-learning (Mnih et al. 2015) and what Rainbow (Hessel et al. 2018) adds, for any number of agent groups.

Each group has its own network, target network and optimizer, shared by its agents. Settings: `dqn_config.py`. On a
CPU, a hand-written kernel computes the gradient of `_loss` where it supports the network; if `_loss` is edited or
overridden, that is noticed before the first step and autograd computes it.
Letters in shapes: B transitions, N environments, A agents of the group, n actions, K atoms of a distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.config.schedules import TimedSettings, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Transitions
from cadenza.data.replay import ReplayStore
from cadenza.nets.deployed import Deployed
from cadenza.nets.numpy.actor_critic_kernel import observes_vectors
from cadenza.nets.numpy.q_kernel import QKernel, example_batch, q_kernel
from cadenza.nets.observe import VECTOR, ObservationTensors, Observer
from cadenza.nets.opinions import action_mask, q_opinion
from cadenza.nets.optimizers import Optimizer, in_parts, optimizer
from cadenza.nets.q_network import Noise, QNetwork
from cadenza.nets.target import Target
from cadenza.ops.td import TDBatch, huber, project, quantile_huber
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Credit, Explained, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.dqn_config import DQNConfig
from cadenza.workflows.parts import Parts

Array = np.ndarray[Any, Any]
ROWS_AT_ONCE = 1024  # transitions in gradient steps that share one pass through the target network


class DQN:
    """Deep Q-learning, and its variant Rainbow."""

    hooks = ("update", "update_value")

    def __init__(self, config: DQNConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        self.timed = TimedSettings(config)
        self._compiled_loss: Callable[..., tuple[Tensor, Tensor, Tensor]] = self._loss
        if config.accumulate == 1:
            self._compiled_loss = context.compiled(self._loss)
        self.nets: dict[str, QNetwork] = {}
        self.targets: dict[str, Target[QNetwork]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.observers: dict[str, Observer] = {}
        self.kernels: dict[str, QKernel] = {}  # hand-written, where they support the network
        self.gradient_steps = dict.fromkeys(context.env.groups, 0)
        self.starts = {name: int(group.action.start) for name, group in context.env.groups.items()}  # type: ignore[attr-defined]
        for name, group in context.env.groups.items():
            net = self.nets[name] = QNetwork(group, config).to(self.device)
            self.optimizers[name] = optimizer(net, config.optimizer)
            target = self.targets[name] = Target(net, self.optimizers[name])
            if context.kernels == "numpy" and (kernel := q_kernel(net, target.net)):
                self.kernels[name] = kernel
            raw, scale = config.torso.encoder != "auto", config.normalize_obs
            self.observers[name] = Observer(group.observation, self.device, "static" if scale else False, raw)
        self.parts = Parts(
            networks=self.nets,
            targets={name: target.net for name, target in self.targets.items()},
            optimizers=self.optimizers,
            normalisers=self.observers,
        )

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        action = mode.forced
        if action is None:
            epsilon = self.config.evaluation_epsilon
            if mode.explore:
                epsilon = value_at(self.config.epsilon, mode.phase.now, mode.phase.horizon)
            action = {name: self._choose(name, step, epsilon, mode) for name in self.nets}
        return Acted(action, {name: {} for name in self.nets}, carry)

    def _choose(self, name: str, step: Step, epsilon: float, mode: Mode) -> Array:
        """Return the best actions [N, A], each replaced by a random allowed one with probability `epsilon`."""
        shape, mask, start = step.active[name].shape, step.mask.get(name), self.starts[name]
        at_random = 0
        if epsilon > 0:
            generator = mode.streams.numpy(f"act.{name}")
            is_random = generator.random(shape) < epsilon
            at_random = int(np.count_nonzero(is_random))  # counting is quicker than any() and all()
            if at_random:
                action = masked(generator.random((*shape, self.nets[name].actions)), mask).argmax(-1)
                if at_random == action.size:
                    return np.asarray(action + start)
        best = masked(self._values(name, step, mode), mask).argmax(-1)
        return np.asarray((np.where(is_random, action, best) if at_random else best) + start)

    def _values(self, name: str, step: Step, mode: Mode) -> Array:
        """Return the Q values [N, A, n]."""
        net, observer, obs = self.nets[name], self.observers[name], step.obs[name]
        if name in self.kernels:
            return self.kernels[name].values(observer.vector(obs))
        with torch.inference_mode():
            noise = net.draw(mode.streams.torch(f"noise.{name}", self.device)) if mode.explore else ()
            return net.means(net(observer(obs), noise)).cpu().numpy()

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return the Q values."""
        opinions = {}
        for name, net in self.nets.items():
            values = net.means(net(self.observers[name](steps.obs[name])))
            opinions[name] = q_opinion(values, action_mask(steps, name, self.device))
        return Explained(opinions, carry, dict.fromkeys(self.nets, Credit(self.timed.at(mode.phase).gamma)))

    def deployed(self, group: str) -> Deployed:
        net, start = self.nets[group], self.starts[group]

        def network(obs: ObservationTensors, carry: Tree, first: Tensor) -> tuple[Tensor, Tree]:
            return net.means(net(obs)), {}

        def choose(values: Tensor, mask: Tensor | None) -> Tensor:
            allowed = values if mask is None else values.masked_fill(~mask, torch.finfo(values.dtype).min)
            return allowed.argmax(-1) + start

        chance = self.config.evaluation_epsilon
        return Deployed(self.observers[group], [net], network, choose, random_share=chance)

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Take one gradient step, group after group, on the same transitions; or several of those that are due."""
        config, is_prioritized = self.timed.at(phase), self.config.priority_alpha is not None
        calls, generator = self._calls(phase.due), self.context.streams.numpy("replay")
        amount, beta = calls * config.batch_size, config.priority_beta
        sampled = store.sample(amount, generator, config.n_step, config.gamma, beta)
        priorities = np.zeros(config.batch_size, np.float32)
        metrics: dict[str, Any] = {}
        updates = 0
        for name in self.nets:
            acted = sampled.groups[name]["active"]
            if not acted.any():  # no agent of this group
                continue
            figures, errors = self._learn(name, self._batch(name, sampled, calls), calls, config)
            if is_prioritized:
                priorities = np.maximum(priorities, (errors * acted).max(-1))
            prefix = "train/" if len(self.nets) == 1 else f"train/{name}/"
            metrics |= {prefix + key: value for key, value in figures.items()}
            updates += calls
        if is_prioritized:
            store.update_priorities(sampled.index, priorities)
        metrics["train/epsilon"] = config.epsilon
        return Updated(updates, metrics, calls)

    def update_value(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Do the same as `update`: the values are all that it learns."""
        return self.update(store, phase)

    def _calls(self, due: int) -> int:
        """Return how many of the gradient steps that are due to take at once: with one pass through the target."""
        config, groups = self.config, self.context.env.groups
        if config.priority_alpha is not None or len(groups) > 1:
            return 1
        ((name, group),) = groups.items()
        if (
            name not in self.kernels or config.accumulate > 1 or len(group.agents) > 1
        ):  # some of several may not have acted
            return 1
        until_copied = config.target_every - self.gradient_steps[name] % config.target_every
        return max(1, min(due, until_copied, ROWS_AT_ONCE // config.batch_size))

    def _batch(self, name: str, sampled: Transitions, calls: int) -> TDBatch:
        """Return arrays, with observations as the environment gave them."""
        data = sampled.groups[name]
        acted = data["active"].astype(np.float32)
        share = acted * (calls / acted.sum())
        return TDBatch(
            obs=data["obs"],
            action=data["action"] - self.starts[name],
            reward=data["reward"],
            next_obs=data["next_obs"],
            next_mask=data.get("next_mask"),
            discount=sampled.discount[:, None] * ~data["terminated"],
            share=share,
            weight=share if sampled.weight is None else share * sampled.weight[:, None],
        )

    def _learn(self, name: str, batch: TDBatch, calls: int, config: DQNConfig) -> tuple[dict[str, Any], Array]:
        """Take `calls` gradient steps; return the means of their figures, and the last one's absolute errors [B, A]."""
        steps = []
        for figures, errors in self._gradients(name, batch, calls):
            norms = self.optimizers[name].step(config.learning_rate, config.max_grad_norm)
            steps.append(({**figures, "grad_norm": norms["all"]}, errors))
        self.gradient_steps[name] += calls
        if self.gradient_steps[name] % config.target_every == 0:
            self.targets[name].follow(config.tau)
        figures, errors = steps[-1]
        if calls > 1:
            figures = {key: sum(step[key] for step, _ in steps) / calls for key in figures}
        return {**figures, "learning_rate": config.learning_rate}, errors

    def _gradients(self, name: str, batch: TDBatch, calls: int) -> Iterator[tuple[dict[str, Any], Array]]:
        """Set the parameters' gradients for one call after the other; yield figures and absolute errors [B, A]."""
        observer = self.observers[name]
        if name in self.kernels and self.config.accumulate == 1:
            arrays = replace(batch, obs=observer.vector(batch.obs), next_obs=observer.vector(batch.next_obs))
            yield from self._kernel_gradients(name, arrays, calls)
        else:
            obs, next_obs = observer(batch.obs), observer(batch.next_obs)
            yield self._loss_gradients(name, self._tensors(replace(batch, obs=obs, next_obs=next_obs)))

    def _kernel_gradients(self, name: str, batch: TDBatch, calls: int) -> Iterator[tuple[dict[str, Any], Array]]:
        """Compute what `_loss` says, which was checked, by hand; the network changes between the calls."""
        config = self.config
        for step in self.kernels[name].gradients(batch, calls, config.double, config.loss == "mse"):
            figures = {"loss": step.loss, "q_mean": step.q_mean, "td_error": step.td_error}
            yield figures, step.errors.reshape(-1, batch.action.shape[1])

    def _loss_gradients(self, name: str, batch: TDBatch) -> tuple[dict[str, Any], Array]:
        """Compute them by autograd on `_loss`."""
        net, target = self.nets[name], self.targets[name].net
        generator = self.context.streams.torch(f"noise.{name}", self.device)
        loss, figures, errors = self._compiled_loss(net, target, batch, net.draw(generator), target.draw(generator))
        self.optimizers[name].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        # only priorities need the errors on the CPU, and copying them waits for the device
        sizes = errors.cpu().numpy() if self.config.priority_alpha is not None else np.zeros(errors.shape, np.float32)
        return dict(zip(("loss", "q_mean", "td_error"), figures, strict=True)), sizes

    def _tensors(self, batch: TDBatch) -> TDBatch:
        """Return a batch of arrays, except for the observations, as tensors."""
        arrays = {key: value for key, value in vars(batch).items() if key not in ("obs", "next_obs")}
        return replace(batch, **map_tree(lambda x: None if x is None else torch.from_numpy(x).to(self.device), arrays))

    def _loss(
        self, net: QNetwork, target: QNetwork, batch: TDBatch, noise: Noise, target_noise: Noise
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scalar to minimise, figures to log, and the errors that become priorities [B, A]."""
        with torch.no_grad():
            next_output = target(batch.next_obs, target_noise)
            scores = net.means(net(batch.next_obs, noise)) if self.config.double else target.means(next_output)
            if batch.next_mask is not None:
                scores = scores.masked_fill(~batch.next_mask, -torch.inf)
            next_output = of_actions(next_output, scores.argmax(-1))
        inputs, parts = {"obs": batch.obs, "action": batch.action}, self.config.accumulate
        output = in_parts(lambda part: of_actions(net(part["obs"], noise), part["action"]), inputs, parts)
        losses, goal, divergence = self._errors(net, output, next_output, batch)
        loss = (losses * batch.weight).sum()
        with torch.no_grad():
            value = net.means(output)
            error = (goal - value).abs()
            figures = torch.stack([loss, (value * batch.share).sum(), (error * batch.share).sum()])
        return loss, figures, error if divergence is None else divergence

    def _errors(
        self, net: QNetwork, output: Tensor, next_output: Tensor, batch: TDBatch
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return losses, targets of values, and for priorities the divergence if it replaces the error; all [B, A]."""
        config = self.config
        if config.distribution == "none":
            goal = batch.reward + batch.discount * next_output
            return (output - goal).square() if config.loss == "mse" else huber(output - goal), goal, None
        reward, discount = batch.reward[..., None], batch.discount[..., None]
        if config.distribution == "quantile":
            goals = reward + discount * next_output
            return quantile_huber(output, goals, config.kappa), goals.mean(-1), None
        with torch.no_grad():
            probs = project(next_output.softmax(-1), reward + discount * net.support, net.support)
        losses = -(probs * output.log_softmax(-1)).sum(-1)
        divergence = losses.detach() + torch.xlogy(probs, probs).sum(-1)  # as in Rainbow
        return losses, (probs * net.support).sum(-1), divergence.clamp(min=0)

    def loss_example(self, group: str, numbers: np.random.Generator) -> tuple[dict[str, Any], list[QNetwork]] | None:
        """Set the networks' gradients to those that an update computes on a made-up batch; return figures and networks.

        None if the group's loss cannot be computed this way. See `HandWritten`.
        """
        net, target = self.nets[group], self.targets[group].net
        if not observes_vectors(net.torso) or (self.context.kernels == "numpy" and group not in self.kernels):
            return None
        batch = example_batch(net, target, numbers, len(self.context.env.groups[group].agents))
        if group in self.kernels:
            figures, errors = next(self._kernel_gradients(group, batch, calls=1))
        else:
            obs, next_obs = ({VECTOR: torch.from_numpy(x)} for x in (batch.obs, batch.next_obs))
            figures, errors = self._loss_gradients(group, self._tensors(replace(batch, obs=obs, next_obs=next_obs)))
        return figures | ({"priorities": errors} if self.config.priority_alpha is not None else {}), [net]

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        size, alpha, on_disk = config.buffer_size, config.priority_alpha, config.buffer_on_disk
        return {
            "replay": self.context.store(
                "replay", ReplayStore, size, num_envs, alpha=alpha, stack=stack, on_disk=on_disk
            )
        }

    def phases(self) -> tuple[Phase, ...]:
        """Return a warm-up of random actions, and the phase that collects and updates."""
        collect, warmup_steps = Hook("collect", steps=self.config.train_every), self.config.warmup_steps
        train = Phase("train", (collect, Hook("update", ratio=self.config.update_ratio)), buffer="replay")
        if not warmup_steps:
            return (train,)
        warmup = Phase("warmup", (collect,), buffer="replay", actions="random", duration_steps=warmup_steps)
        return (warmup, train)

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load networks and normalisers; the target networks start as copies."""
        self.parts.load_weights({**state, "targets": state["networks"]})

    def state_dict(self) -> dict[str, Any]:
        return {**self.parts.state_dict(), "gradient_steps": dict(self.gradient_steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
        self.gradient_steps = dict(state["gradient_steps"])


def masked(scores: Array, mask: Array | None) -> Array:
    """Return the scores, minus infinity where an action is not allowed."""
    return scores if mask is None else np.where(mask, scores, -np.inf)


def of_actions(output: Tensor, action: Tensor) -> Tensor:
    """Return the entries [B, A] or [B, A, K] of an output for actions [B, A]."""
    index = action.reshape(*action.shape, *(1,) * (output.dim() - action.dim()))
    return output.gather(2, index.expand(*action.shape, 1, *output.shape[3:])).squeeze(2)
