"""One observation space and one action space for unlike agents, `environment.padding`: one policy can lead them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from cadenza.envs.layout import Array, describe
from cadenza.errors import ConfigError
from cadenza.types import GroupSpec, Tree


class Padding:
    """The translation to equal spaces: observations get zeros, then perhaps the type; added actions are masked out."""

    def __init__(self, groups: Mapping[str, GroupSpec], add_types: bool) -> None:
        any_group = next(iter(groups.values()))
        observations = {name: group.observation for name, group in groups.items()}
        actions = {name: group.action for name, group in groups.items()}
        self._tails = _tails(observations, add_types) if add_types or not _equal(observations) else {}
        self._choices = {} if _equal(actions) else _choices(actions)
        self._most = max(self._choices.values(), default=0)
        observation = _joined(observations, self._tails) if self._tails else any_group.observation
        action = Discrete(self._most) if self._choices else any_group.action
        self.groups: Mapping[str, GroupSpec] = {
            name: dataclasses.replace(group, observation=observation, action=action) for name, group in groups.items()
        }

    def observations(self, obs: Mapping[str, Tree], axis: int) -> dict[str, Tree]:
        """Pad the arrays [..., A, D] of every group to the same D."""
        return {name: self._padded(name, array) for name, array in obs.items()}

    def _padded(self, name: str, array: Tree) -> Tree:
        if name not in self._tails:
            return array
        tail = self._tails[name]
        return np.concatenate([array, np.broadcast_to(tail, (*array.shape[:-1], len(tail)))], axis=-1)

    def per_agent(self, arrays: Mapping[str, Array], axis: int) -> dict[str, Array]:
        return dict(arrays)

    def actions(self, actions: dict[str, Array], axis: int) -> dict[str, Array]:
        return actions

    def masks(self, masks: Mapping[str, Array], reward: Mapping[str, Array], axis: int) -> dict[str, Array]:
        """Mask out the actions that a group does not have; a group without masks may do all that it has."""
        if not self._choices:
            return dict(masks)
        padded = {name: np.zeros((*reward[name].shape, self._most), bool) for name in self._choices}
        for name, count in self._choices.items():
            padded[name][..., :count] = masks.get(name, True)
        return padded


def _equal(spaces: Mapping[str, Space[Any]]) -> bool:
    first, *others = spaces.values()
    return all(space == first for space in others)


def _tails(spaces: Mapping[str, Space[Any]], add_types: bool) -> dict[str, Array]:
    """Return what is appended to the observations of each group; refuse all but vectors of one dtype."""
    boxes = {name: space for name, space in spaces.items() if isinstance(space, Box) and len(space.shape) == 1}
    if len(boxes) < len(spaces) or len({box.dtype for box in boxes.values()}) > 1:
        raise ConfigError(
            "environment.padding: observations are padded where all are vectors of one kind of numbers, and "
            + _listed(spaces, "sees")
        )
    widest = max(len(box.low) for box in boxes.values())
    scaled = all(box.dtype == np.uint8 and (box.high == 255).all() for box in boxes.values())
    most = 255 if scaled else 1  # such bytes are divided by 255 before networks see them
    types = most * np.eye(len(boxes) if add_types else 0)
    return {
        name: np.concatenate([np.zeros(widest - len(box.low)), *types[row : row + 1]]).astype(box.dtype)
        for row, (name, box) in enumerate(boxes.items())
    }


def _choices(spaces: Mapping[str, Space[Any]]) -> dict[str, int]:
    """Return each group's number of actions; refuse all but discrete actions from 0 on."""
    counts = {name: int(space.n) for name, space in spaces.items() if isinstance(space, Discrete) and not space.start}
    if len(counts) < len(spaces):
        raise ConfigError(
            "environment.padding: actions are padded where all are discrete, from 0 on, and "
            + _listed(spaces, "acts in")
        )
    return counts


def _joined(spaces: Mapping[str, Space[Any]], tails: Mapping[str, Array]) -> Box:
    """Return the padded space, with bounds that hold for all groups."""
    boxes = {name: space for name, space in spaces.items() if isinstance(space, Box)}
    low = np.min([np.concatenate([box.low, tails[name]]) for name, box in boxes.items()], axis=0)
    high = np.max([np.concatenate([box.high, tails[name]]) for name, box in boxes.items()], axis=0)
    return Box(low, high, dtype=next(iter(boxes.values())).dtype.type)


def _listed(spaces: Mapping[str, Space[Any]], verb: str) -> str:
    return ", ".join(f"{name} {verb} {describe(space)}" for name, space in spaces.items())
