"""Environments whose episodes never end, with 1 for every step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.types import SINGLE_GROUP, EnvSpec, Frame, GroupSpec


class Endless(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0, False, False, {}


class EndlessFrames:
    """The same as an environment of cadenza's own kind, perhaps with a time limit of its own."""

    def __init__(self, limit: int | None = None) -> None:
        group = GroupSpec((SINGLE_GROUP,), Endless.observation_space, Endless.action_space)
        self.spec = EnvSpec("endless", {SINGLE_GROUP: group}, max_episode_steps=limit)
        self.steps = 0

    def reset(self, seed: int) -> Frame:
        self.steps = 0
        return self._frame(0.0)

    def step(self, action: dict[str, np.ndarray]) -> Frame:
        self.steps += 1
        return self._frame(1.0)

    def _frame(self, reward: float) -> Frame:
        obs = np.zeros((1, 2), np.float32)
        over = self.steps == self.spec.max_episode_steps
        return Frame({SINGLE_GROUP: obs}, {SINGLE_GROUP: np.full(1, reward, np.float32)}, truncated=over)

    def render(self) -> None:
        return None

    def close(self) -> None:
        pass
