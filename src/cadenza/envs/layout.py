"""The arrays a vector environment writes its steps into, allocated once from an environment's spaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import spaces

from cadenza.errors import ConfigError
from cadenza.trees import leaves, map_tree
from cadenza.types import EnvSpec, Frame, Step, Tree

Array = np.ndarray[Any, Any]
Allocate = Callable[[tuple[int, ...], Any], Array]


@dataclass(frozen=True)
class Layout:
    """What allocation needs: the spec, the mask width of each group that has masks, and the optional fields."""

    spec: EnvSpec
    masks: Mapping[str, int]
    raw_reward: bool = False  # whether frames carry the environment's own reward beside the wrapped one
    won: bool = False  # whether frames say who won

    @classmethod
    def from_frame(cls, spec: EnvSpec, first: Frame) -> Layout:
        """Take the masks' widths from the first frame, since masks are in no space; refuse empty observations."""
        empty = [name for name, group in spec.groups.items() if not spaces.flatdim(group.observation)]
        if empty:
            raise ConfigError(f"{spec.id}: observations of group {empty[0]} are empty; they need at least one number")
        masks = {group: mask.shape[-1] for group, mask in (first.mask or {}).items()}
        for group, width in masks.items():
            action = spec.groups[group].action
            choices = action.nvec.sum() if isinstance(action, spaces.MultiDiscrete) else getattr(action, "n", None)
            if isinstance(action, spaces.MultiBinary) or width != choices:
                raise ConfigError(f"{spec.id}: an action mask of {width} entries does not fit {action} (group {group})")
        return cls(spec, masks, first.raw_reward is not None, first.won is not None)


@dataclass(slots=True)
class Buffer:
    """A step's arrays, and separate arrays for the last observations of episodes that end in it."""

    step: Step
    final_obs: dict[str, Tree]
    final_state: Array | None

    def rows(self, low: int, high: int) -> Buffer:
        """Return views of the environments [low, high)."""

        def cut(tree: Tree) -> Tree:
            return map_tree(lambda array: None if array is None else array[low:high], tree)

        parts = {field.name: cut(getattr(self.step, field.name)) for field in fields(Step)}
        return Buffer(Step(**parts), cut(self.final_obs), cut(self.final_state))

    def settle(self, ended: list[int]) -> None:
        """Fill in the final observations: those stored of the environments `ended`, by number, `obs` of all others."""
        step = self.step
        if not ended:
            step.final_obs, step.final_state = step.obs, step.state
            return
        for (_, final), (_, obs) in zip(leaves(self.final_obs), leaves(step.obs), strict=True):
            _fill_up(final, obs, ended)
        if self.final_state is not None and step.state is not None:
            _fill_up(self.final_state, step.state, ended)
        step.final_obs, step.final_state = self.final_obs, self.final_state

    def clear(self) -> None:
        """Set rewards, deaths and episode ends to zero."""
        step = self.step
        for group in (step.reward, step.raw_reward, step.died):
            for array in group.values():
                array.fill(0)
        step.terminated.fill(False)
        step.truncated.fill(False)
        if step.won is not None:
            step.won.fill(False)
        self.settle([])

    def floats(self) -> list[tuple[str, Array]]:
        """Return `(name, array)` of every array of the step that could hold NaN or infinity."""
        step = self.step
        arrays = [(f"observation {path}", leaf) for path, leaf in leaves(step.obs)]
        arrays += [(f"reward of {group}", array) for group, array in step.reward.items()]
        arrays += [(f"reward of {group} before wrappers", array) for group, array in step.raw_reward.items()]
        arrays += [("state", step.state)] if step.state is not None else []
        return [(name, array) for name, array in arrays if array.dtype.kind == "f"]

    def final_floats(self) -> list[tuple[str, Array]]:
        """Return `(name, array)` of every array of final observations that could hold NaN or infinity."""
        arrays = [(f"observation {path}", leaf) for path, leaf in leaves(self.final_obs)]
        arrays += [("state", self.final_state)] if self.final_state is not None else []
        return [(name, array) for name, array in arrays if array.dtype.kind == "f"]


def _fill_up(final: Array, obs: Array, ended: list[int]) -> None:
    """Copy all rows but the ended ones; saving and restoring these is quicker than selecting all others."""
    ended_rows = final[ended]
    final[...] = obs
    final[ended] = ended_rows


def allocate_buffer(layout: Layout, num_envs: int, allocate: Allocate = np.zeros, fresh: bool = True) -> Buffer:
    """Allocate the arrays for one step of `num_envs` environments, always in the same order.

    The order lets two processes lay out the same memory. Pass `fresh=False` if another process has initialised it.
    """
    spec = layout.spec

    def observations() -> dict[str, Tree]:
        return {
            name: allocate_space(group.observation, (num_envs, len(group.agents)), allocate)
            for name, group in spec.groups.items()
        }

    def per_agent(dtype: Any) -> dict[str, Array]:
        return {name: allocate((num_envs, len(group.agents)), dtype) for name, group in spec.groups.items()}

    def state() -> Array | None:
        if spec.state is None:
            return None
        array: Array = allocate_space(spec.state, (num_envs,), allocate)
        return array

    obs, final_obs = observations(), observations()
    first_state, final_state = state(), state()
    masks = {
        name: allocate((num_envs, len(spec.groups[name].agents), width), bool) for name, width in layout.masks.items()
    }
    step = Step(
        obs=obs,
        final_obs=obs,
        reward=per_agent(np.float32),
        terminated=allocate((num_envs,), bool),
        truncated=allocate((num_envs,), bool),
        is_first=allocate((num_envs,), bool),
        active=per_agent(bool),
        died=per_agent(bool),
        mask=masks,
        state=first_state,
        final_state=first_state,
        raw_reward=per_agent(np.float32) if layout.raw_reward else {},
        won=allocate((num_envs,), bool) if layout.won else None,
    )
    for array in (*step.active.values(), step.is_first) if fresh else ():
        array.fill(True)
    return Buffer(step, final_obs, final_state)


def allocate_actions(spec: EnvSpec, lead: tuple[int, ...], allocate: Allocate = np.zeros) -> dict[str, Array]:
    """Allocate arrays for actions: `group -> [*lead, A, …]`."""
    return {
        name: allocate((*lead, len(group.agents), *shape_of(group.action)[0]), shape_of(group.action)[1])
        for name, group in spec.groups.items()
    }


def allocate_space(space: spaces.Space[Any], lead: tuple[int, ...], allocate: Allocate = np.zeros) -> Tree:
    """Allocate a tree of arrays `[*lead, …]` for a batch of the space's elements."""
    if isinstance(space, spaces.Dict):
        return {key: allocate_space(part, lead, allocate) for key, part in space.spaces.items()}
    shape, dtype = shape_of(space)
    return allocate((*lead, *shape), dtype)


def blank(space: spaces.Space[Any], lead: tuple[int, ...] = ()) -> Tree:
    """Return placeholder elements `[*lead, …]` of the space: zeros, or the lowest value where codes start above 0."""
    if isinstance(space, spaces.Dict):
        return {key: blank(part, lead) for key, part in space.spaces.items()}
    shape, dtype = shape_of(space)
    return np.full((*lead, *shape), getattr(space, "start", 0), dtype)


def codes(spec: EnvSpec, obs: dict[str, Tree]) -> list[tuple[str, Array, Any, Any]]:
    """Return `(name, array, lowest, highest)` of every observation that is a category code, not a measurement."""

    def within(space: spaces.Space[Any], tree: Tree, path: str) -> list[tuple[str, Array, Any, Any]]:
        if isinstance(space, spaces.Dict):
            return [code for key, part in space.spaces.items() for code in within(part, tree[key], f"{path}.{key}")]
        if isinstance(space, spaces.Discrete):
            return [(path, tree, space.start, space.start + space.n - 1)]
        if isinstance(space, spaces.MultiDiscrete):
            return [(path, tree, space.start, space.start + space.nvec - 1)]
        return [(path, tree, 0, 1)] if isinstance(space, spaces.MultiBinary) else []

    return [code for name, group in spec.groups.items() for code in within(group.observation, obs[name], name)]


def shape_of(space: spaces.Space[Any]) -> tuple[tuple[int, ...], Any]:
    """Return shape and dtype of one element of an array space; refuse spaces that are not supported."""
    if isinstance(space, spaces.Discrete):
        return (), np.dtype(np.int64)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return space.shape, space.dtype
    supported = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple"
    raise ConfigError(f"{type(space).__name__} spaces are not supported ({supported} are)")


def describe(space: spaces.Space[Any]) -> str:
    """Return a short description of a space, such as `Box(4) float32`."""
    if isinstance(space, spaces.Dict):
        return "{" + ", ".join(f"{key}: {describe(part)}" for key, part in space.spaces.items()) + "}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, spaces.Box):
        return f"Box({'x'.join(map(str, space.shape))}) {space.dtype}"
    return str(space)
