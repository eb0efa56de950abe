"""World Models (Ha and Schmidhuber 2018, arXiv:1803.10122): V sees, M remembers and predicts, a small C acts.

A curriculum in phases: random rollouts, V learns to tell images in a few numbers, M learns what follows, C is found by
evolution in the environment or inside M's dreams. Each part can be another: see `world_models_config.py`. Letters in
shapes: T steps, B sequences, N environments, Z numbers of a latent, A of an encoded action.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.networks import OptimizerConfig
from cadenza.config.schema import Hook, Phase
from cadenza.data.batches import Sequences
from cadenza.data.candidate_returns import TRIAL, TrialStore
from cadenza.data.replay import ReplayStore
from cadenza.nets.actors import Actions
from cadenza.nets.controllers import LinearControllers
from cadenza.nets.mdn import DeterministicMLP, DreamNoise, Dynamics, DynamicsState, MixtureRNN, Prediction, unroll
from cadenza.nets.observe import VECTOR, Observer, images, vector_size
from cadenza.nets.opinions import action_mask, to_numpy
from cadenza.nets.optimizers import Optimizer, optimizer
from cadenza.nets.vae import ConvVAE
from cadenza.ops.planning import cem
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Explained, Imagination, Mode, Opinion, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.evolution import NONE, Evolution
from cadenza.workflows.parts import Parts
from cadenza.workflows.world_models_config import WorldModelsConfig

COLLECTED = 64  # steps of each environment in a cycle of rollouts


class WorldModels:
    hooks: tuple[str, ...] = ("update_vision", "update_memory", "evolve", "evolve_in_dream")

    def __init__(self, config: WorldModelsConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        ((self.group, group),) = context.env.groups.items()
        self.observer = Observer(group.observation, self.device)
        self.actions = Actions(group.action, self.device)
        self.key = next(iter(images(group.observation)), VECTOR)  # of what the latent tells, among what is observed
        self.networks: dict[str, nn.Module] = {}
        self.vision: ConvVAE | None = None
        self.latent = vector_size(group.observation)
        if self.key != VECTOR:
            self.latent = config.vision.latent
            self.vision = ConvVAE(images(group.observation)[self.key], self.latent, config.vision.depth)
            self.networks["vision"] = self.vision.to(self.device)
        self.memory = self._make_memory()
        self.networks["memory"] = self.memory
        adam = OptimizerConfig("adam", eps=1e-8)
        self.optimizers: dict[str, Optimizer] = {name: optimizer(net, adam) for name, net in self.networks.items()}
        seen = self.latent + sum(part.shape[-1] for part in self._shown(self.memory.initial(1)))
        self.control = LinearControllers(seen, self.actions, config.evolution.clipped)
        self.evolution: Evolution | None = None
        if config.controller == "evolved":
            found, generator = config.evolution, context.streams.torch("evolution")
            shape = (self.control.size, found.population, config.trials)
            self.evolution = Evolution(*shape, found.sigma, generator, self.device)
        controller = {} if self.evolution is None else {"evolution": self.evolution}
        self.parts = Parts(networks=self.networks, optimizers=self.optimizers, controller=controller)
        missing = {"update_vision"} if self.vision is None else set()
        missing |= {"evolve", "evolve_in_dream"} if self.evolution is None else set()
        self.hooks = tuple(name for name in type(self).hooks if name not in missing)

    def _make_memory(self) -> Dynamics:
        settings = self.config.memory
        sizes = (self.latent, self.actions.size, settings.hidden)
        if self.config.dynamics == "mlp":
            return DeterministicMLP(*sizes).to(self.device)
        return MixtureRNN(*sizes, settings.mixtures, settings.min_std).to(self.device)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        memory = self.memory.initial(num_envs)
        return {"h": memory.h.detach(), "c": memory.c.detach(), TRIAL: np.full(num_envs, NONE)}

    @torch.inference_mode()
    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """While exploring each environment has the controller of its trial, else that in the middle of them."""
        name, trial = self.group, np.full(len(step.is_first), NONE)
        if mode.forced is not None:  # nobody looks at what happens while V and M know nothing
            return Acted(mode.forced, {name: {}}, {**self.initial_carry(len(trial)), TRIAL: trial})
        kept = torch.from_numpy(~step.is_first).to(self.device).unsqueeze(-1)
        memory = DynamicsState(carry["h"] * kept, carry["c"] * kept)
        z = self._tell(self.observer(step.obs[name])[self.key][:, 0])
        allowed = torch.from_numpy(step.mask[name][:, 0]).to(self.device) if name in step.mask else None
        if self.evolution is not None and mode.explore:
            trial = self.evolution.assign(carry[TRIAL], step.is_first)
        action = self._choose(z, memory, allowed, trial, mode)
        if self.config.remembers:
            memory = self.memory.step(z, action, memory)
        carry = {"h": memory.h, "c": memory.c, TRIAL: trial}
        return Acted({name: self.actions.decode(action)[:, None]}, {name: {}}, carry)

    def _choose(
        self, z: Tensor, memory: DynamicsState, allowed: Tensor | None, trial: np.ndarray, mode: Mode
    ) -> Tensor:
        """Encoded actions [N, A]: the controllers' of these trials, or searched for."""
        if self.evolution is None:
            return self._searched(z, memory, allowed, mode.streams.torch("act", self.device))
        return self.control(self.evolution.controllers(trial), self._features(z, memory), allowed)

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return the controller's actions, which it is certain of, and the rewards that M expects, where it learns."""
        name, trial = self.group, np.full(1, NONE)
        z = self._tell(self.observer(steps.obs[name])[self.key][:, 0])
        mask = action_mask(steps, name, self.device)
        memory, chosen, rewards = DynamicsState(carry["h"], carry["c"]), [], []
        for n in range(len(z)):
            if steps.is_first[n]:
                memory = self.memory.initial(1)
            allowed = None if mask is None else mask[n]
            action = self._choose(z[n : n + 1], memory, allowed, trial, mode)
            chosen.append(action)
            rewards.append(self.memory.predict(memory).reward)  # for the action before
            if mode.forced is not None:
                action = self.actions.encode(torch.from_numpy(mode.forced[name][n]).to(self.device))
            if self.config.remembers:
                memory = self.memory.step(z[n : n + 1], action, memory)
        opinion = Opinion(reward=to_numpy(torch.stack(rewards))) if self.config.remembers else Opinion()
        if self.config.controller != "random":
            opinion = replace(opinion, **self._certain(torch.stack(chosen)))
        return Explained({name: opinion}, {"h": memory.h, "c": memory.c, TRIAL: trial})

    def _certain(self, action: Tensor) -> dict[str, np.ndarray]:
        """The distribution of an action that is not drawn, of encoded ones [N, 1, A]."""
        if self.actions.discrete:
            return {"probs": to_numpy(functional.one_hot(action.argmax(-1), self.actions.size))}
        mean = to_numpy(self.actions.middle + self.actions.reach * action)
        return {"mean": mean, "std": np.zeros_like(mean)}

    def _tell(self, seen: Tensor) -> Tensor:
        """What is seen [*, …] in Z numbers; of an image, what V thinks most likely."""
        return seen if self.vision is None else self.vision.encode(seen).mean

    def _shown(self, memory: DynamicsState) -> tuple[Tensor, ...]:
        return {"z": (), "z_h": (memory.h,), "z_h_c": (memory.h, memory.c)}[self.config.evolution.sees]

    def _features(self, z: Tensor, memory: DynamicsState) -> Tensor:
        return torch.cat([z, *self._shown(memory)], -1)

    def _searched(self, z: Tensor, memory: DynamicsState, allowed: Tensor | None, generator: torch.Generator) -> Tensor:
        """The first of the best plan's actions [N, A], or any action."""
        search, horizon, count = self.config.planning, self.config.horizon, len(z)
        if self.config.controller == "random":
            drawn = torch.rand(count, self.actions.size, generator=generator, device=self.device)
            if not self.actions.discrete:
                return 2 * drawn - 1
            drawn = drawn if allowed is None else drawn.masked_fill(~allowed, -1.0)
            return functional.one_hot(drawn.argmax(-1), self.actions.size).float()
        tried = (search.iterations, count, search.candidates, horizon, self.actions.size)
        noise = torch.randn(tried, generator=generator, device=self.device)
        start = torch.zeros(count, horizon, self.actions.size, device=self.device)

        def score(plans: Tensor) -> Tensor:
            latent, *known = (x.repeat_interleave(search.candidates, 0) for x in (z, *memory))
            after = DynamicsState(*known)
            total, alive = torch.zeros(len(latent), device=self.device), torch.ones(len(latent), device=self.device)
            for t in range(horizon):
                after = self.memory.step(latent, plans[:, :, t].flatten(0, 1), after)
                guess = self.memory.predict(after)
                total += alive * guess.reward
                alive = alive * torch.sigmoid(-guess.end)
                latent = guess.expectation()
            return total.view(count, search.candidates)

        return cem(score, start, torch.ones_like(start), noise, search.elites)[0][:, 0]

    # learning

    def update_vision(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """One gradient step of V on images from anywhere."""
        assert self.vision is not None
        settings = self.config.vision
        drawn = store.sequences(settings.batch_size, 1, self.context.streams.numpy("replay"))
        image = self.observer(map_tree(lambda x: x[:, 0, 0], drawn.groups[self.group]["obs"]))[self.key]
        noise = torch.randn(len(image), self.latent, generator=self._stream("vision"), device=self.device)
        error, divergence = self.vision.losses(image, noise, settings.kl_tolerance)
        norm = self._step("vision", error + divergence, settings.learning_rate)
        metrics = {"error": error.detach(), "divergence": divergence.detach(), "grad_norm": norm}
        return Updated(1, {f"train/vision/{name}": value for name, value in metrics.items()})

    def update_memory(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """One gradient step of M on sequences, told by V with a fresh draw each time."""
        settings, length = self.config.memory, self.config.batch_length
        drawn = store.sequences(settings.batch_size, length + 1, self.context.streams.numpy("replay"))
        z, action, reward, first = self._told(drawn, self._stream("memory"))
        last, terminated = (self._by_time(x) for x in (drawn.last, drawn.terminated))
        memory = unroll(self.memory, z[:-1], action[:-1], first[:-1])
        guess, weight = self.memory.predict(memory), (~last[:-1]).float()  # nothing follows what was seen last
        end = (last & terminated)[1:].float()
        losses = {
            "likelihood": -guess.log_prob(z[1:]).mean(-1),
            "reward": settings.reward_scale * (guess.reward - reward[:-1]).square(),
            "end": settings.end_scale * functional.binary_cross_entropy_with_logits(guess.end, end, reduction="none"),
        }
        means = {name: (weight * loss).sum() / weight.sum().clamp(min=1) for name, loss in losses.items()}
        norm = self._step("memory", torch.stack(list(means.values())).sum(), settings.learning_rate)
        metrics = {**{name: value.detach() for name, value in means.items()}, "grad_norm": norm}
        return Updated(1, {f"train/memory/{name}": value for name, value in metrics.items()})

    def evolve(self, store: TrialStore, phase: PhaseInfo) -> Updated:
        """Take in what ended; the next generation, once all trials of this one have."""
        assert self.evolution is not None
        self.evolution.note(*store.take())
        if not self.evolution.complete:
            return Updated(0, {})
        return self._evolved()

    def evolve_in_dream(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """A generation that was never awake: all of its trials at once, from how real episodes began."""
        assert self.evolution is not None
        trials = np.arange(len(self.evolution.done))
        begun = store.beginnings(len(trials), self.context.streams.numpy("replay"))[self.group]
        self.evolution.note(trials, self._dream(trials, self.observer(map_tree(lambda x: x[:, 0], begun))[self.key]))
        return self._evolved()

    def _evolved(self) -> Updated:
        assert self.evolution is not None
        told = self.evolution.next_generation()
        return Updated(1, {f"train/evolution/{name}": value for name, value in told.items()})

    @torch.inference_mode()
    def _dream(self, trials: np.ndarray, seen: Tensor) -> np.ndarray:
        """What the controllers of these trials would earn [N], as far as M knows."""
        assert self.evolution is not None
        config, generator, count = self.config, self._stream("dream"), len(trials)
        controllers, memory, z = self.evolution.controllers(trials), self.memory.initial(count), self._tell(seen)
        total = torch.zeros(count, dtype=torch.float64, device=self.device)
        alive = torch.ones(count, dtype=torch.bool, device=self.device)
        for _ in range(config.dream_steps):
            memory = self.memory.step(z, self.control(controllers, self._features(z, memory)), memory)
            guess = self.memory.predict(memory)
            total += guess.reward * alive
            alive &= guess.end < 0
            if not alive.any():
                break
            z = self._following(guess, config.evolution.temperature, generator)
        return np.asarray(total.cpu().numpy())

    def _following(self, guess: Prediction, temperature: float, generator: torch.Generator) -> Tensor:
        """The next latents [N, Z] of a dream; a deterministic M says its own, and nothing is drawn."""
        if self.config.dynamics == "mlp":
            return guess.expectation()
        noise = DreamNoise.sample(len(guess.reward), self.latent, self.memory.mixtures, generator)
        return guess.sample(noise, temperature)

    def _step(self, name: str, loss: Tensor, learning_rate: float) -> Tensor:
        self.optimizers[name].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        limit = self.config.memory.max_grad_norm if name == "memory" else None
        return self.optimizers[name].step(learning_rate, limit)["all"]

    def _stream(self, name: str) -> torch.Generator:
        return self.context.streams.torch(name, self.device)

    def _by_time(self, array: np.ndarray) -> Tensor:
        """[B, L, …] to [L, B, …]."""
        return torch.from_numpy(np.ascontiguousarray(array.swapaxes(0, 1))).to(self.device)

    @torch.no_grad()
    def _told(self, drawn: Sequences, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Latents, encoded actions, rewards for them and firsts, [L, B, …]; most likely latents without a generator."""
        data = drawn.groups[self.group]
        obs = map_tree(lambda x: np.ascontiguousarray(x[:, :, 0].swapaxes(0, 1)), data["obs"])
        z = self.observer(obs)[self.key]
        if self.vision is not None:
            code = self.vision.encode(z)
            z = code.mean
            if generator is not None:
                z = code.sample(torch.randn(z.shape, generator=generator, device=self.device))
        action = self.actions.encode(self._by_time(data["action"][:, :, 0]))
        return z, action, self._by_time(data["reward"][:, :, 0]), self._by_time(drawn.is_first)

    # looking inside

    @property
    def imagines(self) -> bool:
        """Whether M learns anything."""
        return self.config.remembers

    @torch.inference_mode()
    def imagine(self, drawn: Sequences, known: int, seed: int) -> Imagination:
        """What V makes of the first `known` steps, and what M dreams of the rest, given the actions alone."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        z, action, reward, first = (x[1:] for x in self._told(drawn, None))  # what comes before only leads there
        memory, now = self.memory.initial(z.shape[1]), z[0]
        latents, rewards = [], []
        earned = torch.zeros_like(reward[0])
        for t in range(len(z)):
            now = z[t] if t < known else now
            latents.append(now)
            rewards.append(earned)
            kept = ~first[t].unsqueeze(-1)
            memory = self.memory.step(now, action[t], DynamicsState(memory.h * kept, memory.c * kept))
            guess = self.memory.predict(memory)
            now = self._following(guess, 1.0, generator)
            earned = guess.reward
        told = torch.stack(latents)
        obs = map_tree(lambda x: np.ascontiguousarray(x[:, 1:, 0]), drawn.groups[self.group]["obs"])
        seen = self.observer(obs)[self.key]
        made = told if self.vision is None else (255 * self.vision.decode(told)).round().byte()
        happened = torch.cat([torch.zeros_like(reward[:1]), reward[:-1]])
        return Imagination(
            obs={self.key: np.asarray(seen.cpu().numpy())},
            predicted_obs={self.key: _by_sequence(made)},
            reward=_by_sequence(happened),
            predicted_reward=_by_sequence(torch.stack(rewards)),
        )

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        stores: dict[str, Store] = {
            "replay": ReplayStore(config.buffer_size, num_envs, stack=stack, on_disk=config.buffer_on_disk)
        }
        if self.evolution is not None:
            stores["trials"] = TrialStore(num_envs)
        return stores

    def phases(self) -> tuple[Phase, ...]:
        config, num_envs = self.config, self.context.num_envs
        steps = max(config.rollout_steps, (config.batch_length + 2) * num_envs)
        collect = Hook("collect", steps=min(steps, COLLECTED * num_envs))
        who = "random" if config.controller == "random" else config.rollout_actions
        phases = [Phase("rollouts", (collect,), buffer="replay", actions=who, duration_steps=steps)]
        if self.vision is not None:
            see = (Hook("update_vision"),)
            phases.append(Phase("vision", see, "offline", "replay", duration_updates=config.vision_updates))
        if config.remembers:
            learn = (Hook("update_memory"),)
            phases.append(Phase("memory", learn, "offline", "replay", duration_updates=config.memory_updates))
        if config.controller == "plan":
            hooks = (Hook("collect", steps=config.train_every), Hook("update_memory", ratio=config.train_ratio))
            return (*phases, Phase("controller", hooks, buffer="replay"))
        if config.dreams:
            dream = (Hook("evolve_in_dream"),)
            phases.append(Phase("controller", dream, "offline", "replay", duration_updates=config.generations))
        elif config.controller == "evolved":
            hooks = (Hook("collect", episodes=1), Hook("evolve"))
            phases.append(Phase("controller", hooks, buffer="trials", duration_updates=config.generations))
            if config.generations is None:
                return tuple(phases)
        return (*phases, Phase("evaluation", (Hook("evaluate"),), "eval_only", "replay", duration_cycles=1))

    def load_weights(self, state: dict[str, Any]) -> None:
        """V and M; C, too, if it has as many numbers."""
        self.parts.load_weights(state, skip=("controller",))
        theirs = state["controller"].get("evolution")
        if self.evolution is not None and theirs and len(theirs["search"]["mean"]) == self.control.size:
            self.evolution.begin_at(theirs["search"]["mean"])

    def state_dict(self) -> dict[str, Any]:
        return self.parts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)


def _by_sequence(x: Tensor) -> np.ndarray:
    """[T, B, …] to an array [B, T, …]."""
    return np.asarray(x.transpose(0, 1).cpu().numpy())
