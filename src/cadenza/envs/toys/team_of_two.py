"""A toy team of two unlike groups, in which one agent dies during the episode."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from cadenza.envs.layout import Array
from cadenza.types import EnvSpec, Frame, GroupSpec


class Pair:
    """Two runners and a shooter, each rewarded for its own task.

    Runners name the largest of three numbers for 1; the shooter aims at a point and gets minus the squared distance.
    The second runner dies at a random step; dead, it sees zeros and earns 0.
    """

    def __init__(self, max_episode_steps: int = 10) -> None:
        self.spec = EnvSpec(
            id="toy/pair",
            groups={
                "runner": GroupSpec(("runner_0", "runner_1"), Box(-1, 1, (3,), np.float32), Discrete(3)),
                "shooter": GroupSpec(("shooter_0",), Box(-1, 1, (5,), np.float32), Box(-1, 1, (2,), np.float32)),
            },
            state=Box(-1, 1, (11,), np.float32),
            max_episode_steps=max_episode_steps,
        )
        self._limit = max_episode_steps

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._steps = 0
        self._death = int(self._rng.integers(2, 7))
        self._draw()
        return self._frame(np.zeros(2, np.float32), np.zeros(1, np.float32))

    def step(self, action: dict[str, Array]) -> Frame:
        alive = self._alive()
        hits = (action["runner"] == self._runners.argmax(axis=1)) & alive
        aim = np.clip(action["shooter"][0], -1, 1)
        miss = -np.sum((aim - self._shooter[0, :2]) ** 2, keepdims=True)
        self._steps += 1
        self._draw()
        return self._frame(hits.astype(np.float32), miss.astype(np.float32))

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        pass

    def _alive(self) -> Array:
        return np.array([True, self._steps < self._death])

    def _draw(self) -> None:
        numbers = self._rng.uniform(-1, 1, 11).astype(np.float32)
        self._runners = numbers[:6].reshape(2, 3) * self._alive()[:, None]
        self._shooter = numbers[6:].reshape(1, 5)

    def _frame(self, runner: Array, shooter: Array) -> Frame:
        return Frame(
            obs={"runner": self._runners, "shooter": self._shooter},
            reward={"runner": runner, "shooter": shooter},
            truncated=self._steps >= self._limit,
            active={"runner": self._alive(), "shooter": np.ones(1, bool)},
            died={"runner": np.array([False, self._steps == self._death]), "shooter": np.zeros(1, bool)},
            state=np.concatenate([self._runners.ravel(), self._shooter.ravel()]),
        )
