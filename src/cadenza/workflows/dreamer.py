"""PlaNet (Hafner et al. 2019, arXiv:1811.04551) and Dreamer v1, v2, v3 (arXiv:1912.01603, 2010.02193, 2301.04104).

A world model learns from sequences of the replay (`dreamer_model.py`). A policy is learned in its imagination, or
actions are planned there (`dreamer_behaviour.py`). Settings: `dreamer_config.py`. Letters in shapes: T steps, B
sequences, N environments, A numbers of an encoded action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.config.networks import OwnPart
from cadenza.config.schedules import TimedSettings, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Sequences
from cadenza.data.device_copy import Fetch, scheduled_tensors, send
from cadenza.data.replay import ReplayStore
from cadenza.nets.actors import Actions, Actor, CategoricalActor, NormalActor
from cadenza.nets.dense import Style
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.observe import Observer, observe
from cadenza.nets.opinions import action_mask, by_sequence, single_steps, to_numpy
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.nets.own_parts import own_function, own_network
from cadenza.nets.rssm import RSSMState
from cadenza.nets.target import Target
from cadenza.nets.world_model import NumberHead, WorldModel
from cadenza.ops.planning import cem
from cadenza.ops.returns import gae, lambda_return
from cadenza.trees import map_tree
from cadenza.types import (
    Acted,
    Context,
    Credit,
    Explained,
    Imagination,
    Mode,
    Opinion,
    PhaseInfo,
    Step,
    Store,
    Tree,
    Updated,
)
from cadenza.workflows.dreamer_behaviour import LOSSES, Behaviour, ImaginationNoise, estimated_return, plan
from cadenza.workflows.dreamer_config import DreamerConfig
from cadenza.workflows.dreamer_latents import DETER, STOCH, compress, decompress, unknown
from cadenza.workflows.dreamer_model import SequenceBatch, infer, model_loss
from cadenza.workflows.parts import Parts, estimator, own_states

CONTROLLER = ("actor", "critic")
NETWORKS = ("model", *CONTROLLER)


class Dreamer:
    """The workflow of PlaNet and Dreamer."""

    hooks: tuple[str, ...] = ("update", "update_world_model", "update_controller")

    def __init__(self, config: DreamerConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        self.timed = TimedSettings(config)
        ((self.group, group),) = context.env.groups.items()
        self.observer = Observer(group.observation, self.device)
        self.actions = Actions(group.action, self.device)
        gamma = value_at(config.gamma, now=0, horizon=1)
        settings = (config.model, gamma, config.encoder, config.dynamics, config.decoder)
        self.model = WorldModel(group.observation, self.actions.size, *settings).to(self.device)
        self.plain_latents = config.dynamics != "rssm"
        self.estimator = estimator(config.returns, "algorithm.returns")
        self.planner = own_function(config.planner) if isinstance(config.planner, OwnPart) else cem
        self.optimizers: dict[str, Optimizer] = {"model": optimizer(self.model, config.optimizer)}
        self.networks: dict[str, nn.Module] = {"model": self.model}
        self.behaviour: Behaviour | None = None
        self.target: Target[NumberHead] | None = None
        self.scale = PercentileScale(self.device)
        self.updates = 0
        if config.behaviour != "plan":
            self.behaviour = self._build_behaviour()
        self.parts = Parts(
            networks=self.networks,
            targets={} if self.target is None else {"critic": self.target.net},
            optimizers=self.optimizers,
            normalisers={"observation": self.observer, "returns": self.scale},
            **own_states(planner=self.planner, returns=self.estimator),
        )
        if self.behaviour is None:
            self.hooks = ("update", "update_world_model")  # a search learns nothing
        parts = (tuple(self.networks), ("model",), CONTROLLER)
        self._learn: dict[tuple[str, ...], Callable[[Tree], Tree]]
        self._learn = {names: partial(self.learn, names=names) for names in parts}
        if config.accumulate == 1:
            self._learn = {names: context.captured(learn) for names, learn in self._learn.items()}
        self._plan: Callable[[Tree], Tree] = context.captured(self.plan)

    def _build_behaviour(self) -> Behaviour:
        """Build actor, critic and, if there is one, the slow critic, with their optimizers."""
        config, model = self.config, self.config.model
        style, shape = Style(model.norm, model.activation), (model.feature_size, self.actions.size, model.units)
        actor: Actor
        if self.actions.discrete:
            actor = CategoricalActor(*shape, config.actor_layers, style, config.actor_unimix)
        else:
            actor = NormalActor(*shape, config.actor_layers, style, config.actor_head, config.actor_std)
        critic = NumberHead(model.reward, model.feature_size, model.units, config.critic_layers, style)
        networks: dict[str, Any] = {"actor": actor, "critic": critic}
        for name, net in networks.items():
            if isinstance(part := getattr(config, name), OwnPart):
                net.net = own_network(model.feature_size, net.net.out.out_features, part)
            self.networks[name] = net.to(self.device)
            self.optimizers[name] = optimizer(net, config.optimizer)
        if config.slow_critic_every:
            self.target = Target(critic, self.optimizers["critic"])
        returns = lambda_return if self.estimator is gae else partial(estimated_return, self.estimator)
        return Behaviour(actor, critic, critic if self.target is None else self.target.net, self.scale, returns)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        state = self.model.rssm.initial(num_envs)
        action = torch.zeros(num_envs, self.actions.size).to(self.device)
        return {DETER: state.deter, STOCH: state.stoch, "action": action}

    @torch.inference_mode()
    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Update the latent state with the observation; the policy, or a search, chooses an action from there."""
        name, model = self.group, self.model
        generator = mode.streams.torch("act", self.device)
        obs = observe(self.observer.space, map_tree(lambda x: send(x[:, 0], self.device), step.obs[name]))  # [N, …]
        first = send(step.is_first, self.device)
        before = RSSMState(carry[DETER], carry[STOCH])
        noise = model.rssm.noise(len(step.is_first), generator=generator)
        state = model.rssm.observe_one(model.encode(obs), carry["action"], first, before, noise)
        # the copy from the device overlaps with the choice of an action
        latents = Fetch(compress(state, self.config.model, self.plain_latents)) if self.config.stored_latents else None
        if mode.forced is not None:
            action = mode.forced[name]
            encoded = self.actions.encode(send(action[:, 0], self.device))
        else:
            encoded = self._choose_action(state, step, mode, generator)
            action = self.actions.decode(encoded)[:, None]
        extras = {} if latents is None else {key: value[:, None] for key, value in latents().items()}
        carry = {DETER: state.deter, STOCH: state.stoch, "action": encoded}
        return Acted({name: action}, {name: extras}, carry)

    def _choose_action(self, state: RSSMState, step: Step, mode: Mode, generator: torch.Generator) -> Tensor:
        """Return encoded actions [N, A]: planned or sampled, with exploration noise."""
        config, count = self.config, len(step.is_first)
        allowed = torch.ones(count, self.actions.size, dtype=torch.bool, device=self.device)
        if self.behaviour is None:
            search = config.planning
            shape = (search.iterations, count, search.candidates, config.horizon, self.actions.size)
            action_noise = torch.empty(shape, device=self.device).normal_(generator=generator)
            latent_noise = self.model.rssm.noise(config.horizon, count, generator=generator)
            inputs = {DETER: state.deter, STOCH: state.stoch, "action_noise": action_noise, "noise": latent_noise}
            encoded = self._plan(inputs)["action"].clone()  # a captured graph writes its next result over this one
        else:
            actor = self.behaviour.actor
            output = actor(state.features())
            if self.group in step.mask:  # the model knows no masks; actions in the environment must obey them
                allowed = send(step.mask[self.group][:, 0], self.device)
                output = mask_log_probs(output, allowed)
            if not mode.explore:
                return actor.mode(output)
            encoded = actor.sample(output, actor.noise(count, generator=generator))
        amount = value_at(config.exploration_noise, mode.phase.now, mode.phase.horizon) if mode.explore else 0.0
        return self._add_exploration(encoded, allowed, amount, generator) if amount else encoded

    def plan(self, inputs: Tree) -> Tree:
        """Search an action, on tensors alone."""
        start = RSSMState(inputs[DETER], inputs[STOCH])
        noise = (inputs["action_noise"], inputs["noise"])
        return {"action": plan(self.model, start, *noise, self.config, self.planner)}

    def _add_exploration(self, encoded: Tensor, allowed: Tensor, amount: float, generator: torch.Generator) -> Tensor:
        """Add noise to continuous actions [N, A]; replace discrete ones by random ones with probability `amount`."""
        if not self.actions.discrete:
            noise = torch.empty_like(encoded).normal_(generator=generator)
            return (encoded + amount * noise).clamp(-1, 1)
        draw = torch.rand(len(encoded), self.actions.size + 1, generator=generator, device=self.device)
        random = draw[:, 1:].masked_fill(~allowed, -1.0).argmax(-1)
        return torch.where(draw[:, :1] < amount, nn.functional.one_hot(random, self.actions.size), encoded)

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of the world model and, in imagination, one of actor and critic."""
        return self._update(store, phase, tuple(self.networks))

    def update_world_model(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of the world model alone, from a dataset for instance."""
        return self._update(store, phase, ("model",))

    def update_controller(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of actor and critic in the imagination of the world model, which stays as it is."""
        return self._update(store, phase, CONTROLLER)

    def _update(self, store: ReplayStore, phase: PhaseInfo, names: tuple[str, ...]) -> Updated:
        """Sample sequences, train these networks on them, and write the new latent states back to the replay."""
        config, behaviour = self.timed.at(phase), self.behaviour if "actor" in names else None
        drawing = (config.batch_size, config.batch_length + 1, self.context.streams.numpy("replay"))
        # the latents are those that the last update computes: all else is sampled and sent before it is waited for
        waits = config.stored_latents and hasattr(store, "latest")
        sequences = store.sequences(*drawing, revisable=False) if waits else store.sequences(*drawing)
        inputs = {
            **self._to_device(sequences),
            "schedules": self._rates(config),
            "settings": scheduled_tensors(self.timed, phase.now, phase.horizon, self.device),
            "noise": self.model.rssm.noise(config.batch_length, config.batch_size, generator=self._stream("model")),
            "imagination": {} if behaviour is None else self._imagination_noise(behaviour.actor)._asdict(),
        }
        if waits:
            inputs |= self._start(store.latest(sequences.index[:, 0], self.group), sequences)
        outputs = self._learn[names](inputs)
        if list(self.networks)[-1] in names:  # counts the steps of the critic that the slow one follows
            self.updates += 1
            if self.target is not None and self.updates % config.slow_critic_every == 0:
                self.target.follow(config.slow_critic_rate)
        if config.stored_latents:
            store.revise(sequences.index[:, 1:], self.group, Fetch(outputs["latents"]))
        # copied, because a captured graph writes its next metrics over these
        metrics = zip(outputs["metrics"], torch.stack(list(outputs["metrics"].values())), strict=True)
        return Updated(1, {f"train/{name}": value for name, value in metrics})

    def learn(self, inputs: Tree, names: tuple[str, ...]) -> Tree:
        """Make a gradient step of the networks `names`, on tensors alone.

        Shapes never change, and nothing is read back from the device. v3 minimises the sum of all losses, as the
        critic's also teaches the world model. Before v3, each network has a loss of its own.
        """
        config, batch = self.timed.filled(inputs["settings"]), self._batch(inputs)
        self.model.gamma = config.gamma
        *rates, entropy_coef = inputs["schedules"]
        rate = dict(zip(NETWORKS, rates, strict=True))
        behaviour = self.behaviour if "actor" in names else None
        in_one = config.behaviour == "v3" and behaviour is not None
        metrics: dict[str, Tensor] = {}
        if "model" in names:
            with self.context.autocast():
                loss, observed, metrics = model_loss(self.model, batch, inputs["noise"], config)
            if not in_one:
                self._minimise(loss, ("model",), rate, config.max_grad_norm, metrics)
        else:
            with torch.no_grad(), self.context.autocast():
                loss, observed = torch.zeros((), device=self.device), infer(self.model, batch, inputs["noise"])
        if behaviour is not None:
            noise = ImaginationNoise(**inputs["imagination"])
            arguments = (self.model, behaviour, batch, observed.state, noise, entropy_coef, config)
            with self.context.autocast():
                losses = LOSSES[config.behaviour](*arguments)
            if in_one:
                self._minimise(loss + losses.actor + losses.critic, names, rate, config.max_grad_norm, metrics)
            else:
                self._backward(losses.actor, ("actor",))
                self._minimise(losses.critic, ("critic",), rate, config.max_grad_norm, metrics)
                self._step(("actor",), rate, config.max_grad_norm, metrics)
            metrics |= losses.metrics
        latents = {}
        if config.stored_latents:  # [B, T, A, …] for the replay
            compressed = compress(observed.state, config.model, self.plain_latents)
            latents = {name: x.transpose(0, 1).unsqueeze(2).contiguous() for name, x in compressed.items()}
        return {"latents": latents, "metrics": metrics}

    def _minimise(self, loss: Tensor, names: tuple[str, ...], *step: Any) -> None:
        """Make a gradient step of these networks; `step` are the other arguments of `_step`."""
        self._backward(loss, names)
        self._step(names, *step)

    def _backward(self, loss: Tensor, names: tuple[str, ...]) -> None:
        """Compute the gradients of these networks, and of no others."""
        for name in names:
            self.optimizers[name].zero_grad()
        loss.backward(inputs=[p for name in names for p in self.networks[name].parameters()])  # type: ignore[no-untyped-call]

    def _step(
        self,
        names: tuple[str, ...],
        rates: Mapping[str, Tensor],
        max_norm: float | Tensor | None,
        metrics: dict[str, Tensor],
    ) -> None:
        """Step the optimizers of these networks with their gradients."""
        for name in names:
            norm = self.optimizers[name].step(rates[name], max_norm)["all"]
            metrics[f"grad_norm/{name}"] = norm

    def _imagination_noise(self, actor: Actor) -> ImaginationNoise:
        """Draw all randomness of an imagination from every state of a batch."""
        horizon, starts = self.config.horizon, self.config.batch_size * self.config.batch_length
        action = actor.noise(horizon + 1, starts, generator=self._stream("imagined_actions"))
        latent = self.model.rssm.noise(horizon, starts, generator=self._stream("imagined_latents"))
        return ImaginationNoise(action, latent)

    def _stream(self, name: str) -> torch.Generator:
        return self.context.streams.torch(name, self.device)

    def _rates(self, config: DreamerConfig) -> Tensor:
        """Return the step size of each network, and the weight of the policy's entropy, [4]."""
        own_rates = (config.actor_learning_rate, config.critic_learning_rate)
        rates = (config.learning_rate if rate is None else rate for rate in (None, *own_rates))
        return send(np.array([*rates, config.entropy_coef], np.float32), self.device)

    def _to_device(self, sequences: Sequences) -> dict[str, Tree]:
        """Return sequences [B, T + 1, …] as tensors [T, B, …], each row with the action and reward that led to it.

        The first row only says where they start: with its action and reward and, if latents are stored, its state.
        """
        data = sequences.groups[self.group]

        def rows(array: np.ndarray, start: int = 1) -> np.ndarray:
            return array.swapaxes(0, 1)[start : start + array.shape[1] - 1]

        arrays: dict[str, Tree] = {
            "obs": map_tree(lambda x: rows(x[:, :, 0]), data["obs"]),
            "action": rows(data["action"][:, :, 0], 0),
            "reward": rows(data["reward"][:, :, 0], 0),
            "is_first": rows(sequences.is_first),
            "last": rows(sequences.last),
            "terminated": rows(sequences.terminated),
        }
        tensors: dict[str, Tree] = {key: map_tree(lambda x: send(x, self.device), x) for key, x in arrays.items()}
        if self.config.stored_latents:
            tensors |= self._start({key: data[key][:, 0] for key in (DETER, STOCH) if key in data}, sequences)
        return tensors

    def _start(self, latents: Mapping[str, np.ndarray], sequences: Sequences) -> dict[str, Tensor]:
        """Return the compressed states [B, A, …] before the sequences as tensors of the only agent."""
        if latents:
            arrays = {key: latents[key][:, 0] for key in (DETER, STOCH)}
        else:
            arrays = unknown(len(sequences.index), self.config.model, self.plain_latents)
        return {key: send(array, self.device) for key, array in arrays.items()}

    def _batch(self, inputs: Tree) -> SequenceBatch:
        """Return the tensors of `_to_device` as the world model takes them."""
        if self.config.stored_latents:
            start = decompress(inputs, self.config.model, self.plain_latents)
            is_unknown = ~((inputs[STOCH] != 0).any(-1) | (inputs[DETER] != 0).any(-1))
        else:
            start = self.model.rssm.initial(inputs["last"].shape[1])
            is_unknown = torch.ones_like(inputs["is_first"][0])
        # without a state the action before the first row means nothing either
        reset = torch.cat([inputs["is_first"][:1] | is_unknown, inputs["is_first"][1:]])
        return SequenceBatch(
            obs=observe(self.observer.space, inputs["obs"]),
            action=self.actions.encode(inputs["action"]),
            reward=inputs["reward"].masked_fill(inputs["is_first"], 0.0),
            first=reset,
            last=inputs["last"],
            terminal=inputs["last"] & inputs["terminated"],
            start=start,
        )

    # what the lab shows

    imagines = True

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return expected rewards and, unless it plans, values and the distribution of actions.

        The states are computed one after another, then all are judged together.
        """
        model, states, forced = self.model, [], mode.forced or {}
        for n, step in enumerate(single_steps(steps)):
            action = {self.group: forced[self.group][n : n + 1]} if forced else None
            carry = self.act(step, carry, replace(mode, forced=action)).carry
            states.append(RSSMState(carry[DETER], carry[STOCH]).features())
        features = torch.stack(states)  # [N, 1, F]
        opinion = Opinion(reward=to_numpy(model.reward.mean(model.reward(features))))
        if self.behaviour is not None:
            value = to_numpy(self.behaviour.critic.mean(self.behaviour.critic(features)))
            opinion = replace(opinion, value=value, **self._distribution(self.behaviour.actor, features, steps))
        config = self.timed.at(mode.phase)
        arrival = config.values_count_arrival
        credit = Credit(config.gamma, config.return_lambda, on_arrival=arrival, estimate=self.estimator)
        return Explained({self.group: opinion}, carry, {self.group: credit})

    def _distribution(self, actor: Actor, features: Tensor, steps: Step) -> dict[str, np.ndarray]:
        """Return the policy in latent states [N, 1, F]: `probs`, or `mean` and `std` in the environment's units.

        The deviation of an action squashed by tanh is the one in the middle of its bounds.
        """
        output = actor(features)
        if isinstance(actor, CategoricalActor):
            allowed = action_mask(steps, self.group, self.device)
            if allowed is not None:
                output = mask_log_probs(output, allowed)
            return {"probs": to_numpy(output.exp())}
        std = output.chunk(2, -1)[1]
        if actor.kind == "tanh_normal":
            std = std.clamp(max=1.0)
        mean = self.actions.middle + self.actions.reach * actor.mode(output)
        return {"mean": to_numpy(mean), "std": to_numpy(self.actions.reach * std)}

    @torch.inference_mode()
    def imagine(self, sequences: Sequences, context_steps: int, seed: int) -> Imagination:
        """Predict sequences of which the model sees the first `context_steps`, and then the actions alone."""
        batch, rssm = self._batch(self._to_device(sequences)), self.model.rssm
        generator = torch.Generator(device=self.device).manual_seed(seed)
        steps, count = batch.reward.shape
        noise = rssm.noise(steps, count, generator=generator)
        context = slice(context_steps)
        embedding = self.model.encode(map_tree(lambda x: x[context], batch.obs))
        observed = rssm.observe(embedding, batch.action[context], batch.first[context], batch.start, noise[context])
        features = list(observed.state.features())
        state = RSSMState(observed.state.deter[-1], observed.state.stoch[-1])
        for t in range(context_steps, steps):
            state = rssm.imagine_step(state, batch.action[t], noise[t])
            features.append(state.features())
        stacked = torch.stack(features)
        return Imagination(
            obs=map_tree(by_sequence, batch.obs),
            predicted_obs=map_tree(by_sequence, self.model.decode.to_observations(self.model.decode(stacked))),
            reward=by_sequence(batch.reward),
            predicted_reward=by_sequence(self.model.reward.mean(self.model.reward(stacked))),
        )

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        latents = (DETER, STOCH) if config.stored_latents else ()
        options = {"stack": stack, "on_disk": config.buffer_on_disk, "revisable": latents}
        return {"replay": self.context.store("replay", ReplayStore, config.buffer_size, num_envs, **options)}

    def phases(self) -> tuple[Phase, ...]:
        config = self.config
        steps = max(config.warmup_steps, (config.batch_length + 2) * self.context.num_envs)
        warmup = (Hook("collect", steps=steps),)
        phases = [Phase("warmup", warmup, buffer="replay", actions="random", duration_cycles=1)]
        if config.pretrain_updates:
            pretrain = (Hook("update"),)
            phases.append(Phase("pretrain", pretrain, "offline", "replay", duration_updates=config.pretrain_updates))
        hooks = (
            Hook("collect", steps=config.train_every),
            Hook("update", ratio=config.updates_per_env_step(self.context.num_envs)),
        )
        return (*phases, Phase("train", hooks, buffer="replay"))

    def load_weights(self, state: dict[str, Any]) -> None:
        self.parts.load_weights(state)

    def state_dict(self) -> dict[str, Any]:
        return {**self.parts.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
        self.updates = state["updates"]


def mask_log_probs(output: Tensor, allowed: Tensor) -> Tensor:
    """Return log-probabilities [*, n] over the allowed actions alone."""
    return output.masked_fill(~allowed, torch.finfo(output.dtype).min).log_softmax(-1)
