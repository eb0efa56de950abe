"""A time limit for environments that have none of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from cadenza.types import Environment, Frame


class TimeLimited:
    """An environment whose episodes are truncated after `limit` steps; all else, as its fps and keys, is its own."""

    def __init__(self, env: Environment, limit: int) -> None:
        self._env, self._limit, self._steps = env, limit, 0
        self.spec = dataclasses.replace(env.spec, max_episode_steps=limit)
        self.render, self.close = env.render, env.close

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy that has no environment yet
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, seed: int) -> Frame:
        self._steps = 0
        return self._env.reset(seed)

    def step(self, action: dict[str, np.ndarray]) -> Frame:
        frame = self._env.step(action)
        self._steps += 1
        if self._steps < self._limit or frame.terminated:
            return frame
        return dataclasses.replace(frame, truncated=True)
