"""World Models (Ha and Schmidhuber 2018, arXiv:1803.10122): a vision model V, a memory M and a small controller C.

A curriculum in phases: random rollouts; V learns to compress images; M learns to predict the next step; C is evolved in
the environment or in M's dreams. Each part can be exchanged: see `world_models_config.py`. Letters in shapes: T steps,
B sequences, N environments, Z numbers of a latent, A of an encoded action.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.networks import OptimizerConfig, OwnPart
from cadenza.config.schedules import TimedSettings
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Sequences
from cadenza.data.candidate_returns import TRIAL, TrialStore
from cadenza.data.replay import ReplayStore
from cadenza.nets.actors import Actions
from cadenza.nets.controllers import Controllers, LinearControllers, OwnControllers
from cadenza.nets.mdn import DeterministicMLP, DreamNoise, DynamicsState, MixtureRNN, Prediction, unroll
from cadenza.nets.observe import VECTOR, Observer, images, vector_size
from cadenza.nets.opinions import action_mask, by_sequence, to_numpy
from cadenza.nets.optimizers import Optimizer, in_parts, optimizer
from cadenza.nets.own_parts import own_function, own_part
from cadenza.nets.vae import ConvVAE
from cadenza.ops.planning import cem
from cadenza.trees import map_tree
from cadenza.types import (
    Acted,
    Autoencoder,
    Context,
    Explained,
    Imagination,
    LatentMemory,
    Mode,
    Opinion,
    PhaseInfo,
    Step,
    Store,
    Tree,
    Updated,
)
from cadenza.workflows.evolution import NONE, Evolution
from cadenza.workflows.parts import Parts, own_states
from cadenza.workflows.world_models_config import WorldModelsConfig

NAMES = ("error", "divergence")  # the losses of V
COLLECTED = 64  # steps of each environment in a cycle of rollouts


class WorldModels:
    """The workflow of World Models."""

    hooks: tuple[str, ...] = (
        "update_vision",
        "update_memory",
        "update_world_model",
        "evolve",
        "evolve_in_dream",
        "update_controller",
    )

    def __init__(self, config: WorldModelsConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        self.timed = TimedSettings(config)
        ((self.group, group),) = context.env.groups.items()
        self.observer = Observer(group.observation, self.device)
        self.actions = Actions(group.action, self.device)
        self.key = next(iter(images(group.observation)), VECTOR)  # the part of the observation that the latent encodes
        self.networks: dict[str, nn.Module] = {}
        self.vision: Any = None
        self.latent = vector_size(group.observation)
        if self.key != VECTOR:
            self.latent = config.vision.latent
            shape, vision = images(group.observation)[self.key], config.representation
            if isinstance(vision, OwnPart):
                self.vision = own_part(vision, Autoencoder, shape, self.latent, config.vision.depth)
            else:
                self.vision = ConvVAE(shape, self.latent, config.vision.depth)
            self.networks["vision"] = self.vision.to(self.device)
        self.memory = self._make_memory()
        self.networks["memory"] = self.memory
        adam = OptimizerConfig("adam", eps=1e-8)
        self.optimizers: dict[str, Optimizer] = {name: optimizer(net, adam) for name, net in self.networks.items()}
        self.planner = own_function(config.planner) if isinstance(config.planner, OwnPart) else cem
        inputs = self.latent + sum(part.shape[-1] for part in self._visible_state(self.memory.initial(1)))
        network, clipped = config.evolution.network, config.evolution.clipped
        self.control: Controllers
        if isinstance(network, OwnPart):
            self.control = OwnControllers(inputs, self.actions, network, clipped, self.device)
        else:
            self.control = LinearControllers(inputs, self.actions, clipped)
        self.evolution: Evolution | None = None
        if config.controller == "evolved":
            shape = (self.control.size, config.evolution.population, config.trials)
            generator = context.streams.torch("evolution")
            self.evolution = Evolution(*shape, config.evolution.sigma, generator, self.device)
            if self.control.start is not None:
                self.evolution.start_from(self.control.start)
        controller = {} if self.evolution is None else {"evolution": self.evolution}
        self.parts = Parts(
            networks=self.networks,
            optimizers=self.optimizers,
            controller=controller,
            **own_states(planner=self.planner),
        )
        missing = {"update_vision"} if self.vision is None else set()
        missing |= {"evolve", "evolve_in_dream", "update_controller"} if self.evolution is None else set()
        self.hooks = tuple(name for name in type(self).hooks if name not in missing)

    def _make_memory(self) -> Any:
        settings = self.config.memory
        sizes = (self.latent, self.actions.size, settings.hidden)
        if isinstance(self.config.dynamics, OwnPart):
            memory: LatentMemory = own_part(self.config.dynamics, LatentMemory, *sizes).to(self.device)
            return memory
        if self.config.dynamics == "mlp":
            return DeterministicMLP(*sizes).to(self.device)
        return MixtureRNN(*sizes, settings.mixtures, settings.min_std).to(self.device)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        memory = self.memory.initial(num_envs)
        return {"h": memory.h.detach(), "c": memory.c.detach(), TRIAL: np.full(num_envs, NONE)}

    @torch.inference_mode()
    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Act by the controller of each environment's trial while exploring, else by the mean of all controllers."""
        name, trial = self.group, np.full(len(step.is_first), NONE)
        if mode.forced is not None:  # during random rollouts V and M are untrained, so M need not follow them
            return Acted(mode.forced, {name: {}}, {**self.initial_carry(len(trial)), TRIAL: trial})
        keep = torch.from_numpy(~step.is_first).to(self.device).unsqueeze(-1)
        memory = DynamicsState(carry["h"] * keep, carry["c"] * keep)
        z = self._encode(self.observer(step.obs[name])[self.key][:, 0])
        allowed = torch.from_numpy(step.mask[name][:, 0]).to(self.device) if name in step.mask else None
        if self.evolution is not None and mode.explore:
            trial = self.evolution.assign(carry[TRIAL], step.is_first)
        action = self._choose_action(z, memory, allowed, trial, mode)
        if self.config.remembers:
            memory = self.memory.step(z, action, memory)
        carry = {"h": memory.h, "c": memory.c, TRIAL: trial}
        return Acted({name: self.actions.decode(action)[:, None]}, {name: {}}, carry)

    def _choose_action(
        self, z: Tensor, memory: DynamicsState, allowed: Tensor | None, trial: np.ndarray, mode: Mode
    ) -> Tensor:
        """Return encoded actions [N, A]: of the controllers of these trials, planned, or random."""
        if self.evolution is None:
            return self._search(z, memory, allowed, mode.streams.torch("act", self.device))
        return self.control(self.evolution.controllers(trial), self._features(z, memory), allowed)

    def _encode(self, observation: Tensor) -> Tensor:
        """Return latents [*, Z]: of images the most likely ones, of vectors the vectors themselves."""
        return observation if self.vision is None else self.vision.encode(observation).mean

    def _visible_state(self, memory: DynamicsState) -> tuple[Tensor, ...]:
        """Return the parts of M's state that controllers see."""
        return {"z": (), "z_h": (memory.h,), "z_h_c": (memory.h, memory.c)}[self.config.evolution.sees]

    def _features(self, z: Tensor, memory: DynamicsState) -> Tensor:
        """Return the controllers' inputs [N, F]."""
        return torch.cat([z, *self._visible_state(memory)], -1)

    def _search(self, z: Tensor, memory: DynamicsState, allowed: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return the first actions [N, A] of the best plans in M, or random ones for `controller=random`."""
        search, horizon, count = self.config.planning, self.config.horizon, len(z)
        if self.config.controller == "random":
            uniform = torch.rand(count, self.actions.size, generator=generator, device=self.device)
            if not self.actions.discrete:
                return 2 * uniform - 1
            uniform = uniform if allowed is None else uniform.masked_fill(~allowed, -1.0)
            return functional.one_hot(uniform.argmax(-1), self.actions.size).float()
        shape = (search.iterations, count, search.candidates, horizon, self.actions.size)
        noise = torch.randn(shape, generator=generator, device=self.device)
        start = torch.zeros(count, horizon, self.actions.size, device=self.device)

        def score(plans: Tensor) -> Tensor:
            latent, *parts = (x.repeat_interleave(search.candidates, 0) for x in (z, *memory))
            state = DynamicsState(*parts)
            total, alive = torch.zeros(len(latent), device=self.device), torch.ones(len(latent), device=self.device)
            for t in range(horizon):
                state = self.memory.step(latent, plans[:, :, t].flatten(0, 1), state)
                prediction = self.memory.predict(state)
                total += alive * prediction.reward
                alive = alive * torch.sigmoid(-prediction.end)
                latent = prediction.expectation()
            return total.view(count, search.candidates)

        return self.planner(score, start, torch.ones_like(start), noise, search.elites)[0][:, 0]

    # learning

    def update_vision(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of V on single images."""
        vision, settings = self.vision, self.timed.at(phase).vision
        assert vision is not None
        batch = store.sequences(settings.batch_size, 1, self.context.streams.numpy("replay"))
        image = self.observer(map_tree(lambda x: x[:, 0, 0], batch.groups[self.group]["obs"]))[self.key]
        noise = torch.randn(len(image), self.latent, generator=self._stream("vision"), device=self.device)

        def losses(part: Tree) -> dict[str, Tensor]:
            return dict(zip(NAMES, vision.losses(part["image"], part["noise"], settings.kl_tolerance), strict=True))

        by_image = in_parts(losses, {"image": image, "noise": noise}, self.config.accumulate)
        error, divergence = (by_image[name].mean() for name in NAMES)
        norm = self._step("vision", error + divergence, settings.learning_rate)
        metrics = {"error": error.detach(), "divergence": divergence.detach(), "grad_norm": norm}
        return Updated(1, {f"train/vision/{name}": value for name, value in metrics.items()})

    def update_memory(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of M on sequences of latents, which are sampled anew from V each time."""
        settings, length = self.timed.at(phase).memory, self.config.batch_length
        batch = store.sequences(settings.batch_size, length + 1, self.context.streams.numpy("replay"))
        z, action, reward, first = self._latent_sequences(batch, self._stream("memory"))
        last, terminated = (self._by_time(x) for x in (batch.last, batch.terminated))
        weight = (~last[:-1]).float()  # an episode's last row has no successor
        end = (last & terminated)[1:].float()

        def losses(part: Tree) -> dict[str, Tensor]:
            prediction = self.memory.predict(unroll(self.memory, part["z"], part["action"], part["first"]))
            end_loss = functional.binary_cross_entropy_with_logits(prediction.end, part["end"], reduction="none")
            return {
                "likelihood": -prediction.log_prob(part["next_z"]).mean(-1),
                "reward": settings.reward_scale * (prediction.reward - part["reward"]).square(),
                "end": settings.end_scale * end_loss,
            }

        inputs = {"z": z[:-1], "action": action[:-1], "first": first[:-1], "end": end, "next_z": z[1:]}
        by_step = in_parts(losses, {**inputs, "reward": reward[:-1]}, self.config.accumulate, dim=1)
        means = {name: (weight * loss).sum() / weight.sum().clamp(min=1) for name, loss in by_step.items()}
        loss = torch.stack(list(means.values())).sum()
        norm = self._step("memory", loss, settings.learning_rate, settings.max_grad_norm)
        metrics = {**{name: value.detach() for name, value in means.items()}, "grad_norm": norm}
        return Updated(1, {f"train/memory/{name}": value for name, value in metrics.items()})

    def update_world_model(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of V, for images, and then one of M."""
        vision = Updated(0, {}) if self.vision is None else self.update_vision(store, phase)
        memory = self.update_memory(store, phase)
        return Updated(vision.updates + memory.updates, vision.metrics | memory.metrics)

    def update_controller(self, store: ReplayStore | TrialStore, phase: PhaseInfo) -> Updated:
        """Evolve C by the returns of trials in the environment, or in dreams that begin in a replay."""
        is_replay = hasattr(store, "beginnings")
        return self.evolve_in_dream(store, phase) if is_replay else self.evolve(store, phase)  # type: ignore[arg-type]

    def evolve(self, store: TrialStore, phase: PhaseInfo) -> Updated:
        """Record the returns of finished trials; once all have one, create the next generation."""
        assert self.evolution is not None
        self.evolution.record(*store.take())
        return self._next_generation() if self.evolution.complete else Updated(0, {})

    def evolve_in_dream(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Run all trials of a generation at once in M, from the beginnings of real episodes; create the next one."""
        assert self.evolution is not None
        trials = np.arange(len(self.evolution.has_return))
        starts = store.beginnings(len(trials), self.context.streams.numpy("replay"))[self.group]
        observation = self.observer(map_tree(lambda x: x[:, 0], starts))[self.key]
        self.evolution.record(trials, self._dream(trials, observation, self.timed.at(phase)))
        return self._next_generation()

    def _next_generation(self) -> Updated:
        assert self.evolution is not None
        metrics = self.evolution.next_generation()
        return Updated(1, {f"train/evolution/{name}": value for name, value in metrics.items()})

    @torch.inference_mode()
    def _dream(self, trials: np.ndarray, observation: Tensor, config: WorldModelsConfig) -> np.ndarray:
        """Return the returns [N] that M predicts for the controllers of these trials, from observations [N, …]."""
        assert self.evolution is not None
        generator, count = self._stream("dream"), len(trials)
        controllers, memory = self.evolution.controllers(trials), self.memory.initial(count)
        z = self._encode(observation)
        total = torch.zeros(count, dtype=torch.float64, device=self.device)
        alive = torch.ones(count, dtype=torch.bool, device=self.device)
        for _ in range(config.dream_steps):
            memory = self.memory.step(z, self.control(controllers, self._features(z, memory)), memory)
            prediction = self.memory.predict(memory)
            total += prediction.reward * alive
            alive &= prediction.end < 0
            if not alive.any():
                break
            z = self._next_latent(prediction, config.evolution.temperature, generator)
        return np.asarray(total.cpu().numpy())

    def _next_latent(self, prediction: Prediction, temperature: float, generator: torch.Generator) -> Tensor:
        """Return the next latents [N, Z] of a dream: sampled, or the expected ones where M is deterministic."""
        if self.config.dynamics == "mlp":
            return prediction.expectation()
        noise = DreamNoise.sample(len(prediction.reward), self.latent, prediction.mean.shape[-1], generator)
        return prediction.sample(noise, temperature)

    def _step(self, name: str, loss: Tensor, learning_rate: float, max_norm: float | None = None) -> Tensor:
        """Make one gradient step of a network; return the norm of its gradient."""
        self.optimizers[name].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return self.optimizers[name].step(learning_rate, max_norm)["all"]

    def _stream(self, name: str) -> torch.Generator:
        return self.context.streams.torch(name, self.device)

    def _by_time(self, array: np.ndarray) -> Tensor:
        """Return an array [B, L, …] as a tensor [L, B, …]."""
        return torch.from_numpy(np.ascontiguousarray(array.swapaxes(0, 1))).to(self.device)

    @torch.no_grad()
    def _latent_sequences(
        self, batch: Sequences, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return latents, encoded actions, their rewards and episode starts, [L, B, …].

        Latents are sampled with the generator; without one they are the most likely ones.
        """
        data = batch.groups[self.group]
        obs = map_tree(lambda x: np.ascontiguousarray(x[:, :, 0].swapaxes(0, 1)), data["obs"])
        z = self.observer(obs)[self.key]
        if self.vision is not None:
            code = self.vision.encode(z)
            z = code.mean
            if generator is not None:
                z = code.sample(torch.randn(z.shape, generator=generator, device=self.device))
        action = self.actions.encode(self._by_time(data["action"][:, :, 0]))
        return z, action, self._by_time(data["reward"][:, :, 0]), self._by_time(batch.is_first)

    # what the lab shows

    @property
    def imagines(self) -> bool:
        """Return whether M is trained, so that it can predict."""
        return self.config.remembers

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return the actions as distributions without spread, and the rewards that a trained M expects."""
        name, trial = self.group, np.full(1, NONE)
        z = self._encode(self.observer(steps.obs[name])[self.key][:, 0])
        mask = action_mask(steps, name, self.device)
        memory, actions, rewards = DynamicsState(carry["h"], carry["c"]), [], []
        for n in range(len(z)):
            if steps.is_first[n]:
                memory = self.memory.initial(1)
            allowed = None if mask is None else mask[n]
            action = self._choose_action(z[n : n + 1], memory, allowed, trial, mode)
            actions.append(action)
            rewards.append(self.memory.predict(memory).reward)  # for the action before
            if mode.forced is not None:
                action = self.actions.encode(torch.from_numpy(mode.forced[name][n]).to(self.device))
            if self.config.remembers:
                memory = self.memory.step(z[n : n + 1], action, memory)
        opinion = Opinion(reward=to_numpy(torch.stack(rewards))) if self.config.remembers else Opinion()
        if self.config.controller != "random":
            opinion = replace(opinion, **self._distribution(torch.stack(actions)))
        return Explained({name: opinion}, {"h": memory.h, "c": memory.c, TRIAL: trial})

    def _distribution(self, action: Tensor) -> dict[str, np.ndarray]:
        """Return encoded actions [N, 1, A] as distributions: probabilities of 0 and 1, or means with deviation 0."""
        if self.actions.discrete:
            return {"probs": to_numpy(functional.one_hot(action.argmax(-1), self.actions.size))}
        mean = to_numpy(self.actions.middle + self.actions.reach * action)
        return {"mean": mean, "std": np.zeros_like(mean)}

    @torch.inference_mode()
    def imagine(self, sequences: Sequences, context_steps: int, seed: int) -> Imagination:
        """Reconstruct the first `context_steps` with V; predict the rest with M from the actions alone."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        z, action, reward, first = (x[1:] for x in self._latent_sequences(sequences, None))  # row 0 leads in
        memory, latent = self.memory.initial(z.shape[1]), z[0]
        latents, rewards = [], [torch.zeros_like(reward[0])]
        for t in range(len(z)):
            latent = z[t] if t < context_steps else latent
            latents.append(latent)
            keep = ~first[t].unsqueeze(-1)
            memory = self.memory.step(latent, action[t], DynamicsState(memory.h * keep, memory.c * keep))
            prediction = self.memory.predict(memory)
            latent = self._next_latent(prediction, 1.0, generator)
            rewards.append(prediction.reward)
        predicted = torch.stack(latents)
        if self.vision is not None:
            predicted = (255 * self.vision.decode(predicted)).round().byte()
        obs = map_tree(lambda x: np.ascontiguousarray(x[:, 1:, 0]), sequences.groups[self.group]["obs"])
        return Imagination(
            obs={self.key: np.asarray(self.observer(obs)[self.key].cpu().numpy())},
            predicted_obs={self.key: by_sequence(predicted)},
            reward=by_sequence(torch.cat([torch.zeros_like(reward[:1]), reward[:-1]])),
            predicted_reward=by_sequence(torch.stack(rewards[:-1])),
        )

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        make, size, on_disk = self.context.store, config.buffer_size, config.buffer_on_disk
        stores: dict[str, Store] = {"replay": make("replay", ReplayStore, size, num_envs, stack=stack, on_disk=on_disk)}
        if self.evolution is not None:
            stores["trials"] = make("trials", TrialStore, num_envs)
        return stores

    def phases(self) -> tuple[Phase, ...]:
        config, num_envs = self.config, self.context.num_envs
        steps = max(config.rollout_steps, (config.batch_length + 2) * num_envs)
        collect = Hook("collect", steps=min(steps, COLLECTED * num_envs))
        actions = "random" if config.controller == "random" else config.rollout_actions
        phases = [Phase("rollouts", (collect,), buffer="replay", actions=actions, duration_steps=steps)]
        if self.vision is not None:
            hooks = (Hook("update_vision"),)
            phases.append(Phase("vision", hooks, "offline", "replay", duration_updates=config.vision_updates))
        if config.remembers:
            hooks = (Hook("update_memory"),)
            phases.append(Phase("memory", hooks, "offline", "replay", duration_updates=config.memory_updates))
        if config.controller == "plan":
            train = (Hook("collect", steps=config.train_every), Hook("update_memory", ratio=config.train_ratio))
            return (*phases, Phase("controller", train, buffer="replay"))
        if config.dreams:
            hooks = (Hook("evolve_in_dream"),)
            phases.append(Phase("controller", hooks, "offline", "replay", duration_updates=config.generations))
        elif config.controller == "evolved":
            train = (Hook("collect", episodes=1), Hook("evolve"))
            phases.append(Phase("controller", train, buffer="trials", duration_updates=config.generations))
            if config.generations is None:
                return tuple(phases)
        return (*phases, Phase("evaluation", (Hook("evaluate"),), "eval_only", "replay", duration_cycles=1))

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load V and M, and start the evolution from the other run's mean if its controllers have the same size."""
        self.parts.load_weights(state, skip=("controller",))
        other = state["controller"].get("evolution")
        if self.evolution is not None and other and len(other["search"]["mean"]) == self.control.size:
            self.evolution.start_from(other["search"]["mean"])

    def state_dict(self) -> dict[str, Any]:
        return self.parts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
