"""A toy with two ways round an obstacle, and an expert that takes both: the mean of the two answers is wrong."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

START, GOAL = np.array([0.0, -1.0]), np.array([0.0, 1.0])
SIDE = 0.7  # how far from the middle the expert passes


class Fork(gymnasium.Env[Any, Any]):
    """A point that moves from the bottom to the goal at the top, with a round obstacle in the middle.

    The observation is its position [2]; an action [2] moves it by at most 0.1 along each axis. The goal gives 1 and
    ends the episode; the obstacle ends it with 0.
    """

    REACH, OBSTACLE, NEAR, EDGE = 0.1, 0.35, 0.15, 1.5

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-self.EDGE, self.EDGE, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = START + self.np_random.uniform(-0.02, 0.02) * np.array([1, 0])
        return self._place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = self.REACH * np.clip(np.asarray(action, np.float64), -1, 1)
        self._place = np.clip(self._place + move, -self.EDGE, self.EDGE)
        arrived = bool(np.hypot(*(self._place - GOAL)) < self.NEAR)
        hit = bool(np.hypot(*self._place) < self.OBSTACLE)
        return self._place.astype(np.float32), float(arrived), arrived or hit, False, {}


def either_way(obs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return a scripted expert's action: a random side at the start, then along that side, with a little noise."""
    x, y = obs
    at_start = y < START[1] + 0.02
    side = random.choice([-1.0, 1.0]) if at_start else np.sign(x)
    aim = np.array([side * SIDE, 0.0]) if y < 0 else GOAL
    away = aim - obs
    return np.asarray(away / max(np.hypot(*away), Fork.REACH) + random.normal(0, 0.05, 2))
