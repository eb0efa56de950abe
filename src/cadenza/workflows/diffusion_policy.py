"""Diffusion Policy (Chi et al. 2023, arXiv:2303.04137): chunks of actions, denoised to resemble an expert's.

It learns from demonstrations alone, in offline phases. Each group has a network of its own, shared by its agents.
Settings: `diffusion_policy_config.py`. Letters in shapes: B chunks, N environments, A agents, H observations of the
history, T actions of the horizon, D numbers of an action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.config.networks import OwnPart
from cadenza.config.schedules import TimedSettings
from cadenza.config.schema import Hook, Phase
from cadenza.data.replay import ReplayStore
from cadenza.envs.layout import allocate_space
from cadenza.nets.actors import Actions
from cadenza.nets.denoisers import DenoisingTransformer, UNet
from cadenza.nets.mlp import MLP
from cadenza.nets.normalisers import RangeNorm
from cadenza.nets.observe import VECTOR, ObservationTensors, Observer, flatten, is_image, vector_size, walk
from cadenza.nets.opinions import single_steps, to_numpy
from cadenza.nets.optimizers import Optimizer, in_parts, optimizer
from cadenza.nets.own_parts import own_denoiser
from cadenza.nets.target import Target
from cadenza.nets.torso import Torso
from cadenza.ops.diffusion import NOISE_SCHEDULES, add_noise, ddim_step, ddpm_step, sampling_steps
from cadenza.ops.surrogate import masked_mean
from cadenza.trees import map_tree
from cadenza.types import Acted, Context, Explained, GroupSpec, Mode, Opinion, PhaseInfo, Step, Store, Tree, Updated
from cadenza.workflows.diffusion_policy_config import DiffusionPolicyConfig
from cadenza.workflows.parts import Parts

CYCLE = 100  # gradient steps of a cycle, at whose end evaluations, rows and checkpoints may be due
DRAWS = 8  # chunks that `explain` samples for each observation, to estimate the distribution
AT_ONCE = 512  # transitions read at a time to measure the ranges of the data


class Net(nn.Module):
    """A network from observations to the noise in actions, or (cloning) to the actions themselves."""

    def __init__(self, group: GroupSpec, actions: int, config: DiffusionPolicyConfig) -> None:
        super().__init__()
        self.torso = Torso(group.observation, config.torso)
        self.shape = (config.horizon, actions)
        history, features = config.history, self.torso.features
        self.denoiser: nn.Module | None = None
        if config.baseline == "cloning":
            self.regression = MLP(history * features, config.horizon * actions, config.cloning)
        elif isinstance(config.denoiser, OwnPart):
            self.denoiser = own_denoiser(config.denoiser, actions, config.horizon, history, features)
        elif config.denoiser == "unet":
            self.denoiser = UNet(actions, history, features, config.unet)
        else:
            self.denoiser = DenoisingTransformer(actions, config.horizon, history, features, config.transformer)

    def encode(self, obs: ObservationTensors) -> Tensor:
        """Return features [B * A, H, F] of observations [B, H, A, …]."""
        features: Tensor = self.torso(obs, {}, torch.empty(0))[0]
        return features.transpose(1, 2).flatten(0, 1)

    def clone(self, features: Tensor) -> Tensor:
        """Return actions [B, T, D] for features [B, H, F]."""
        chunk: Tensor = self.regression(features.flatten(1))
        return chunk.view(-1, *self.shape)


class DiffusionPolicy:
    """The workflow of Diffusion Policy and of behaviour cloning, its baseline."""

    hooks = ("update", "update_world_model", "update_policy")

    def __init__(self, config: DiffusionPolicyConfig, context: Context) -> None:
        self.config, self.context, self.device = config, context, context.device
        self.timed = TimedSettings(config)
        self.nets: dict[str, Net] = {}
        self.averages: dict[str, Target[Net]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.observers: dict[str, Observer] = {}
        self.actions: dict[str, Actions] = {}
        self.ranges: dict[str, RangeNorm] = {}  # of observations and actions, by `GROUP.obs` and `GROUP.action`
        self.signal = NOISE_SCHEDULES[config.noise_schedule](config.noise_steps).to(self.device)
        self.updates = 0
        for name, group in context.env.groups.items():
            actions = self.actions[name] = Actions(group.action, self.device)
            net = self.nets[name] = Net(group, actions.size, config).to(self.device)
            self.optimizers[name] = optimizer(net, config.optimizer)
            self.averages[name] = Target(net, self.optimizers[name])
            self.observers[name] = Observer(group.observation, self.device, raw=config.torso.encoder != "auto")
            self.ranges[f"{name}.obs"] = RangeNorm(vector_size(group.observation), self.device)
            self.ranges[f"{name}.action"] = RangeNorm(actions.size, self.device)
        averages = {name: average.net for name, average in self.averages.items()}
        self.parts = Parts(nets=self.nets, averages=averages, optimizers=self.optimizers, normalisers=self.ranges)

    # acting

    def initial_carry(self, num_envs: int) -> Tree:
        config, groups = self.config, self.context.env.groups
        memory: Tree = {}
        for name, group in groups.items():
            agents = len(group.agents)
            memory[name] = {
                "seen": allocate_space(group.observation, (num_envs, config.history, agents)),
                "chunk": np.zeros((num_envs, config.executed, agents, self.actions[name].size), np.float32),
            }
        return {"left": np.zeros(num_envs, np.int64), "groups": memory}  # left: unused actions of the chunk

    @torch.inference_mode()
    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Take the next action of the current chunk; create a new chunk where it is used up."""
        executed = self.config.executed
        remaining = np.where(step.is_first, 0, carry["left"])
        empty = np.flatnonzero(remaining == 0) if mode.forced is None else np.zeros(0, np.int64)
        action, after = {}, {}
        for name, memory in carry["groups"].items():
            history = map_tree(lambda old, new: push(old, new, step.is_first), memory["seen"], step.obs[name])
            chunk = memory["chunk"]
            if len(empty):
                chunk = chunk.copy()
                chunk[empty] = self._create_chunks(name, map_tree(lambda x: x[empty], history), mode)[:, :executed]
            after[name] = {"seen": history, "chunk": chunk}
            if mode.forced is None:
                place = executed - np.where(remaining == 0, executed, remaining)
                action[name] = self._decode(name, chunk[np.arange(len(remaining)), place], step)
        if mode.forced is not None:  # the chunk was not planned for such an action, so the next one is new
            return Acted(mode.forced, {name: {} for name in after}, {"left": np.zeros_like(remaining), "groups": after})
        remaining = np.where(remaining == 0, executed, remaining) - 1
        return Acted(action, {name: {} for name in after}, {"left": remaining, "groups": after})

    def _create_chunks(self, name: str, history: Tree, mode: Mode) -> np.ndarray:
        """Return chunks of encoded actions [N, T, A, D], for `_decode`, from observations [N, H, A, …].

        The noise is drawn with the generators of `mode`; a cloned policy draws none.
        """
        net, count = self.averages[name].net, len(self.context.env.groups[name].agents)
        features = net.encode(self._observe(name, history))
        if self.config.baseline == "cloning":
            chunk = net.clone(features)
        else:
            chunk = self._denoise(net, features, mode.streams.torch(f"act.{name}", self.device))
        chunk = self.ranges[f"{name}.action"].inverse(chunk.clamp(-1, 1))
        return np.asarray(chunk.view(-1, count, *net.shape).transpose(1, 2).cpu().numpy())

    def _denoise(self, net: Net, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return actions [B, T, D] for features [B, H, F], denoised from normal noise."""
        config, shape = self.config, (len(features), *net.shape)
        assert net.denoiser is not None

        def normal() -> Tensor:
            return torch.empty(shape, device=self.device).normal_(generator=generator)

        x, zero = normal(), torch.zeros((), device=self.device)
        path = sampling_steps(config.noise_steps, config.sampling_steps)
        for index, at in enumerate(path):
            after = self.signal[path[index + 1]] if index + 1 < len(path) else torch.ones_like(zero)
            predicted = net.denoiser(x, torch.full(shape[:1], at, device=self.device), features)
            if config.sampler == "ddpm":
                x = ddpm_step(x, predicted, self.signal[at], after, normal())
            else:
                noise = normal() if config.ddim_eta else zero
                x = ddim_step(x, predicted, self.signal[at], after, noise, config.ddim_eta)
        return x

    def _decode(self, name: str, encoded: np.ndarray, step: Step) -> np.ndarray:
        """Return encoded actions [N, A, D] in the environment's form; discrete ones are allowed now."""
        encoded_tensor, actions = torch.from_numpy(encoded).to(self.device), self.actions[name]
        if actions.discrete and name in step.mask:
            encoded_tensor = encoded_tensor.masked_fill(~torch.from_numpy(step.mask[name]).to(self.device), -torch.inf)
        return actions.decode(encoded_tensor)

    def _observe(self, name: str, obs: Tree) -> ObservationTensors:
        """Return observations as tensors, with vectors scaled to the range of the data."""
        observer = self.observers[name]
        tensors = observer(obs)
        if VECTOR in tensors and not observer.raw:
            tensors[VECTOR] = self.ranges[f"{name}.obs"](tensors[VECTOR])
        return tensors

    # learning

    def update(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Make one gradient step of each group's network, and move its moving average."""
        config = self.timed.at(phase)
        self._measure_ranges(store)
        windows = store.windows(config.batch_size, self.context.streams.numpy("replay"), config.history, config.horizon)
        rate = config.learning_rate * min(1.0, (self.updates + 1) / max(1, config.learning_rate_warmup))
        keep = min(1 - (1 + self.updates) ** -config.ema_power, config.ema_max)
        metrics: dict[str, Any] = {}
        for name, net in self.nets.items():
            data = windows.groups[name]
            weight = self._tensor(data["active"]).float().transpose(1, 2).flatten(0, 1)  # [B * A, T]
            action = self.actions[name].encode(self._tensor(data["action"]))
            chunk = self.ranges[f"{name}.action"](action).transpose(1, 2).flatten(0, 1)
            error = self._error(name, net, chunk, self._observe(name, data["obs"]))
            loss = masked_mean(error.square().mean(-1), weight)
            self.optimizers[name].zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = self.optimizers[name].step(rate, config.max_grad_norm)["all"]
            self.averages[name].follow(1 - keep)
            prefix = "train/" if len(self.nets) == 1 else f"train/{name}/"
            metrics |= {f"{prefix}loss": loss.detach(), f"{prefix}grad_norm": norm}
        self.updates += 1
        return Updated(1, {**metrics, "train/learning_rate": rate, "train/average_keeps": keep})

    def update_world_model(self, store: ReplayStore, phase: PhaseInfo) -> Updated:
        """Do the same as `update`: the denoiser is the main model, and the policy."""
        return self.update(store, phase)

    update_policy = update_world_model

    def _error(self, name: str, net: Net, chunk: Tensor, obs: ObservationTensors) -> Tensor:
        """Return the error [B * A, T, D] of the predicted noise, or (cloning) of the predicted actions."""
        parts, denoiser, agents = self.config.accumulate, net.denoiser, len(self.context.env.groups[name].agents)
        if denoiser is None:
            cloned: Tensor = in_parts(lambda part: net.clone(net.encode(part)), obs, parts)
            return cloned - chunk
        generator = self.context.streams.torch(f"noise.{name}", self.device)
        at = torch.randint(self.config.noise_steps, (len(chunk),), generator=generator, device=self.device)
        noise = torch.empty_like(chunk).normal_(generator=generator)
        noisy = add_noise(chunk, noise, self.signal[at, None, None])

        def predict(part: Tree) -> Tensor:
            noisy, at = part["noisy"].flatten(0, 1), part["at"].flatten(0, 1)
            output: Tensor = denoiser(noisy, at, net.encode(part["obs"]))
            return output

        rows = (-1, agents)
        inputs = {"noisy": noisy.view(*rows, *noisy.shape[1:]), "at": at.view(rows), "obs": obs}
        predicted: Tensor = in_parts(predict, inputs, parts)
        return predicted - noise

    def _measure_ranges(self, store: ReplayStore) -> None:
        """Measure the ranges of all data, once; weights from another run bring their ranges along."""
        if all(norm.has_data for name, norm in self.ranges.items() if name.endswith(".action")):
            return
        numbers = {  # images have a range already, and would be most of the data
            name: {path: part for path, part, _ in walk(observer.space) if not (observer.raw or is_image(part))}
            for name, observer in self.observers.items()
        }
        for part in store.transitions(AT_ONCE, numbers):
            for name, rows in part.items():
                acted = self._tensor(rows["active"])
                self.ranges[f"{name}.action"].learn(self.actions[name].encode(self._tensor(rows["action"]))[acted])
                if vectors := [flatten(numbers[name][path], self._tensor(x)) for path, x in rows["obs"].items()]:
                    self.ranges[f"{name}.obs"].learn(torch.cat(vectors, -1)[acted])

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    # what the lab shows

    @torch.inference_mode()
    def explain(self, steps: Step, carry: Tree, mode: Mode) -> Explained:
        """Return mean and deviation of continuous actions, or the frequency of each discrete one, over several chunks.

        New chunks are created as often as in acting, and followed whatever action was performed.
        """
        executed, draws = self.config.executed, 1 if self.config.baseline == "cloning" else DRAWS
        actions: dict[str, list[np.ndarray]] = {name: [] for name in self.nets}
        for step in single_steps(steps):
            remaining, after = 0 if step.is_first[0] else int(carry["left"][0]), {}
            for name, memory in carry["groups"].items():
                history, chunks = memory["seen"], memory["chunk"]  # [1, H, A, …], [draws, executed, A, D]
                history = map_tree(lambda old, new: push(old, new, step.is_first), history, step.obs[name])  # noqa: B023
                if not remaining:
                    repeated = map_tree(lambda x: np.repeat(x, draws, 0), history)
                    chunks = self._create_chunks(name, repeated, mode)[:, :executed]
                actions[name].append(chunks[:, executed - remaining if remaining else 0])
                after[name] = {"seen": history, "chunk": chunks}
            carry = {"left": np.array([(remaining or executed) - 1]), "groups": after}
        return Explained({name: self._opinion(name, np.stack(rows), steps) for name, rows in actions.items()}, carry)

    def _opinion(self, name: str, samples: np.ndarray, steps: Step) -> Opinion:
        """Return the distribution that encoded actions [N, draws, A, D] are samples of."""
        actions = self.actions[name]
        if actions.discrete:
            scores = np.where(steps.mask[name][:, None], samples, -np.inf) if name in steps.mask else samples
            return Opinion(probs=np.eye(actions.size)[scores.argmax(-1)].mean(1))
        mean, std = (torch.from_numpy(x).to(self.device) for x in (samples.mean(1), samples.std(1)))
        return Opinion(mean=to_numpy(actions.middle + actions.reach * mean), std=to_numpy(actions.reach * std))

    # phases and state

    def stores(self) -> dict[str, Store]:
        config, num_envs, stack = self.config, self.context.num_envs, self.context.env.frame_stack
        size, on_disk = config.buffer_size, config.buffer_on_disk
        return {"replay": self.context.store("replay", ReplayStore, size, num_envs, stack=stack, on_disk=on_disk)}

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("clone", (Hook("update", times=CYCLE),), type="offline", buffer="replay"),)

    def load_weights(self, state: dict[str, Any]) -> None:
        self.parts.load_weights(state)

    def state_dict(self) -> dict[str, Any]:
        return {**self.parts.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load_state_dict(state)
        self.updates = state["updates"]


def push(history: np.ndarray, new: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return a history [N, H, …] with the observation `new` [N, …] added; at episode starts it fills the history."""
    after = np.concatenate([history[:, 1:], new[:, None]], axis=1)
    after[first] = new[first, None]
    return after
