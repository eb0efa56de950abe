"""Tiny environments with known answers, for tests and first steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments
from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Array
from cadenza.envs.toys.detour import Fork
from cadenza.envs.toys.recall import Glimpse, Recall
from cadenza.envs.toys.team_of_three import Trio
from cadenza.envs.toys.team_of_two import Pair

Returned = tuple[Any, float, bool, bool, dict[str, Any]]


class Question(gymnasium.Env[Any, Any]):
    """The base of toys in which every observation asks for one right action, and no episode ends by itself."""

    _answer: Any

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._next(), {}

    def step(self, action: Any) -> Returned:
        reward = self._score(action)
        return self._next(), reward, False, False, {}

    def _score(self, action: Any) -> float:
        """Return the share of the action that is right."""
        return float(np.mean(action == self._answer))

    def _next(self) -> Any:
        """Draw the next answer and return the observation that asks for it."""
        raise NotImplementedError


class Identity(Question):
    """Repeat the number you see: 1 for the same number, 0 otherwise."""

    def __init__(self, n: int = 2) -> None:
        self.observation_space = spaces.Discrete(n)
        self.action_space = spaces.Discrete(n)
        self._n = n

    def _next(self) -> Any:
        self._answer = int(self.np_random.integers(self._n))
        return self._answer


class DictIdentity(Identity):
    """Identity with a dict observation in which one key is useful and the other is noise."""

    def __init__(self, n: int = 2) -> None:
        super().__init__(n)
        self.observation_space = spaces.Dict(
            {"noise": spaces.Box(-1, 1, (3,), np.float32), "useful": spaces.Box(0, 1, (n,), np.float32)}
        )

    def _next(self) -> Any:
        useful = np.zeros(self._n, np.float32)
        useful[super()._next()] = 1
        return {"noise": self.np_random.uniform(-1, 1, 3).astype(np.float32), "useful": useful}


class ImageIdentity(Identity):
    """Identity with an image [1, 8, 8] in which one column is bright; each action has two columns."""

    def __init__(self) -> None:
        super().__init__(4)
        self.observation_space = spaces.Box(0, 255, (1, 8, 8), np.uint8)

    def _next(self) -> Any:
        image = np.zeros((1, 8, 8), np.uint8)
        image[..., 2 * super()._next() + int(self.np_random.integers(2))] = 255
        return image


class Dot(gymnasium.Env[Any, Any]):
    """A bright square in a dark image [3, 64, 64] that has to be pushed to the middle and kept there.

    The reward falls from 1 in the middle to 0 at a distance of a third of the image's width. A world model of images
    learns it in minutes. Actions are continuous pushes [2], or 5 discrete ones: none, left, right, up, down.
    """

    SIDE, SQUARE, REACH = 64, 12, 0.15
    PUSHES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float64)  # across, down

    def __init__(self, discrete: bool = False) -> None:
        self.observation_space = spaces.Box(0, 255, (3, self.SIDE, self.SIDE), np.uint8)
        self.action_space = spaces.Discrete(len(self.PUSHES)) if discrete else spaces.Box(-1, 1, (2,), np.float32)
        self._discrete = discrete

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-0.5, 0.5, 2)  # from the middle, in widths
        return self._picture(), {}

    def step(self, action: Any) -> Returned:
        push = self.PUSHES[int(action)] if self._discrete else np.asarray(action, np.float64)
        self._place = np.clip(self._place + self.REACH * push, -0.5, 0.5)
        return self._picture(), max(0.0, 1 - 3 * float(np.hypot(*self._place))), False, False, {}

    def _picture(self) -> Any:
        picture = np.zeros((3, self.SIDE, self.SIDE), np.uint8)
        picture[2] = 64
        x, y = np.rint((self._place + 0.5) * (self.SIDE - self.SQUARE)).astype(int)
        picture[:, y : y + self.SQUARE, x : x + self.SQUARE] = 230
        return picture


class Masked(Identity):
    """A constant observation; the action mask allows the rewarded action and the `allowed - 1` actions after it."""

    def __init__(self, n: int = 4, allowed: int = 1) -> None:
        super().__init__(n)
        self._allowed = allowed
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": self._mask()}

    def step(self, action: int) -> Returned:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"action_mask": self._mask()}

    def _next(self) -> Any:
        super()._next()
        return np.zeros(1, np.float32)

    def _mask(self) -> Array:
        mask = np.zeros(self._n, bool)
        mask[(self._answer + np.arange(self._allowed)) % self._n] = True
        return mask


class Copy(Question):
    """Repeat the several numbers you see; the reward is the share of them that is right."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = self.action_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)  # the space is seeded before the first question
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self._next(), {}

    def _next(self) -> Any:
        self._answer = self.observation_space.sample()
        return self._answer


class IdentityBox(Question):
    """Repeat the point you see; the reward is minus the squared distance."""

    def __init__(self, size: int = 1) -> None:
        self.observation_space = spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = spaces.Box(-1, 1, (size,), np.float32)

    def _score(self, action: Any) -> float:
        return -float(np.sum((action - self._answer) ** 2))

    def _next(self) -> Any:
        self._answer = self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)
        return self._answer


class Chain(gymnasium.Env[Any, Any]):
    """A walk from a random cell to the end: forward (1) earns 1, staying (0) earns 0. The end terminates.

    The time limit is shorter than the walk, so an estimator that confuses truncation with termination misses
    `chain_values`.
    """

    def __init__(self, length: int = 8) -> None:
        self.observation_space = spaces.Box(0, 1, (length + 1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cell = int(self.np_random.integers(self._length))
        return self._obs(), {}

    def step(self, action: int) -> Returned:
        self._cell += int(action)
        return self._obs(), float(action), self._cell == self._length, False, {}

    def _obs(self) -> Any:
        obs = np.zeros(self._length + 1, np.float32)
        obs[self._cell] = 1
        return obs


def chain_values(gamma: float, length: int = 8) -> Array:
    """Return the true discounted values [length + 1] of the cells when always walking forward without a time limit."""
    return np.array([sum(gamma**k for k in range(length - cell)) for cell in range(length + 1)])


# id -> (constructor, time limit, return that counts as solved)
SINGLE: dict[str, tuple[Callable[..., gymnasium.Env[Any, Any]], int, float | None]] = {
    "toy/identity": (Identity, 16, 15.0),
    "toy/identity_box": (IdentityBox, 16, -0.5),
    "toy/chain": (Chain, 4, None),
    "toy/masked": (Masked, 16, 16.0),
    "toy/dict": (DictIdentity, 16, 15.0),
    "toy/image": (ImageIdentity, 16, 15.0),
    "toy/dot": (Dot, 25, 18.0),
    "toy/dials": (lambda: Copy(spaces.MultiDiscrete([2, 3])), 16, 15.0),
    "toy/switches": (lambda: Copy(spaces.MultiBinary(3)), 16, 15.0),
    "toy/recall": (Recall, 16, 0.95),
    "toy/fork": (Fork, 40, 0.95),
    "toy/glimpse": (Glimpse, 16, 0.95),
}
TEAMS: dict[str, tuple[type[Pair] | type[Trio], int]] = {"toy/pair": (Pair, 10), "toy/trio": (Trio, 12)}


def ids(family: str) -> list[str]:
    return [*SINGLE, *TEAMS]


def make(config: EnvironmentConfig, render: bool = False) -> Gym | Pair | Trio:
    """Make a toy environment. Toys draw nothing, so `render` has no effect."""
    if config.id in TEAMS:
        team, limit = TEAMS[config.id]
        check_arguments(team, config.kwargs, config.id)
        return team(**{"max_episode_steps": config.max_episode_steps or limit, **config.kwargs})
    creator, limit, threshold = SINGLE[config.id]
    check_arguments(creator, config.kwargs, config.id)
    return Gym(creator(**config.kwargs), config, limit, return_threshold=threshold)
