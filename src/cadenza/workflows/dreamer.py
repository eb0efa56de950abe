"""PlaNet (Hafner et al. 2019, arXiv:1811.04551) and Dreamer v1, v2, v3 (arXiv:1912.01603, 2010.02193, 2301.04104).

One workflow: a world model learned from sequences of the replay (`dreamer_model.py`), and a behaviour learned or
planned inside it (`dreamer_behaviour.py`). Settings: `dreamer_config.py`. Letters in shapes: T steps, B sequences, N
environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.config.schedules import value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Sequences
from cadenza.data.device_copy import Fetch, send
from cadenza.data.replay import ReplayStore
from cadenza.nets.actors import Actions, Actor, CategoricalActor, NormalActor
from cadenza.nets.dense import Style
from cadenza.nets.normalisers import PercentileScale
from cadenza.nets.observe import Observer, observe
from cadenza.nets.opinions import action_mask, single_steps, to_numpy
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.nets.rssm import RSSMState
from cadenza.nets.target import Target
from cadenza.nets.world_model import NumberHead, WorldModel
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
from cadenza.workflows.dreamer_behaviour import LOSSES, Behaviour, Noise, plan
from cadenza.workflows.dreamer_config import DreamerConfig
from cadenza.workflows.dreamer_latents import DETER, STOCH, nothing, packed, unpacked
from cadenza.workflows.dreamer_model import Batch, model_loss
from cadenza.workflows.parts import Parts

NETWORKS = ("model", "actor", "critic")


def by_sequence(x: Tensor) -> np.ndarray:
    """[T, B, …] to an array [B, T, …]."""
    return np.asarray(x.transpose(0, 1).cpu().numpy())


class Dreamer:
    hooks = ("update", "update_world_model")

    def __init__(self, config: DreamerConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        ((self.group, group),) = context.env.groups.items()
        self.observer = Observer(group.observation, self.device)
        self.actions = Actions(group.action, self.device)
        self.model = WorldModel(group.observation, self.actions.size, config.model, config.gamma).to(self.device)
        self.optimizers: dict[str, Optimizer] = {"model": optimizer(self.model, config.optimizer)}
        self.networks: dict[str, nn.Module] = {"model": self.model}
        self.behaviour: Behaviour | None = None
        self.target: Target[NumberHead] | None = None
        self.scale = PercentileScale(self.device)
        self.updates = 0
        if config.behaviour != "plan":
            self.behaviour = self._make_behaviour()
        self.parts = Parts(
            networks=self.networks,
            targets={} if self.target is None else {"critic": self.target.net},
            optimizers=self.optimizers,
            normalisers={"observation": self.observer, "returns": self.scale},
        )
        self._learn: Callable[[Tree], Tree] = context.captured(partial(self.learn, behaviour=self.behaviour))
        self._plan: Callable[[Tree], Tree] = context.captured(self.plan)
        self._learn_model: Callable[[Tree], Tree] = context.captured(partial(self.learn, behaviour=None))

    def _make_behaviour(self) -> Behaviour:
        config, model = self.config, self.config.model
        style, shape = Style(model.norm, model.activation), (model.feature_size, self.actions.size, model.units)
        actor: Actor
        if self.actions.discrete:
            actor = CategoricalActor(*shape, config.actor_layers, style, config.actor_unimix)
        else:
            actor = NormalActor(*shape, config.actor_layers, style, config.actor_head, config.actor_std)
        critic = NumberHead(model.reward, model.feature_size, model.units, config.critic_layers, style)
        made: dict[str, nn.Module] = {"actor": actor, "critic": critic}
        for name, net in made.items():
            self.networks[name] = net.to(self.device)
            self.optimizers[name] = optimizer(net, config.optimizer)
        if config.slow_critic_every:
            self.target = Target(critic, self.optimizers["critic"])
        return Behaviour(actor, critic, critic if self.target is None else self.target.net, self.scale)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        state = self.model.rssm.initial(num_envs)
        return {
            DETER: state.deter,
            STOCH: state.stoch,
            "action": torch.zeros(num_envs, self.actions.size).to(self.device),
        }

    @torch.inference_mode()
    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """The latent state takes in what is seen, and the policy (or a plan) starts from it."""
        name, model = self.group, self.model
        generator = mode.streams.torch("act", self.device)
        obs = observe(self.observer.space, map_tree(lambda x: send(x[:, 0], self.device), step.obs[name]))  # [N, …]
        first = send(step.is_first, self.device)
        before = RSSMState(carry[DETER], carry[STOCH])
        noise = model.rssm.noise(len(step.is_first), generator=generator)
        state = model.rssm.observe_one(model.encode(obs), carry["action"], first, before, noise)
        latents = Fetch(packed(state, self.config.model)) if self.config.stored_latents else None
        if mode.forced is not None:
            action = mode.forced[name]
            encoded = self.actions.encode(send(action[:, 0], self.device))
        else:
            encoded = self._choose(state, step, mode, generator)
            action = self.actions.decode(encoded)[:, None]
        extras = latents() if latents is not None else {}
        after = {DETER: state.deter, STOCH: state.stoch, "action": encoded}
        return Acted({name: action}, {name: {key: value[:, None] for key, value in extras.items()}}, after)

    def _choose(self, state: RSSMState, step: Step, mode: Mode, generator: torch.Generator) -> Tensor:
        """Encoded actions [N, A]."""
        count, config = len(step.is_first), self.config
        allowed = torch.ones(count, self.actions.size, dtype=torch.bool, device=self.device)
        if self.behaviour is None:
            search = config.planning
            tried = (search.iterations, count, search.candidates, config.horizon, self.actions.size)
            drawn = torch.empty(tried, device=self.device).normal_(generator=generator)
            latents = self.model.rssm.noise(config.horizon, count, generator=generator)
            given = {DETER: state.deter, STOCH: state.stoch, "tried": drawn, "noise": latents}
            encoded = self._plan(given)["action"].clone()  # a captured one is written again by the next
        else:
            actor = self.behaviour.actor
            output = actor(state.features())
            if self.group in step.mask:  # the model knows nothing of masks; what is done must obey them
                allowed = send(step.mask[self.group][:, 0], self.device)
                output = output.masked_fill(~allowed, torch.finfo(output.dtype).min).log_softmax(-1)
            if not mode.explore:
                return actor.mode(output)
            encoded = actor.sample(output, actor.noise(count, generator=generator))
        amount = value_at(config.exploration_noise, mode.phase.now, mode.phase.horizon) if mode.explore else 0.0
        return self._disturbed(encoded, allowed, amount, generator) if amount else encoded

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return expected rewards and, unless it plans, values and the distribution of actions.

        The states come one by one, as each is made from the one before; then all are judged together.
        """
        model, states, taken = self.model, [], mode.forced or {}
        for n, step in enumerate(single_steps(steps)):
            forced = {self.group: taken[self.group][n : n + 1]} if taken else None
            carry = self.act(step, carry, replace(mode, forced=forced)).carry
            states.append(RSSMState(carry[DETER], carry[STOCH]).features())
        features = torch.stack(states)  # [N, 1, F]
        opinion = Opinion(reward=to_numpy(model.reward.mean(model.reward(features))))
        if self.behaviour is not None:
            value = to_numpy(self.behaviour.critic.mean(self.behaviour.critic(features)))
            opinion = replace(opinion, value=value, **self._distribution(features, steps))
        config = self.config
        credit = Credit(config.gamma, config.return_lambda, on_arrival=config.values_count_arrival)
        return Explained({self.group: opinion}, carry, {self.group: credit})

    def _distribution(self, features: Tensor, steps: Step) -> dict[str, np.ndarray]:
        """Of the actor in latent states [N, 1, F]; of an action squashed by tanh, around the middle of its bounds."""
        assert self.behaviour is not None
        actor = self.behaviour.actor
        output = actor(features)
        if isinstance(actor, CategoricalActor):
            mask = action_mask(steps, self.group, self.device)
            if mask is not None:  # as in acting
                output = output.masked_fill(~mask, torch.finfo(output.dtype).min).log_softmax(-1)
            return {"probs": to_numpy(output.exp())}
        std = output.chunk(2, -1)[1]
        if actor.kind == "tanh_normal":
            std = std.clamp(max=1.0)
        mean = self.actions.middle + self.actions.reach * actor.mode(output)
        return {"mean": to_numpy(mean), "std": to_numpy(self.actions.reach * std)}

    def plan(self, given: Tree) -> Tree:
        """The search itself, on tensors alone."""
        start = RSSMState(given[DETER], given[STOCH])
        return {"action": plan(self.model, start, given["tried"], given["noise"], self.config)}

    def _disturbed(self, encoded: Tensor, allowed: Tensor, amount: float, generator: torch.Generator) -> Tensor:
        """With noise (continuous), or any action now and then (discrete)."""
        if not self.actions.discrete:
            noise = torch.empty_like(encoded).normal_(generator=generator)
            return (encoded + amount * noise).clamp(-1, 1)
        draw = torch.rand(len(encoded), self.actions.size + 1, generator=generator, device=self.device)
        other = draw[:, 1:].masked_fill(~allowed, -1.0).argmax(-1)
        return torch.where(draw[:, :1] < amount, nn.functional.one_hot(other, self.actions.size), encoded)

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """One gradient step of the world model and, in imagination from what it saw, of actor and critic."""
        updated = self._update(store, phase, self._learn, self.behaviour)
        if self.target is not None and self.updates % self.config.slow_critic_every == 0:
            self.target.follow(self.config.slow_critic_rate)
        return updated

    def update_world_model(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """The world model alone, from a dataset for instance."""
        return self._update(store, phase, self._learn_model, None)

    def _update(
        self, store: ReplayStore, phase: PhaseInfo, learn: Callable[[Tree], Tree], behaviour: Behaviour | None
    ) -> Updated:
        config = self.config
        drawn = store.sequences(config.batch_size, config.batch_length + 1, self.context.streams.numpy("replay"))
        given = {**self._sent(drawn), "now": self._now(phase)}
        noise = self.model.rssm.noise(config.batch_length, config.batch_size, generator=self._stream("model"))
        dreams = {} if behaviour is None else self._dreams(behaviour.actor)._asdict()
        learned = learn({**given, "noise": noise, "dreams": dreams})
        self.updates += 1
        if config.stored_latents:
            store.revise(drawn.index[:, 1:], self.group, Fetch(learned["latents"]))
        # in memory of their own: those of a captured step are written again by the next
        metrics = zip(learned["metrics"], torch.stack(list(learned["metrics"].values())), strict=True)
        return Updated(1, {f"train/{name}": value for name, value in metrics})

    def learn(self, given: Tree, behaviour: Behaviour | None) -> Tree:
        """The gradient step itself, on tensors alone: shapes never change, and nothing is read back from the device.

        v3 sums all losses, as some reach the world model from the critic; before that, each network has its own.
        """
        config, batch = self.config, self._as_batch(given)
        *rates, entropy_coef = given["now"]
        rate = dict(zip(NETWORKS, rates, strict=True))
        loss, observed, metrics = model_loss(self.model, batch, given["noise"], config)
        if behaviour is None:
            self._step(loss, ("model",), rate, metrics)
        else:
            parts = (self.model, behaviour, batch, observed.state, Noise(**given["dreams"]), entropy_coef, config)
            if config.behaviour == "v3":
                found = LOSSES["v3"](*parts)
                self._step(loss + found.actor + found.critic, NETWORKS, rate, metrics)
            else:
                self._step(loss, ("model",), rate, metrics)
                found = LOSSES[config.behaviour](*parts)
                self._gradients(found.actor, ("actor",))
                self._step(found.critic, ("critic",), rate, metrics)
                self._move(("actor",), rate, metrics)
            metrics |= found.metrics
        latents = {}
        if config.stored_latents:  # [B, T, A, …] for the replay
            kept = packed(observed.state, config.model)
            latents = {name: value.transpose(0, 1).unsqueeze(2).contiguous() for name, value in kept.items()}
        return {"latents": latents, "metrics": metrics}

    def _step(
        self, loss: Tensor, names: tuple[str, ...], rates: Mapping[str, Tensor], metrics: dict[str, Tensor]
    ) -> None:
        self._gradients(loss, names)
        self._move(names, rates, metrics)

    def _gradients(self, loss: Tensor, names: tuple[str, ...]) -> None:
        """Leave the gradients with these networks, and with no others."""
        for name in names:
            self.optimizers[name].zero_grad()
        loss.backward(inputs=[p for name in names for p in self.networks[name].parameters()])  # type: ignore[no-untyped-call]

    def _move(self, names: tuple[str, ...], rates: Mapping[str, Tensor], metrics: dict[str, Tensor]) -> None:
        for name in names:
            norm = self.optimizers[name].step(rates[name], self.config.max_grad_norm)["all"]
            metrics[f"grad_norm/{name}"] = norm

    def _dreams(self, actor: Actor) -> Noise:
        """All randomness of an imagination from every state of a batch."""
        horizon, starts = self.config.horizon, self.config.batch_size * self.config.batch_length
        action = actor.noise(horizon + 1, starts, generator=self._stream("imagined_actions"))
        return Noise(action, self.model.rssm.noise(horizon, starts, generator=self._stream("imagined_latents")))

    def _stream(self, name: str) -> torch.Generator:
        return self.context.streams.torch(name, self.device)

    def _now(self, phase: PhaseInfo) -> Tensor:
        """What schedules say: the step size of each network, and the weight of the policy's entropy."""
        config = self.config
        rate = config.learning_rate
        rates = (rate, config.actor_learning_rate or rate, config.critic_learning_rate or rate)
        values = [value_at(schedule, phase.now, phase.horizon) for schedule in (*rates, config.entropy_coef)]
        return send(np.array(values, np.float32), self.device)

    def _batch(self, drawn: Sequences) -> Batch:
        return self._as_batch(self._sent(drawn))

    def _sent(self, drawn: Sequences) -> dict[str, Tree]:
        """What was drawn as tensors [T, B, …], each row with what led to it; what comes before is where they start."""
        data, model = drawn.groups[self.group], self.config.model

        def rows(array: np.ndarray, start: int = 1) -> np.ndarray:
            return array.swapaxes(0, 1)[start : start + array.shape[1] - 1]

        arrays: dict[str, Tree] = {
            "obs": map_tree(lambda x: rows(x[:, :, 0]), data["obs"]),
            "action": rows(data["action"][:, :, 0], 0),
            "reward": rows(data["reward"][:, :, 0], 0),
            "is_first": rows(drawn.is_first),
            "last": rows(drawn.last),
            "terminated": rows(drawn.terminated),
        }
        if self.config.stored_latents:
            known = DETER in data
            kept = {key: data[key][:, 0, 0] for key in (DETER, STOCH)} if known else nothing(len(drawn.index), model)
            arrays |= kept
        arrays["forgets"] = arrays["is_first"].copy()
        # without a latent, an action before the first row means nothing either; rows of datasets have none at first
        arrays["forgets"][0] |= ~arrays[STOCH].any(-1) if self.config.stored_latents else True
        return {name: map_tree(lambda x: send(x, self.device), tree) for name, tree in arrays.items()}

    def _as_batch(self, given: Tree) -> Batch:
        kept = self.config.stored_latents
        return Batch(
            obs=observe(self.observer.space, given["obs"]),
            action=self.actions.encode(given["action"]),
            reward=given["reward"].masked_fill(given["is_first"], 0.0),
            first=given["forgets"],
            last=given["last"],
            terminal=given["last"] & given["terminated"],
            start=unpacked(given, self.config.model) if kept else self.model.rssm.initial(given["last"].shape[1]),
        )

    # looking inside

    imagines = True

    @torch.inference_mode()
    def imagine(self, drawn: Sequences, known: int, seed: int) -> Imagination:
        """What the model says of sequences of which it sees the first `known` steps, and then the actions alone."""
        batch, rssm, generator = self._batch(drawn), self.model.rssm, torch.Generator(device=self.device)
        generator.manual_seed(seed)
        steps, count = batch.reward.shape
        noise = rssm.noise(steps, count, generator=generator)
        seen = map_tree(lambda x: x[:known], batch.obs)
        observed = rssm.observe(
            self.model.encode(seen), batch.action[:known], batch.first[:known], batch.start, noise[:known]
        )
        features = list(observed.state.features())
        state = RSSMState(observed.state.deter[-1], observed.state.stoch[-1])
        for t in range(known, steps):
            state = rssm.imagine_step(state, batch.action[t], noise[t])
            features.append(state.features())
        every = torch.stack(features)
        return Imagination(
            obs=map_tree(by_sequence, batch.obs),
            predicted_obs=map_tree(by_sequence, self.model.decode.to_observations(self.model.decode(every))),
            reward=by_sequence(batch.reward),
            predicted_reward=by_sequence(self.model.reward.mean(self.model.reward(every))),
        )

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        kept = (DETER, STOCH) if config.stored_latents else ()
        store = ReplayStore(config.buffer_size, num_envs, stack=stack, on_disk=config.buffer_on_disk, revisable=kept)
        return {"replay": store}

    def phases(self) -> tuple[Phase, ...]:
        config = self.config
        gather = max(config.warmup_steps, (config.batch_length + 2) * self.context.num_envs)
        phases = [
            Phase("warmup", (Hook("collect", steps=gather),), buffer="replay", actions="random", duration_cycles=1)
        ]
        if config.pretrain_updates:
            learn = (Hook("update"),)
            phases.append(Phase("pretrain", learn, "offline", "replay", duration_updates=config.pretrain_updates))
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
