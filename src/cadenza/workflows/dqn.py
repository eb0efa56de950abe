"""Deep Q-learning (Mnih et al. 2015) and what Rainbow (Hessel et al. 2018) adds, for any number of agent groups.

Each group has network, target network and optimizer of its own, shared by its agents. Settings: `dqn_config.py`.
Letters in shapes: B transitions, N environments, A agents of the group, n actions, K atoms of a distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.config.schedules import Scheduled, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Transitions
from cadenza.data.replay import ReplayStore
from cadenza.nets.deployed import Deployed
from cadenza.nets.numpy.q_kernel import PlainQ, flat, gradients, plain_q
from cadenza.nets.observe import ObservationTensors, Observer
from cadenza.nets.opinions import action_mask, q_opinion
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.nets.q_network import Noise, QNetwork
from cadenza.nets.target import Target
from cadenza.ops.td import TDBatch, huber, project, quantile_huber
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Credit, Explained, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.dqn_config import DQNConfig
from cadenza.workflows.parts import Parts

Array = np.ndarray[Any, Any]
ROWS_AT_ONCE = 1024  # of transitions, in gradient steps that share what the target network says


class DQN:
    hooks = ("update",)

    def __init__(self, config: DQNConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        self._compiled_loss: Callable[..., tuple[Tensor, Tensor, Tensor]] = context.compiled(self._loss)
        self.nets: dict[str, QNetwork] = {}
        self.targets: dict[str, Target[QNetwork]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.observers: dict[str, Observer] = {}
        self.plain: dict[str, tuple[PlainQ, PlainQ]] = {}  # network and target by hand, where that can be
        self.gradient_steps = dict.fromkeys(context.env.groups, 0)
        for name, group in context.env.groups.items():
            net = self.nets[name] = QNetwork(group, config).to(self.device)
            self.optimizers[name] = optimizer(net, config.optimizer)
            target = self.targets[name] = Target(net, self.optimizers[name])
            online, judge = plain_q(net, context.kernels), plain_q(target.net, context.kernels)
            if online is not None and judge is not None:
                self.plain[name] = online, judge
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
            epsilon = self._now(self.config.epsilon, mode.phase) if mode.explore else self.config.evaluation_epsilon
            action = {name: self._choose(name, step, epsilon, mode) for name in self.nets}
        return Acted(action, {name: {} for name in self.nets}, carry)

    def _choose(self, name: str, step: Step, epsilon: float, mode: Mode) -> Array:
        """The best actions [N, A], or with this probability any that is allowed."""
        shape, mask = step.active[name].shape, step.mask.get(name)
        chosen, at_random = np.zeros(shape, np.int64), np.zeros(shape, bool)
        if epsilon > 0:
            draw = mode.streams.numpy(f"act.{name}")
            at_random = draw.random(shape) < epsilon
            if at_random.any():
                chosen = masked(draw.random((*shape, self.nets[name].actions)), mask).argmax(-1)
        if not at_random.all():
            best = masked(self._values(name, step, mode), mask).argmax(-1)
            chosen = np.where(at_random, chosen, best)
        return np.asarray(chosen + self.context.env.groups[name].action.start)  # type: ignore[attr-defined]

    def _values(self, name: str, step: Step, mode: Mode) -> Array:
        """[N, A, n]"""
        net, observer, obs = self.nets[name], self.observers[name], step.obs[name]
        if name in self.plain:
            vector = observer.vector(obs)
            return self.plain[name][0](vector.reshape(-1, vector.shape[-1])).reshape(*vector.shape[:-1], -1)
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
        return Explained(opinions, carry, dict.fromkeys(self.nets, Credit(self.config.gamma)))

    def deployed(self, group: str) -> Deployed:
        net, start = self.nets[group], int(self.context.env.groups[group].action.start)  # type: ignore[attr-defined]

        def network(obs: ObservationTensors, carry: Tree, first: Tensor) -> tuple[Tensor, Tree]:
            return net.means(net(obs)), {}

        def choose(values: Tensor, mask: Tensor | None) -> Tensor:
            allowed = values if mask is None else values.masked_fill(~mask, torch.finfo(values.dtype).min)
            return allowed.argmax(-1) + start

        chance = self.config.evaluation_epsilon
        return Deployed(self.observers[group], [net], network, choose, random_share=chance)

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """One gradient step, group after group, on the same moments of the environments; or several at once."""
        config, prioritized = self.config, self.config.priority_alpha is not None
        beta, generator = self._now(config.priority_beta, phase), self.context.streams.numpy("replay")
        calls = self._at_once(phase.due)
        sampled = store.sample(calls * config.batch_size, generator, config.n_step, config.gamma, beta)
        surprise = np.zeros(config.batch_size, np.float32)
        metrics: dict[str, Any] = {}
        updates = 0
        for name in self.nets:
            acted = sampled.groups[name]["active"]
            if not acted.any():  # nobody of this group
                continue
            batch, learning_rate = self._batch(name, sampled, calls), self._now(config.learning_rate, phase)
            figures, errors = self._learn(name, batch, calls, learning_rate)
            if prioritized:
                surprise = np.maximum(surprise, (errors * acted).max(-1))
            prefix = "train/" if len(self.nets) == 1 else f"train/{name}/"
            metrics |= {prefix + key: value for key, value in figures.items()}
            updates += calls
        if prioritized:
            store.update_priorities(sampled.index, surprise)
        metrics["train/epsilon"] = self._now(config.epsilon, phase)
        return Updated(updates, metrics, calls)

    def _at_once(self, due: int) -> int:
        """How many gradient steps one call takes: with the same target network, what it says is asked for once."""
        config, groups = self.config, self.context.env.groups
        if config.priority_alpha is not None or len(groups) > 1:
            return 1
        ((name, group),) = groups.items()
        if name not in self.plain or len(group.agents) > 1:  # of several some may not have acted
            return 1
        until_copied = config.target_every - self.gradient_steps[name] % config.target_every
        return max(1, min(due, until_copied, ROWS_AT_ONCE // config.batch_size))

    def _batch(self, name: str, sampled: Transitions, calls: int) -> TDBatch:
        """Arrays, with observations as they were seen."""
        data = sampled.groups[name]
        acted = data["active"].astype(np.float32)
        share = acted * (calls / acted.sum())
        return TDBatch(
            obs=data["obs"],
            action=data["action"] - self.context.env.groups[name].action.start,  # type: ignore[attr-defined]
            reward=data["reward"],
            next_obs=data["next_obs"],
            next_mask=data.get("next_mask"),
            discount=sampled.discount[:, None] * ~data["terminated"],
            share=share,
            weight=share if sampled.weight is None else share * sampled.weight[:, None],
        )

    def _learn(self, name: str, batch: TDBatch, calls: int, learning_rate: float) -> tuple[dict[str, Any], Array]:
        """A gradient step for each call; the means of their figures, and the size of each error of the last [B, A]."""
        done = []
        for figures, errors in self._by_hand(name, batch, calls) if name in self.plain else self._by_torch(name, batch):
            norms = self.optimizers[name].step(learning_rate, self.config.max_grad_norm)
            done.append(({**figures, "grad_norm": norms["all"]}, errors))
        self.gradient_steps[name] += calls
        if self.gradient_steps[name] % self.config.target_every == 0:
            self.targets[name].follow(self.config.tau)
        figures, errors = done[-1]
        if calls > 1:
            figures = {key: sum(each[key] for each, _ in done) / calls for key in figures}
        return {**figures, "learning_rate": learning_rate}, errors

    def _by_hand(self, name: str, batch: TDBatch, calls: int) -> Iterator[tuple[dict[str, Any], Array]]:
        """Gradients of one call after the other, the network having changed between them."""
        (online, target), see, config = self.plain[name], self.observers[name].vector, self.config
        seen = replace(batch, obs=see(batch.obs), next_obs=see(batch.next_obs))
        following = target(flat(seen.next_obs)).reshape(*seen.action.shape, -1)
        for part, says in zip(seen.split(calls), np.split(following, calls), strict=True):
            loss, value, error = gradients(online, says, part, config.double, config.loss == "mse")
            size, share = np.abs(error), part.share.ravel()
            yield {"loss": loss, "q_mean": float(value.ravel() @ share), "td_error": float(size.ravel() @ share)}, size

    def _by_torch(self, name: str, batch: TDBatch) -> Iterator[tuple[dict[str, Any], Array]]:
        net, target, see = self.nets[name], self.targets[name].net, self.observers[name]
        arrays = {key: value for key, value in vars(batch).items() if key not in ("obs", "next_obs")}
        tensors = map_tree(lambda x: None if x is None else torch.from_numpy(x).to(self.device), arrays)
        seen = TDBatch(**tensors, obs=see(batch.obs), next_obs=see(batch.next_obs))
        draw = self.context.streams.torch(f"noise.{name}", self.device)
        loss, figures, errors = self._compiled_loss(net, target, seen, net.draw(draw), target.draw(draw))
        self.optimizers[name].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        # only priorities need them here, and fetching them waits for the device
        known = errors.cpu().numpy() if self.config.priority_alpha is not None else np.zeros(errors.shape, np.float32)
        yield dict(zip(("loss", "q_mean", "td_error"), figures, strict=True)), known

    def _loss(
        self, net: QNetwork, target: QNetwork, batch: TDBatch, noise: Noise, target_noise: Noise
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The scalar to minimise, figures to log, and what priorities are made of [B, A]."""
        with torch.no_grad():
            following = target(batch.next_obs, target_noise)
            judged = net.means(net(batch.next_obs, noise)) if self.config.double else target.means(following)
            if batch.next_mask is not None:
                judged = judged.masked_fill(~batch.next_mask, -torch.inf)
            following = of_actions(following, judged.argmax(-1))
        output = of_actions(net(batch.obs, noise), batch.action)
        each, goal, surprise = self._errors(net, output, following, batch)
        loss = (each * batch.weight).sum()
        with torch.no_grad():
            value = net.means(output)
            error = (goal - value).abs()
            figures = torch.stack([loss, (value * batch.share).sum(), (error * batch.share).sum()])
        return loss, figures, error if surprise is None else surprise

    def _errors(
        self, net: QNetwork, output: Tensor, following: Tensor, batch: TDBatch
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Losses, what values should be, and what is more telling for priorities than their difference; all [B, A]."""
        config = self.config
        if config.distribution == "none":
            goal = batch.reward + batch.discount * following
            return (output - goal).square() if config.loss == "mse" else huber(output - goal), goal, None
        reward, discount = batch.reward[..., None], batch.discount[..., None]
        if config.distribution == "quantile":
            goals = reward + discount * following
            return quantile_huber(output, goals, config.kappa), goals.mean(-1), None
        with torch.no_grad():
            aim = project(following.softmax(-1), reward + discount * net.support, net.support)
        each = -(aim * output.log_softmax(-1)).sum(-1)
        divergence = each.detach() + torch.xlogy(aim, aim).sum(-1)  # as Rainbow has it
        return each, (aim * net.support).sum(-1), divergence.clamp(min=0)

    def _now(self, schedule: Scheduled, phase: PhaseInfo) -> float:
        return value_at(schedule, phase.now, phase.horizon)

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
    """Minus infinity where an action is not allowed."""
    return scores if mask is None else np.where(mask, scores, -np.inf)


def of_actions(output: Tensor, action: Tensor) -> Tensor:
    """Of [B, A, n] or [B, A, n, K] what belongs to the actions [B, A]."""
    index = action.reshape(*action.shape, *(1,) * (output.dim() - action.dim()))
    return output.gather(2, index.expand(*action.shape, 1, *output.shape[3:])).squeeze(2)
