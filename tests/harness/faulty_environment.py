"""An environment that fails on demand, for tests of how failures are caught, named and cleaned up after."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FAULTY = f"{__name__}:Faulty"  # its id


class Faulty(gymnasium.Env[Any, Any]):
    """An environment that works until the step (or reset) named for a fault; `in_seed` limits faults to one episode.

    Steps and resets are counted over its whole life.
    """

    def __init__(
        self,
        raise_at: int | None = None,
        nan_at: int | None = None,
        reward_nan_at: int | None = None,
        shape_at: int | None = None,
        dtype_at: int | None = None,
        hang_at: int | None = None,
        exit_at: int | None = None,
        die_at_reset: int | None = None,
        in_seed: int | None = None,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._step_faults = {
            "raise": raise_at,
            "nan": nan_at,
            "reward_nan": reward_nan_at,
            "shape": shape_at,
            "dtype": dtype_at,
            "hang": hang_at,
            "exit": exit_at,
        }
        self._die_at_reset = die_at_reset
        self._in_seed = in_seed
        self._steps = self._resets = 0
        self._seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed = seed
        self._resets += 1
        if self._resets == self._die_at_reset:
            os._exit(3)
        self._obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._obs, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        due = [name for name, at in self._step_faults.items() if at is not None and self._steps >= at]
        fault = due[0] if due and self._in_seed in (None, self._seed) else ""
        if fault == "raise":
            raise ValueError("asked to fail")
        if fault == "exit":
            os._exit(3)
        while fault == "hang":
            time.sleep(0.05)
        self._obs = (self._obs * 0.5 + action).astype(np.float32)
        obs: Any = self._obs
        if fault == "nan":
            obs = np.array([0, np.nan], np.float32)
        elif fault == "shape":
            obs = np.zeros(3, np.float32)
        elif fault == "dtype":
            obs = np.array(["a", "b"])
        return obs, float("nan") if fault == "reward_nan" else 1.0, False, False, {}
