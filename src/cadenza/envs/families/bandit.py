"""Bandits: arms with noisy rewards, as in Sutton & Barto's testbed (2018, chapter 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, require_whole
from cadenza.envs.families.gym import Gym
from cadenza.errors import ConfigError

Returned = tuple[int, float, bool, bool, dict[str, Any]]


class Bandit(gymnasium.Env[Any, Any]):
    """A bandit whose arms give normal rewards with deviation 1 around their means.

    The means are drawn once for each `problem`, normal with deviation 1; an episode's seed decides only the noise.
    """

    def __init__(self, arms: int = 10, problem: int = 0, pulls: int = 1000) -> None:
        self._set_up(arms, problem, pulls)

    def _set_up(self, arms: int, problem: int, pulls: int, contexts: int = 1) -> None:
        for key, value in (("arms", arms), ("pulls", pulls), ("contexts", contexts)):
            require_whole(key, value, 1)
        require_whole("problem", problem, 0)
        self.observation_space = spaces.Discrete(contexts)
        self.action_space = spaces.Discrete(arms)
        self.means = np.random.default_rng(problem).normal(size=(contexts, arms))
        self.pulls = pulls
        self._context = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return self._next(), {}

    def step(self, action: int) -> Returned:
        reward = float(self.np_random.normal(self.means[self._context, action]))
        return self._next(), reward, False, False, {}

    def _next(self) -> int:
        return self._context


class Nonstationary(Bandit):
    """A bandit whose means start as in `Bandit` and change at each pull by normal steps of deviation `walk`."""

    def __init__(self, arms: int = 10, problem: int = 0, pulls: int = 1000, walk: float = 0.05) -> None:
        self._set_up(arms, problem, pulls)
        if walk < 0:
            raise ConfigError(f"environment.kwargs.walk={walk}: cannot be negative")
        self._start = self.means.copy()
        self._walk = walk

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.means[:] = self._start
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Returned:
        returned = super().step(action)
        self.means += self.np_random.normal(scale=self._walk, size=self.means.shape)
        return returned


class Contextual(Bandit):
    """A bandit drawn at random from several at each pull; the observation says which."""

    def __init__(self, arms: int = 10, problem: int = 0, pulls: int = 1000, contexts: int = 4) -> None:
        self._set_up(arms, problem, pulls, contexts)

    def _next(self) -> int:
        self._context = int(self.np_random.integers(len(self.means)))
        return self._context


KINDS: dict[str, Callable[..., Bandit]] = {
    "Bandit/ten_armed": Bandit,
    "Bandit/nonstationary": Nonstationary,
    "Bandit/contextual": Contextual,
}


def ids(family: str) -> list[str]:
    return list(KINDS)


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    """Make a bandit with episodes of `pulls` steps. Bandits draw nothing, so `render` has no effect."""
    creator = KINDS[config.id]
    check_arguments(creator, config.kwargs, config.id)
    env = creator(**config.kwargs)
    return Gym(env, config, env.pulls)
