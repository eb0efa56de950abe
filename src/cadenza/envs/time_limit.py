"""A time limit for environments that have none of their own."""

from __future__ import annotations

import dataclasses

import numpy as np

from cadenza.types import Environment, Frame


class TimeLimited:
    """An environment whose episodes are truncated after `limit` steps."""

    def __init__(self, env: Environment, limit: int) -> None:
        self.env, self._limit, self._steps = env, limit, 0
        self.spec = dataclasses.replace(env.spec, max_episode_steps=limit)
        self.render, self.close = env.render, env.close

    def reset(self, seed: int) -> Frame:
        self._steps = 0
        return self.env.reset(seed)

    def step(self, action: dict[str, np.ndarray]) -> Frame:
        frame = self.env.step(action)
        self._steps += 1
        if self._steps < self._limit or frame.terminated:
            return frame
        return dataclasses.replace(frame, truncated=True)
