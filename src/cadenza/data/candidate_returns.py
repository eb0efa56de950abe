"""The returns of candidates: of each episode that was collected from its first step to its last."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

from cadenza.trees import leaves
from cadenza.types import Acted, Step

TRIAL = "trial"  # the key in a policy's carry of the trial [N] that each environment runs; below 0: none


class Finished(NamedTuple):
    """The trials and returns of finished episodes."""

    trial: np.ndarray  # [E]
    total: np.ndarray  # [E] rewards summed


class TrialStore:
    """A store that sums rewards by episode, without episodes that began elsewhere or were cut short."""

    def __init__(self, num_envs: int) -> None:
        self._whole = np.zeros(num_envs, bool)  # the running episode was collected from its start
        self._total = np.zeros(num_envs)
        self._ended: list[tuple[int, float]] = []  # trial, return
        self._reached: int | None = None  # checksum of the latest observations; None: nothing yet

    def add(self, step: Step, acted: Acted, after: Step) -> None:
        if _checksum(step) != self._reached:  # another store took steps in between
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
        """Return the episodes that ended since the last call."""
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
    checksum = 0
    for _, array in leaves(step.obs):
        checksum = zlib.crc32(array.tobytes(), checksum)
    return checksum
