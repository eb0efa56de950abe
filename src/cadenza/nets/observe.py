"""Conversion of observations of any space, and of the view of centralised critics, to inputs of networks.

These are one vector per agent, and its images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from cadenza.errors import ConfigError
from cadenza.nets.normalisers import BoundsNorm, RunningNorm
from cadenza.trees import map_tree
from cadenza.types import EnvSpec, Tree

VECTOR = "vector"
IMAGE = "image."  # prefix of the path
ObservationTensors = dict[str, Tensor]  # VECTOR: [*, F]; IMAGE + path: [*, C, H, W], bytes
SMALLEST_IMAGE = 8  # pixels; anything smaller is a vector
FLOATS = (np.float32, np.float64)
NormalizeObs = bool | Literal["rolling", "static"]  # true is rolling


class Observer:
    """Converts a group's observations to tensors for networks, normalised by `normalize`. Its state is the statistics.

    With `raw`, tensors keep the keys of the observation, for a user's encoder, and are not normalised.
    """

    def __init__(
        self, space: spaces.Space[Any], device: torch.device, normalize: NormalizeObs = False, raw: bool = False
    ) -> None:
        self.space, self.device, self.raw = space, device, raw
        self._axes = len(space.shape or ())
        self._is_vector = isinstance(space, spaces.Box) and space.dtype in FLOATS
        self.norm: RunningNorm | BoundsNorm | None = None
        if normalize == "static":
            self.norm = BoundsNorm(*bounds(space), device)
        elif normalize:
            self.norm = RunningNorm(vector_size(space), device)

    def __call__(self, obs: Tree) -> ObservationTensors:
        """Convert arrays [*, …]."""
        return self.from_tensors(self._tensors(obs))

    def from_tensors(self, tensors: Tree) -> ObservationTensors:
        """Convert tensors [*, …]."""
        if self.raw:
            return tensors if isinstance(tensors, dict) else {VECTOR: tensors}
        observed = observe(self.space, tensors)
        if self.norm is not None and VECTOR in observed:
            observed[VECTOR] = self.norm(observed[VECTOR])
        return observed

    def vector(self, obs: Tree) -> np.ndarray:
        """Return the vector [*, F] as an array; for a Box of floats without torch, whose calls cost more."""
        if not self._is_vector:
            return self(obs)[VECTOR].numpy()
        numbers: np.ndarray = obs.reshape(*obs.shape[: obs.ndim - self._axes], -1)
        numbers = numbers.astype(np.float32, copy=False)
        return numbers if self.norm is None else self.norm.apply_array(numbers)

    def learn(self, obs: Tree, acted: Tensor) -> None:
        """Add observations [*, …] to the rolling statistics, where `acted` [*]."""
        if isinstance(self.norm, RunningNorm):
            vector = observe(self.space, self._tensors(obs)).get(VECTOR)
            if vector is not None:
                self.norm.update(vector[acted])

    def _tensors(self, obs: Tree) -> Tree:
        return map_tree(lambda x: torch.from_numpy(x).to(self.device), obs)

    def state_dict(self) -> dict[str, Any]:
        return self.norm.state_dict() if isinstance(self.norm, RunningNorm) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rolling = isinstance(self.norm, RunningNorm)
        if rolling != bool(state):
            trained = "were" if state else "were not"
            raise ConfigError(f"algorithm.normalize_obs: these weights {trained} trained with rolling statistics")
        if isinstance(self.norm, RunningNorm):
            self.norm.load_state_dict(state)


def observe(space: spaces.Space[Any], obs: Tree) -> ObservationTensors:
    """Return images under their paths and everything else as one vector: numbers as floats, categories one-hot."""
    observed, vectors = {}, []
    for path, part, value in walk(space, obs):
        if is_image(part):
            observed[IMAGE + path] = value
        else:
            vectors.append(flatten(part, value))
    if vectors:
        observed[VECTOR] = torch.cat(vectors, -1) if len(vectors) > 1 else vectors[0]
    return observed


def vector_size(space: spaces.Space[Any]) -> int:
    """Return the length of the vector that `observe` returns."""
    return sum(int(spaces.flatdim(part)) for _, part, _ in walk(space) if not is_image(part))


def images(space: spaces.Space[Any]) -> dict[str, tuple[int, int, int]]:
    """Return key and shape [C, H, W] of each image that `observe` returns."""
    return {IMAGE + path: part.shape for path, part, _ in walk(space) if is_image(part)}  # type: ignore[misc]


def bounds(space: spaces.Space[Any]) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds [F] of the vector that `observe` returns; infinite where the space is."""
    lows, highs = [torch.zeros(0)], [torch.zeros(0)]
    for _, part, _ in walk(space):
        if isinstance(part, spaces.Box) and not is_image(part):
            lows.append(torch.from_numpy(part.low.astype(np.float32).ravel()) / scale(part))
            highs.append(torch.from_numpy(part.high.astype(np.float32).ravel()) / scale(part))
        elif not is_image(part):
            size = int(spaces.flatdim(part))
            lows.append(torch.zeros(size))
            highs.append(torch.ones(size))
    return torch.cat(lows), torch.cat(highs)


def is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a space is of bytes [C, H, W], large enough for convolutions."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return False
    return min(space.shape[1:]) >= SMALLEST_IMAGE


def walk(space: spaces.Space[Any], obs: Tree = None, path: str = "") -> Iterator[tuple[str, spaces.Space[Any], Any]]:
    """Yield path, space and observation (None without `obs`) of each leaf of a space; a bare space has the path ''."""
    if isinstance(space, spaces.Dict):  # adapters turn tuples into dicts
        for key, part in space.spaces.items():
            yield from walk(part, None if obs is None else obs[key], f"{path}.{key}" if path else key)
    else:
        yield path, space, obs


def flatten(space: spaces.Space[Any], obs: Tensor) -> Tensor:
    """Return observations [*, …] of a space that is no Dict as vectors [*, F]."""
    if isinstance(space, spaces.Discrete):
        return one_hot(obs - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        columns = enumerate(zip(space.nvec.ravel(), space.start.ravel(), strict=True))
        flat = obs.flatten(-len(space.nvec.shape))
        return torch.cat([one_hot(flat[..., i] - int(start), int(n)) for i, (n, start) in columns], -1)
    shape = space.shape or ()
    numbers: Tensor = obs.float() / scale(space)
    return numbers.flatten(-len(shape)) if shape else numbers.unsqueeze(-1)


def scale(space: spaces.Space[Any]) -> float:
    """Return the divisor of numbers: 255 for bytes with the full range; bytes with a smaller maximum are codes."""
    return 255.0 if isinstance(space, spaces.Box) and space.dtype == np.uint8 and (space.high == 255).all() else 1.0


def one_hot(index: Tensor, classes: int) -> Tensor:
    """Return one-hot vectors [*, classes] of indices [*]."""
    return torch.nn.functional.one_hot(index.long(), classes).float()


class CriticView:
    """The observations of a group's critics; its state is that of the observation normaliser.

    With `include_agent`, the agent's observation is part of them. Without it and without memory, the critics of all
    agents observe the same, and A is 1 in the output: one value serves them all.
    """

    def __init__(
        self,
        env: EnvSpec,
        group: str,
        include_agent: bool,
        has_memory: bool,
        device: torch.device,
        normalize: NormalizeObs = False,
        raw: bool = False,
    ) -> None:
        self.env, self.group, self.include_agent = env, group, include_agent
        self.agents = len(env.groups[group].agents) if include_agent or has_memory else 1
        self.space: spaces.Space[Any] = env.state or joint_space(env)
        if include_agent:
            self.space = spaces.Dict({"own": env.groups[group].observation, "whole": self.space})
        self.observer = Observer(self.space, device, normalize, raw)

    def __call__(self, obs: dict[str, Tree], state: np.ndarray | None) -> ObservationTensors:
        """Return the critics' input [*, A, …] for the groups' observations [*, A, …] and the central state [*, …]."""
        return self.observer(self._tree(obs, state))

    def learn(self, obs: dict[str, Tree], state: np.ndarray | None, counts: Tensor) -> None:
        """Add observations to the rolling statistics, of the agents that `counts` [*, A] marks."""
        counts = counts if self.agents > 1 else counts.any(-1, keepdim=True)
        self.observer.learn(self._tree(obs, state), counts)

    def _tree(self, obs: dict[str, Tree], state: np.ndarray | None) -> Tree:
        if self.env.state is not None:
            assert state is not None
            axis = state.ndim - len(self.env.state.shape or ())
            whole: Tree = state
        else:
            axis = self._batch_dims(obs)
            whole = {
                name: {
                    agent: map_tree(lambda x, i=index: x.take(i, axis), obs[name])
                    for index, agent in enumerate(group.agents)
                }
                for name, group in self.env.groups.items()
            }
        repeated = map_tree(lambda x: np.repeat(np.expand_dims(x, axis), self.agents, axis), whole)
        return {"own": obs[self.group], "whole": repeated} if self.include_agent else repeated

    def _batch_dims(self, obs: dict[str, Tree]) -> int:
        """Return the number of axes before that of the agents."""
        space, part = self.env.groups[self.group].observation, obs[self.group]
        while isinstance(space, spaces.Dict):
            key = next(iter(space.spaces))
            space, part = space.spaces[key], part[key]
        return int(part.ndim) - len(space.shape or ()) - 1

    def state_dict(self) -> dict[str, Any]:
        return self.observer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.observer.load_state_dict(state)


def joint_space(env: EnvSpec) -> spaces.Dict:
    """Return the space of all agents' observations, by group and agent."""
    return spaces.Dict(
        {name: spaces.Dict(dict.fromkeys(group.agents, group.observation)) for name, group in env.groups.items()}
    )
