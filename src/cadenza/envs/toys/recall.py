"""Toys that need a memory: a cue, a delay and a question, as a vector or as images."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.envs.layout import Array

Moment = Literal["cue", "wait", "question", "answer"]


class Recall(gymnasium.Env[Any, Any]):
    """A cue is shown once and asked for `delay` steps later; a policy without a memory earns half of what it could."""

    def __init__(self, delay: int = 3) -> None:
        self.observation_space = spaces.Box(0, 1, (3,), np.float32)  # the cue as one-hot, then the question sign
        self.action_space = spaces.Discrete(2)
        self._delay = delay

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue, self._step = int(self.np_random.integers(2)), 0
        return self._observe("cue"), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        answers = self._step == self._delay
        self._step += 1
        moment: Moment = "answer" if answers else "question" if self._step == self._delay else "wait"
        return self._observe(moment), float(answers and action == self._cue), answers, False, {}

    def _observe(self, moment: Moment) -> Array:
        obs = np.zeros(3, np.float32)
        obs[self._cue] = moment == "cue"
        obs[2] = moment == "question"
        return obs


class Glimpse(Recall):
    """A light flashes left or right; after `delay` dark steps a bar asks for its side.

    The right answer gives 1 and ends the episode, and the last image shows the light again. A policy without a memory
    earns half of that on average; a model that predicts the next image has to remember the flash.
    """

    SIDE, LIGHT = 16, 6

    def __init__(self, delay: int = 3) -> None:
        super().__init__(delay)
        self.observation_space = spaces.Box(0, 255, (1, self.SIDE, self.SIDE), np.uint8)

    def _observe(self, moment: Moment) -> Array:
        picture = np.full((1, self.SIDE, self.SIDE), 32, np.uint8)
        if moment in ("cue", "answer"):
            left = self.SIDE - self.LIGHT - 1 if self._cue else 1
            picture[0, 2 : 2 + self.LIGHT, left : left + self.LIGHT] = 230
        elif moment == "question":
            picture[0, -4:-1, 3:-3] = 160
        return picture
