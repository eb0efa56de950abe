"""Environments with unusual spaces or errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Pairs(gymnasium.Env[Any, Any]):
    """Acts with two numbers at once."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Misled(Pairs):
    """Tells masks that do not fit its actions."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": np.ones(2, bool)}


class MaskedLate(Pairs):
    """Tells a mask from the second step on, but not before; or one that allows nothing, from the start."""

    action_space = spaces.Discrete(3)  # type: ignore[assignment]

    def __init__(self, nothing: bool = False) -> None:
        self.nothing = nothing

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.now = 0
        return super().reset(seed=seed)[0], {"action_mask": np.ones(3, bool)} if self.nothing else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        mask = np.array([not self.nothing, False, False])
        return np.zeros(2, np.float32), 0.0, False, False, {"action_mask": mask} if self.now == 2 else {}


class Leaving(Pairs):
    """Tries to end the whole program."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise SystemExit(5)


class Blind(Pairs):
    """Sees nothing at all."""

    def __init__(self, kind: str) -> None:
        self.observation_space: Any = spaces.Box(0, 1, (0,), np.float32) if kind == "box" else spaces.Dict({})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}


class Words(Pairs):
    """Acts by saying something."""

    action_space: Any = spaces.Text(5)


class Shifted(gymnasium.Env[Any, Any]):
    """Sees and does numbers that do not begin at 0, for episodes of any length."""

    observation_space = spaces.Dict({"a": spaces.Discrete(3, start=5), "b": spaces.MultiDiscrete([2, 3], start=[1, 4])})
    action_space = spaces.MultiDiscrete([2, 3], start=[3, 2])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.2), False, {}


class Astray(Shifted):
    """Sees a number that its space does not have, in the step asked for and in all after it; 0: from the start."""

    def __init__(self, kind: str = "discrete", at: int = 0) -> None:
        self.kind, self.at, self.now = kind, at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.now = 0
        return self._wrong(super().reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        obs, reward, *_ = super().step(action)
        return self._wrong(obs), reward, self.now == 4, False, {}

    def _wrong(self, obs: Any) -> Any:
        if self.now < self.at:
            return obs
        return obs | ({"a": 4} if self.kind == "discrete" else {"b": np.array([1, 7])})


class RewardedAction(gymnasium.Env[Any, Any]):
    """The observation, a tuple, encodes the rewarded action; actions begin at 3."""

    observation_space = spaces.Tuple((spaces.MultiBinary(1), spaces.Discrete(2, start=7)))
    action_space = spaces.Discrete(4, start=3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._answer)
        return self._next(), reward, False, False, {}

    def _next(self) -> Any:
        bit, number = self.np_random.integers(2, size=2)
        self._answer = 3 + 2 * bit + number
        return np.array([bit], np.int8), 7 + number
