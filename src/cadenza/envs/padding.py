"""One observation and one action space for unlike agents, `environment.padding`: so one policy can lead them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.grouping import regrouped, regrouped_vector
from cadenza.envs.layout import Array
from cadenza.errors import ConfigError
from cadenza.types import Environment, Episode, Frame, GroupSpec, Step, Tree, VectorEnv


def by_type(config: EnvironmentConfig) -> EnvironmentConfig:
    """What the bare environment is made with: under padding it keeps its types, and is grouped once they are alike."""
    return config if config.padding == "none" else dataclasses.replace(config, groups="auto", teams={})


def arranged(env: Environment, config: EnvironmentConfig) -> Environment:
    """The environment with its agents padded and grouped as the config wants it; itself where they are."""
    padding = _wanted(env.spec.groups, config)
    return regrouped(Padded(env, padding) if padding else env, config)


def arranged_vector(env: VectorEnv, config: EnvironmentConfig) -> VectorEnv:
    """The same for environments that exist only many at a time."""
    padding = _wanted(env.spec.groups, config)
    return regrouped_vector(PaddedVector(env, padding) if padding else env, config)


def _wanted(groups: Mapping[str, GroupSpec], config: EnvironmentConfig) -> Padding | None:
    return None if config.padding == "none" or len(groups) == 1 else Padding(groups, config.padding == "types")


class Padding:
    """What is seen goes on with zeros, then with the type if that is told; further actions are never allowed."""

    def __init__(self, groups: Mapping[str, GroupSpec], tell_types: bool) -> None:
        any_group = next(iter(groups.values()))
        seen = {name: group.observation for name, group in groups.items()}
        done = {name: group.action for name, group in groups.items()}
        self._tails = _tails(seen, tell_types) if tell_types or not _equal(seen) else {}
        self._choices = {} if _equal(done) else _choices(done)
        self._most = max(self._choices.values(), default=0)
        observation = _joined(seen, self._tails) if self._tails else any_group.observation
        action = Discrete(self._most) if self._choices else any_group.action
        self.groups = {
            name: dataclasses.replace(group, observation=observation, action=action) for name, group in groups.items()
        }

    def observations(self, given: Mapping[str, Tree]) -> dict[str, Tree]:
        """Arrays [..., A, D] of each group, all of one D."""
        return {name: self._followed(name, seen) for name, seen in given.items()}

    def _followed(self, name: str, seen: Tree) -> Tree:
        if name not in self._tails:
            return seen
        tail = self._tails[name]
        return np.concatenate([seen, np.broadcast_to(tail, (*seen.shape[:-1], len(tail)))], axis=-1)

    def masks(self, given: Mapping[str, Array], rewards: Mapping[str, Array]) -> dict[str, Array]:
        """A group without masks may do all that it can; the rewards say of how many agents."""
        if not self._choices:
            return dict(given)
        masks = {name: np.zeros((*rewards[name].shape, self._most), bool) for name in self._choices}
        for name, choices in self._choices.items():
            masks[name][..., :choices] = given.get(name, True)
        return masks


def _equal(spaces: Mapping[str, Space[Any]]) -> bool:
    first, *others = spaces.values()
    return all(space == first for space in others)


def _tails(spaces: Mapping[str, Space[Any]], tell_types: bool) -> dict[str, Array]:
    """What follows the observations of each group."""
    boxes = {name: space for name, space in spaces.items() if isinstance(space, Box) and len(space.shape) == 1}
    if len(boxes) < len(spaces) or len({box.dtype for box in boxes.values()}) > 1:
        told = f"observations are padded where all are vectors of one kind of numbers, and {_listed(spaces, 'sees')}"
        raise ConfigError(f"environment.padding: {told}")
    widest = max(len(box.low) for box in boxes.values())
    scaled = all(box.dtype == np.uint8 and (box.high == 255).all() for box in boxes.values())
    most = 255 if scaled else 1  # such bytes are divided by 255 before networks see them
    types = most * np.eye(len(boxes) if tell_types else 0)
    return {
        name: np.concatenate([np.zeros(widest - len(box.low)), *types[row : row + 1]]).astype(box.dtype)
        for row, (name, box) in enumerate(boxes.items())
    }


def _choices(spaces: Mapping[str, Space[Any]]) -> dict[str, int]:
    """How many actions each group has."""
    found = {name: int(space.n) for name, space in spaces.items() if isinstance(space, Discrete) and not space.start}
    if len(found) < len(spaces):
        told = f"actions are padded where all are discrete, from 0 on, and {_listed(spaces, 'acts in')}"
        raise ConfigError(f"environment.padding: {told}")
    return found


def _joined(spaces: Mapping[str, Space[Any]], tails: Mapping[str, Array]) -> Box:
    """With bounds that hold for all of them."""
    boxes = {name: space for name, space in spaces.items() if isinstance(space, Box)}
    low = np.min([np.concatenate([box.low, tails[name]]) for name, box in boxes.items()], axis=0)
    high = np.max([np.concatenate([box.high, tails[name]]) for name, box in boxes.items()], axis=0)
    return Box(low, high, dtype=next(iter(boxes.values())).dtype.type)


def _listed(spaces: Mapping[str, Space[Any]], verb: str) -> str:
    from cadenza.envs.catalog import describe

    return ", ".join(f"{name} {verb} {describe(space)}" for name, space in spaces.items())


class Padded:
    """An environment whose groups have one space."""

    def __init__(self, env: Environment, padding: Padding) -> None:
        self.env, self._padding = env, padding
        self.spec = dataclasses.replace(env.spec, groups=padding.groups)

    def reset(self, seed: int) -> Frame:
        return self._frame(self.env.reset(seed))

    def step(self, action: dict[str, Array]) -> Frame:
        return self._frame(self.env.step(action))

    def render(self) -> Array | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _frame(self, frame: Frame) -> Frame:
        masks = self._padding.masks(frame.mask or {}, frame.reward)
        return dataclasses.replace(frame, obs=self._padding.observations(frame.obs), mask=masks or None)


class PaddedVector:
    """Many environments at once whose groups have one space. What is saved is theirs."""

    def __init__(self, env: VectorEnv, padding: Padding) -> None:
        self.env, self.num_envs, self._padding = env, env.num_envs, padding
        self.spec = dataclasses.replace(env.spec, groups=padding.groups)
        self.current = self._step(env.current)

    def reset(self, first_episode: int = 0) -> Step:
        self.current = self._step(self.env.reset(first_episode))
        return self.current

    def step(self, action: dict[str, Array]) -> Step:
        self.current = self._step(self.env.step(action))
        return self.current

    def episodes(self) -> list[Episode]:
        return self.env.episodes()

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state)
        self.current = self._step(self.env.current)

    def _step(self, step: Step) -> Step:
        obs = self._padding.observations(step.obs)
        return dataclasses.replace(
            step,
            obs=obs,
            final_obs=obs if step.final_obs is step.obs else self._padding.observations(step.final_obs),
            mask=self._padding.masks(step.mask, step.reward),
        )
