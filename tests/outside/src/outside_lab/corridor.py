"""A corridor with a door somewhere."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env[Any, Any]):
    """Walk left or right towards the door; a slip now and then."""

    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 8, limit: int = 20) -> None:
        self.observation_space = spaces.Box(-length, length, (2,), np.float32)
        self._length, self._limit = length, limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._door = (int(place) for place in self.np_random.integers(0, self._length, 2))
        self._steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        way = 1 if action == 1 else -1
        slipped = self.np_random.random() < 0.1
        self._place = int(np.clip(self._place + (-way if slipped else way), 0, self._length - 1))
        self._steps += 1
        there = self._place == self._door
        return self._observation(), float(there) - 0.05, there, self._steps >= self._limit, {}

    def _observation(self) -> Any:
        return np.array([self._door - self._place, 1.0], np.float32)
