"""A way that forks round an obstacle: two answers are right, their mean is wrong. And an expert that takes both."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

START, GOAL = np.array([0.0, -1.0]), np.array([0.0, 1.0])
SIDE = 0.7  # how far from the middle the expert passes


class Fork(gymnasium.Env[Any, Any]):
    """A point goes from the bottom to the goal at the top, and a round obstacle lies in the middle.

    Seen is where it is; an action moves it by a tenth at most each way. The goal earns 1 and ends the episode, the
    obstacle ends it with nothing.
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
    """An expert for it: left or right by the toss of a coin at the start, then on along that side, a little shaky."""
    x, y = obs
    at_start = y < START[1] + 0.02
    side = random.choice([-1.0, 1.0]) if at_start else np.sign(x)
    aim = np.array([side * SIDE, 0.0]) if y < 0 else GOAL
    away = aim - obs
    return np.asarray(away / max(np.hypot(*away), Fork.REACH) + random.normal(0, 0.05, 2))
