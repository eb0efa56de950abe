"""A toy team of three unlike groups, in which one agent of two groups dies during the episode."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from cadenza.envs.layout import Array
from cadenza.types import EnvSpec, Frame, GroupSpec


class Trio:
    """Two scouts, a gunner and two engineers, each rewarded for its own task with at most 1 per step.

    Scouts name the largest number that their mask allows, the gunner aims at a point, engineers set two dials to the
    signs they see. The second scout and the first engineer die at random steps; dead, they see zeros and earn 0.
    With `state` there is a central state: all observations.
    """

    def __init__(self, max_episode_steps: int = 12, state: bool = True) -> None:
        self.spec = EnvSpec(
            id="toy/trio",
            groups={
                "scout": GroupSpec(("scout_0", "scout_1"), Box(-1, 1, (4,), np.float32), Discrete(4)),
                "gunner": GroupSpec(("gunner_0",), Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)),
                "engineer": GroupSpec(
                    ("engineer_0", "engineer_1"), Box(-1, 1, (2,), np.float32), MultiDiscrete([2, 2])
                ),
            },
            state=Box(-1, 1, (15,), np.float32) if state else None,
            max_episode_steps=max_episode_steps,
        )
        self._limit = max_episode_steps

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._steps = 0
        self._deaths: Array = self._rng.integers(2, 10, 2)  # of scout_1 and of engineer_0
        self._draw()
        return self._frame({name: np.zeros(len(group.agents)) for name, group in self.spec.groups.items()})

    def step(self, action: dict[str, Array]) -> Frame:
        alive = self._alive()
        best = np.where(self._mask, self._obs["scout"], -np.inf).argmax(1)
        aim = np.clip(action["gunner"][0], -1, 1)
        set_right = (action["engineer"] == (self._obs["engineer"] > 0)).mean(1)
        reward = {
            "scout": (action["scout"] == best) * alive["scout"],
            "gunner": 1 - np.square(aim - self._obs["gunner"][:, :2]).sum(1),
            "engineer": set_right * alive["engineer"],
        }
        self._steps += 1
        self._draw()
        return self._frame(reward)

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        pass

    def _alive(self) -> dict[str, Array]:
        scout, engineer = self._deaths > self._steps
        return {"scout": np.array([True, scout]), "gunner": np.ones(1, bool), "engineer": np.array([engineer, True])}

    def _draw(self) -> None:
        alive = self._alive()
        numbers = {name: self._rng.uniform(-1, 1, (len(alive[name]), size)) for name, size in SIZES.items()}
        self._obs = {name: (x * alive[name][:, None]).astype(np.float32) for name, x in numbers.items()}
        forbidden = self._rng.integers(0, 4, 2)
        self._mask = np.arange(4) != forbidden[:, None]

    def _frame(self, reward: dict[str, Array]) -> Frame:
        scout, engineer = np.equal(self._deaths, self._steps)
        return Frame(
            obs=self._obs,
            reward={name: np.asarray(x, np.float32) for name, x in reward.items()},
            truncated=self._steps >= self._limit,
            active=self._alive(),
            died={
                "scout": np.array([False, scout]),
                "gunner": np.zeros(1, bool),
                "engineer": np.array([engineer, False]),
            },
            mask={"scout": self._mask},
            state=None if self.spec.state is None else np.concatenate([x.ravel() for x in self._obs.values()]),
        )


SIZES = {"scout": 4, "gunner": 3, "engineer": 2}
