"""PlaNet (Hafner et al. 2019, arXiv:1811.04551) and Dreamer v1, v2, v3 (arXiv:1912.01603, 2010.02193, 2301.04104).

One workflow: a world model learned from sequences of the replay (`dreamer_model.py`), and a behaviour learned or
planned inside it (`dreamer_behaviour.py`). Settings: `dreamer_config.py`. Letters in shapes: T steps, B sequences, N
environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.config.schedules import Scheduled, value_at
from cadenza.config.schema import Hook, Phase
from cadenza.data.normalisers import PercentileScale
from cadenza.data.replay import ReplayStore, Sequences
from cadenza.nets.actors import Actions, Actor, CategoricalActor, NormalActor
from cadenza.nets.dense import Style
from cadenza.nets.observe import Observer
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.nets.rssm import State
from cadenza.nets.target import Target
from cadenza.nets.world_model import NumberHead, WorldModel
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Mode, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.dreamer_behaviour import LOSSES, Behaviour, Noise, plan
from cadenza.workflows.dreamer_config import DreamerConfig
from cadenza.workflows.dreamer_model import Batch, model_loss
from cadenza.workflows.parts import Parts, load_parts, parts_state

DETER, STOCH = "deter", "stoch"
BYTE = 127


class Imagination(NamedTuple):
    """What happened beside what was predicted, [B, T, …]; observations by the keys of `nets/observe.py`."""

    obs: Tree
    predicted_obs: Tree
    reward: np.ndarray
    predicted_reward: np.ndarray


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

    def _make_behaviour(self) -> Behaviour:
        config, model = self.config, self.config.model
        style, shape = Style(model.norm, model.activation), (model.feature_size, self.actions.size, model.units)
        actor: Actor
        if self.actions.discrete:
            actor = CategoricalActor(*shape, config.actor_layers, style, config.actor_unimix)
        else:
            actor = NormalActor(*shape, config.actor_layers, style, config.actor_head)
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
        obs = map_tree(lambda x: x[:, 0], self.observer(step.obs[name]))  # [N, …]
        first = torch.from_numpy(step.is_first).to(self.device)
        before = State(carry[DETER], carry[STOCH])
        noise = model.rssm.noise(len(step.is_first), generator=generator)
        state = model.rssm.observe_one(model.encode(obs), carry["action"], first, before, noise)
        if mode.forced is not None:
            action = mode.forced[name]
            encoded = self.actions.encode(torch.from_numpy(action[:, 0]).to(self.device))
        else:
            encoded = self._choose(state, step, mode, generator)
            action = self.actions.decode(encoded)[:, None]
        extras = self._to_store(state) if self.config.stored_latents else {}
        after = {DETER: state.deter, STOCH: state.stoch, "action": encoded}
        return Acted({name: action}, {name: {key: value[:, None] for key, value in extras.items()}}, after)

    def _choose(self, state: State, step: Step, mode: Mode, generator: torch.Generator) -> Tensor:
        """Encoded actions [N, A]."""
        count, config = len(step.is_first), self.config
        allowed = torch.ones(count, self.actions.size, dtype=torch.bool, device=self.device)
        if self.behaviour is None:
            search = config.planning
            tried = (search.iterations, count, search.candidates, config.horizon, self.actions.size)
            drawn = torch.empty(tried, device=self.device).normal_(generator=generator)
            latents = self.model.rssm.noise(config.horizon, count * search.candidates, generator=generator)
            encoded = plan(self.model, state, drawn, latents, config)
        else:
            actor = self.behaviour.actor
            output = actor(state.features())
            if self.group in step.mask:  # the model knows nothing of masks; what is done must obey them
                allowed = torch.from_numpy(step.mask[self.group][:, 0]).to(self.device)
                output = output.masked_fill(~allowed, torch.finfo(output.dtype).min).log_softmax(-1)
            if not mode.explore:
                return actor.mode(output)
            encoded = actor.sample(output, actor.noise(count, generator=generator))
        amount = value_at(config.exploration_noise, mode.phase.now, mode.phase.horizon) if mode.explore else 0.0
        return self._disturbed(encoded, allowed, amount, generator) if amount else encoded

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
        return self._update(store, phase, self.behaviour)

    def update_world_model(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """The world model alone, from a dataset for instance."""
        return self._update(store, phase, None)

    def _update(self, store: ReplayStore, phase: PhaseInfo, behaviour: Behaviour | None) -> Updated:
        config, length = self.config, self.config.batch_length
        drawn = store.sequences(config.batch_size, length + 1, self.context.streams.numpy("replay"))
        rates = {
            "model": self._now(config.learning_rate, phase),
            "actor": self._now(config.actor_learning_rate or config.learning_rate, phase),
            "critic": self._now(config.critic_learning_rate or config.learning_rate, phase),
        }
        noise = self.model.rssm.noise(length, config.batch_size, generator=self._stream("model"))
        dreams = None if behaviour is None else self._dreams(behaviour.actor)
        entropy_coef = self._now(config.entropy_coef, phase)
        state, metrics = self.learn(self._batch(drawn), noise, dreams, rates, entropy_coef, behaviour)
        self.updates += 1
        if behaviour is not None and self.target is not None and self.updates % config.slow_critic_every == 0:
            self.target.follow(config.slow_critic_rate)
        if config.stored_latents:
            values = {key: value.swapaxes(0, 1)[:, :, None] for key, value in self._to_store(state).items()}
            store.revise(drawn.index[:, 1:], self.group, values)
        return Updated(1, {f"train/{name}": value for name, value in metrics.items()})

    def learn(
        self,
        batch: Batch,
        noise: Tensor,
        dreams: Noise | None,
        rates: Mapping[str, Tensor],
        entropy_coef: Tensor,
        behaviour: Behaviour | None,
    ) -> tuple[State, dict[str, Tensor]]:
        """The gradient step itself, on tensors alone: shapes never change, and nothing is read back from the device.

        v3 sums all losses, as some reach the world model from the critic; before that, each network has its own.
        """
        config = self.config
        loss, observed, metrics = model_loss(self.model, batch, noise, config)
        if config.behaviour == "v3" and behaviour is not None and dreams is not None:
            found = LOSSES["v3"](self.model, behaviour, batch, observed.state, dreams, entropy_coef, config)
            self._step(loss + found.actor + found.critic, ("model", "actor", "critic"), rates, metrics)
            return observed.state, metrics | found.metrics
        self._step(loss, ("model",), rates, metrics)
        if behaviour is not None and dreams is not None:
            losses = LOSSES[config.behaviour]
            found = losses(self.model, behaviour, batch, observed.state, dreams, entropy_coef, config)
            self._gradients(found.actor, ("actor",))
            self._step(found.critic, ("critic",), rates, metrics)
            self._move(("actor",), rates, metrics)
            metrics |= found.metrics
        return observed.state, metrics

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

    def _now(self, schedule: Scheduled, phase: PhaseInfo) -> Tensor:
        return torch.tensor(value_at(schedule, phase.now, phase.horizon), device=self.device)

    def _batch(self, drawn: Sequences) -> Batch:
        """What was drawn, time first, each row with what led to it; what comes before is where they start."""
        data = drawn.groups[self.group]

        def tensor(array: np.ndarray, rows: slice = slice(1, None)) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array[:, rows].swapaxes(0, 1))).to(self.device)

        first = tensor(drawn.is_first)
        start = self._from_store(data) if self.config.stored_latents else None
        if start is None:  # then an action before it means nothing either
            start = self.model.rssm.initial(len(drawn.index))
            first = first.clone()  # which may be the drawn rows themselves
            first[0] = True
        before = slice(None, -1)
        obs = map_tree(lambda x: np.ascontiguousarray(x[:, 1:, 0].swapaxes(0, 1)), data["obs"])
        last = tensor(drawn.last)
        return Batch(
            obs=self.observer(obs),
            action=self.actions.encode(tensor(data["action"][:, :, 0], before)),
            reward=tensor(data["reward"][:, :, 0], before).masked_fill(tensor(drawn.is_first), 0.0),
            first=first,
            last=last,
            terminal=last & tensor(drawn.terminated),
            start=start,
        )

    # looking inside

    @torch.inference_mode()
    def imagine(self, drawn: Sequences, known: int, generator: torch.Generator) -> Imagination:
        """What the model says of sequences of which it sees the first `known` steps, and then the actions alone."""
        batch, rssm = self._batch(drawn), self.model.rssm
        steps, count = batch.reward.shape
        noise = rssm.noise(steps, count, generator=generator)
        seen = map_tree(lambda x: x[:known], batch.obs)
        observed = rssm.observe(
            self.model.encode(seen), batch.action[:known], batch.first[:known], batch.start, noise[:known]
        )
        features = list(observed.state.features())
        state = State(observed.state.deter[-1], observed.state.stoch[-1])
        for t in range(known, steps):
            state = rssm.imagine_step(state, batch.action[t], noise[t])
            features.append(state.features())
        every = torch.stack(features)
        return Imagination(
            obs=map_tree(by_sequence, batch.obs),
            predicted_obs=map_tree(by_sequence, self.model.decode.shown(self.model.decode(every))),
            reward=by_sequence(batch.reward),
            predicted_reward=by_sequence(self.model.reward.mean(self.model.reward(every))),
        )

    # Latent states in the replay. The deterministic one lies between -1 and 1, where a byte is about as exact as the
    # bfloat16 the authors compute with; of classes the number is kept (0: none yet).

    def _to_store(self, state: State) -> dict[str, np.ndarray]:
        stoch = state.stoch.detach()
        if self.config.model.latent == "categorical":
            stoch = stoch.view(*stoch.shape[:-1], self.config.model.stoch, -1).argmax(-1).add(1).to(torch.uint8)
        else:
            stoch = stoch.half()
        deter = (state.deter.detach() * BYTE).round().to(torch.int8)
        return {DETER: deter.cpu().numpy(), STOCH: stoch.cpu().numpy()}

    def _from_store(self, data: Mapping[str, Any]) -> State | None:
        """Of the first row of each sequence; None where nothing was ever stored."""
        if DETER not in data:
            return None
        deter, stoch = (torch.from_numpy(data[key][:, 0, 0]).to(self.device) for key in (DETER, STOCH))
        if self.config.model.latent == "categorical":
            stoch = nn.functional.one_hot(stoch.long(), self.config.model.classes + 1)[..., 1:].flatten(-2)
        return State(deter.float() / BYTE, stoch.float())

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
        hooks = (Hook("collect", steps=config.train_every), Hook("update", ratio=config.updates_per_step))
        return (*phases, Phase("train", hooks, buffer="replay"))

    def _parts(self) -> Parts:
        slow = {} if self.target is None else {"critic": self.target.net}
        return {
            "networks": self.networks,
            "targets": slow,
            "optimizers": self.optimizers,
            "normalisers": {"observation": self.observer, "returns": self.scale},
        }

    def load_weights(self, state: dict[str, Any]) -> None:
        load_parts({kind: parts for kind, parts in self._parts().items() if kind != "optimizers"}, state)

    def state_dict(self) -> dict[str, Any]:
        return {**parts_state(self._parts()), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_parts(self._parts(), state)
        self.updates = state["updates"]
