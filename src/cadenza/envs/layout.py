"""The arrays a vector environment writes its steps into, allocated once from an environment's spaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    """What must be known to allocate: the facts, and which groups come with action masks of which width."""

    spec: EnvSpec
    masks: Mapping[str, int]
    raw_reward: bool = False  # whether the environment tells its own reward beside the wrapped one
    won: bool = False  # whether it tells who won

    @classmethod
    def of(cls, spec: EnvSpec, first: Frame) -> Layout:
        """Masks are in no space, so the first frame tells."""
        empty = [name for name, group in spec.groups.items() if not spaces.flatdim(group.observation)]
        if empty:
            raise ConfigError(f"{spec.id}: observations have nothing in them (group {empty[0]}); one number would do")
        masks = {group: mask.shape[-1] for group, mask in (first.mask or {}).items()}
        for group, width in masks.items():
            action = spec.groups[group].action
            choices = action.nvec.sum() if isinstance(action, spaces.MultiDiscrete) else getattr(action, "n", None)
            if isinstance(action, spaces.MultiBinary) or width != choices:
                raise ConfigError(f"{spec.id}: an action mask of {width} entries does not fit {action} (group {group})")
        return cls(spec, masks, first.raw_reward is not None, first.won is not None)


@dataclass(slots=True)
class Buffer:
    """A step's arrays, and beside them a place for the observations of episodes that end in it."""

    step: Step
    final_obs: dict[str, Tree]
    final_state: Array | None

    def rows(self, low: int, high: int) -> Buffer:
        """Views of the environments [low, high)."""

        def cut(tree: Tree) -> Tree:
            return map_tree(lambda array: array[low:high], tree)

        def cut_if_any(array: Array | None) -> Array | None:
            return None if array is None else array[low:high]

        step = self.step
        part = Step(
            obs=cut(step.obs),
            final_obs=cut(step.obs),
            reward=cut(step.reward),
            terminated=step.terminated[low:high],
            truncated=step.truncated[low:high],
            is_first=step.is_first[low:high],
            active=cut(step.active),
            died=cut(step.died),
            mask=cut(step.mask),
            state=cut_if_any(step.state),
            final_state=cut_if_any(step.state),
            raw_reward=cut(step.raw_reward),
            won=cut_if_any(step.won),
        )
        return Buffer(part, cut(self.final_obs), cut_if_any(self.final_state))

    def settle(self, ended: list[int]) -> None:
        """Complete the final observations: what was kept where an episode ended, obs itself everywhere else."""
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
        """Nothing has happened yet: no reward, no end, nobody dead."""
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
        """`(name, array)` of everything that can go wrong by not being finite, at the step itself."""
        step = self.step
        found = [(f"observation {path}", leaf) for path, leaf in leaves(step.obs)]
        found += [(f"reward of {group}", array) for group, array in step.reward.items()]
        found += [(f"reward of {group} before wrappers", array) for group, array in step.raw_reward.items()]
        found += [("state", step.state)] if step.state is not None else []
        return [(name, array) for name, array in found if array.dtype.kind == "f"]

    def final_floats(self) -> list[tuple[str, Array]]:
        """The same for the observations before a reset."""
        found = [(f"observation {path}", leaf) for path, leaf in leaves(self.final_obs)]
        found += [("state", self.final_state)] if self.final_state is not None else []
        return [(name, array) for name, array in found if array.dtype.kind == "f"]


def _fill_up(final: Array, obs: Array, ended: list[int]) -> None:
    """All rows but those that ended; taking these aside is quicker than choosing all others."""
    kept = final[ended]
    final[...] = obs
    final[ended] = kept


def allocate_buffer(layout: Layout, num_envs: int, allocate: Allocate = np.zeros, fresh: bool = True) -> Buffer:
    """Arrays for one step of `num_envs` environments; always in the same order, so two processes can agree on it.

    Not `fresh`: another process has filled them, and others may have written theirs.
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
    """`group -> [*lead, A, …]`."""
    return {
        name: allocate((*lead, len(group.agents), *shape_of(group.action)[0]), shape_of(group.action)[1])
        for name, group in spec.groups.items()
    }


def allocate_space(space: spaces.Space[Any], lead: tuple[int, ...], allocate: Allocate = np.zeros) -> Tree:
    """A tree of arrays `[*lead, …]` for a batch of the space's elements."""
    if isinstance(space, spaces.Dict):
        return {key: allocate_space(part, lead, allocate) for key, part in space.spaces.items()}
    shape, dtype = shape_of(space)
    return allocate((*lead, *shape), dtype)


def blank(space: spaces.Space[Any], lead: tuple[int, ...] = ()) -> Tree:
    """Elements of the space `[*lead, …]` that say nothing: zeros, or the first of what is not counted from 0."""
    if isinstance(space, spaces.Dict):
        return {key: blank(part, lead) for key, part in space.spaces.items()}
    shape, dtype = shape_of(space)
    return np.full((*lead, *shape), getattr(space, "start", 0), dtype)


def codes(spec: EnvSpec, obs: dict[str, Tree]) -> list[tuple[str, Array, Any, Any]]:
    """`(name, array, lowest, highest)` of every observation that is a choice among some, not a measure."""

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
    """Shape and dtype of one element of a space that is an array."""
    if isinstance(space, spaces.Discrete):
        return (), np.dtype(np.int64)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return space.shape, space.dtype
    known = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple"
    raise ConfigError(f"{type(space).__name__} spaces are not supported ({known} are)")
