"""A toy of images that needs a memory: the side on which a light flashed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.envs.layout import Array


class Glimpse(gymnasium.Env[Any, Any]):
    """A light flashes left or right; after `delay` dark steps a bar asks for its side.

    The right answer gives 1 and ends the episode, and the last image shows the light again. A policy without a memory
    earns half of that on average; a model that predicts the next image has to remember the flash.
    """

    SIDE, LIGHT = 16, 6

    def __init__(self, delay: int = 3) -> None:
        self.observation_space = spaces.Box(0, 255, (1, self.SIDE, self.SIDE), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._delay = delay

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._right, self._step = bool(self.np_random.integers(2)), 0
        return self._picture(lit=True), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        answers = self._step == self._delay
        self._step += 1
        picture = self._picture(lit=answers, sign=self._step == self._delay)
        return picture, float(answers and bool(action) == self._right), answers, False, {}

    def _picture(self, lit: bool, sign: bool = False) -> Array:
        picture = np.full((1, self.SIDE, self.SIDE), 32, np.uint8)
        if lit:
            left = self.SIDE - self.LIGHT - 1 if self._right else 1
            picture[0, 2 : 2 + self.LIGHT, left : left + self.LIGHT] = 230
        if sign:
            picture[0, -4:-1, 3:-3] = 160
        return picture
