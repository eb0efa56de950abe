"""What candidates earned: the return of each episode that was seen from its first step to its last."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

from cadenza.trees import leaves
from cadenza.types import Acted, Step

TRIAL = "trial"  # where in a policy's memory [N] stands which trial an environment is in; below 0: in none


class Finished(NamedTuple):
    trial: np.ndarray  # [E]
    total: np.ndarray  # [E] rewards summed


class TrialStore:
    """Adds up rewards while episodes run; those of half an episode, begun elsewhere or cut short, count for nothing."""

    def __init__(self, num_envs: int) -> None:
        self._whole = np.zeros(num_envs, bool)  # whether the running episode was seen from its start
        self._total = np.zeros(num_envs)
        self._ended: list[tuple[int, float]] = []  # trial, return
        self._reached: int | None = None  # what was seen last; None: nothing yet

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        if _checksum(step) != self._reached:  # the environments went on elsewhere meanwhile
            self.cut()
        self._reached = _checksum(after)
        self._whole |= step.is_first
        self._total[step.is_first] = 0
        for reward in after.reward.values():
            self._total += reward.sum(1)
        trial, ended = acted.carry[TRIAL], after.terminated | after.truncated
        for env in np.flatnonzero(ended & self._whole & (trial >= 0)):
            self._ended.append((int(trial[env]), float(self._total[env])))
        self._whole &= ~ended

    def take(self) -> Finished:
        """What ended since the last time."""
        trial, total = np.array([t for t, _ in self._ended], np.int64), np.array([r for _, r in self._ended])
        self._ended = []
        return Finished(trial, total)

    def ready(self) -> bool:
        return self._reached is not None

    def cut(self) -> None:
        self._whole[:] = False

    def state_dict(self) -> dict[str, Any]:
        return {
            "whole": self._whole.copy(),
            "total": self._total.copy(),
            "ended": list(self._ended),
            "reached": self._reached,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._whole, self._total = state["whole"].copy(), state["total"].copy()
        self._ended, self._reached = list(state["ended"]), state["reached"]


def _checksum(step: Step) -> int:
    found = 0
    for _, array in leaves(step.obs):
        found = zlib.crc32(array.tobytes(), found)
    return found
