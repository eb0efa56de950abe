"""The environment that a config is checked with, which then serves as the first of the training environments."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.catalog import make
from cadenza.types import Environment


class FirstEnvironment:
    """An environment made to read its spec. A vector may use it as its first one instead of making another.

    It is made before the run's generators are seeded. One whose construction drew from a global random generator is
    therefore not used again: the vector makes it anew, from the run's seed.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        before = _global_generators()
        self._env: Environment | None = make(config)
        self.spec = self._env.spec
        self._drew = _global_generators() != before

    def __enter__(self) -> FirstEnvironment:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environment, unless a vector has it."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def then(self, make_env: Callable[[], Environment]) -> Callable[[], Environment]:
        """Return a factory that hands out this environment once, and after it what `make_env` makes."""
        if self._drew:
            self.close()

        def next_env() -> Environment:
            env, self._env = self._env, None
            return make_env() if env is None else env

        return next_env


def _global_generators() -> tuple[Any, ...]:
    """Return the states of the global generators of Python, NumPy and torch; a torch that is not imported has none."""
    _, keys, *position = tuple[Any, ...](np.random.get_state())
    torch: Any = sys.modules.get("torch")
    return random.getstate(), keys.tobytes(), *position, torch and torch.get_rng_state().tolist()
