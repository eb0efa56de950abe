"""Wrappers and environments as a user might write them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """Rewards multiplied by a factor."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self._factor = factor

    def reward(self, reward: Any) -> float:
        return self._factor * float(reward)


def nothing(env: gymnasium.Env[Any, Any]) -> None:
    """A wrapper without a return value."""


class Camera(gymnasium.Env[Any, Any]):
    """An image whose green channel is the step, and a vector."""

    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (6, 8, 3), np.uint8), "speed": spaces.Box(-9, 9, (2,), np.float32)}
    )
    action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        self.last_action: Any = None
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self.last_action = action
        return self._see(), float(self._step), self._step == 12, False, {}

    def _see(self) -> Any:
        picture = np.zeros((6, 8, 3), np.uint8)
        picture[..., 1] = self._step
        return {"camera": picture, "speed": np.full(2, self._step, np.float32)}


class Pixels(Camera):
    """The image alone."""

    observation_space: Any = Camera.observation_space["camera"]

    def _see(self) -> Any:
        return super()._see()["camera"]


class Pictured(gymnasium.wrappers.AddRenderObservation):
    """Gymnasium's wrapper under another name."""
