"""Proportional prioritised sampling (Schaul et al. 2016, arXiv:1511.05952) over numbered slots."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = 16  # entries under one sum
TINY = float(np.finfo(np.float32).tiny)  # the least weight of a slot in use


class Priorities:
    """A weight p^alpha for every slot, 0 for slots that cannot be sampled.

    A tree of three levels: weights, sums of `WIDTH` of them, sums of `WIDTH` sums. Where weights change, the sums above
    are recomputed and never adjusted, so they do not drift, and the weights alone are state.
    """

    def __init__(self, slots: int, alpha: float) -> None:
        self.slots = slots
        self.alpha = alpha
        self.highest = 1.0  # weight so far, which new slots get
        blocks = -(-slots // WIDTH**2)
        self._weights = np.zeros((blocks * WIDTH, WIDTH), np.float32)
        self._sums = np.zeros((blocks, WIDTH))
        self._ends = np.zeros(blocks + 1)  # running total of the sums' sums, from 0
        self._tops = np.zeros(blocks)
        self._stale = np.zeros(blocks * WIDTH, bool)

    @staticmethod
    def bytes_for(slots: int) -> int:
        """Return the size of the arrays for so many slots."""
        blocks = -(-slots // WIDTH**2)
        return blocks * (WIDTH**2 * 4 + WIDTH * 8 + WIDTH + 8 + 8) + 8

    def put(self, slots: np.ndarray) -> None:
        """Give slots with new transitions the highest weight."""
        self._set(slots, self.highest)

    def drop(self, slots: np.ndarray) -> None:
        """Give slots that can no longer be sampled the weight 0."""
        self._set(slots, 0.0)

    @np.errstate(all="ignore")  # divergence is raised below
    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of slots [B], for example from |TD error|; slots that were dropped stay at 0."""
        weights = np.maximum(np.asarray(priorities, np.float64) ** self.alpha, TINY).astype(np.float32)
        highest = float(weights.max(initial=0.0))
        if not highest < np.inf:
            raise FloatingPointError("a priority is not finite")
        self.highest = max(self.highest, highest)
        self._set(slots, np.where(self._weights.reshape(-1)[slots] > 0, weights, np.float32(0)))

    def sample(self, batch: int, generator: np.random.Generator, beta: float) -> tuple[np.ndarray, np.ndarray]:
        """Draw slots [B], one from each of `batch` equal shares of the total; return their importance weights, too."""
        self._settle()
        total = float(self._ends[-1])
        aims = (generator.random(batch) + np.arange(batch)) * (total / batch)
        np.minimum(aims, np.nextafter(total, 0.0), out=aims)  # rounding must not lead beyond the last slot
        block = self._ends[1:].searchsorted(aims, side="right")
        aims -= self._ends[block]
        block = block * WIDTH + descend(self._sums.take(block, axis=0), aims)
        weights = self._weights.take(block, axis=0)
        inside = descend(weights, aims)
        drawn = weights[np.arange(batch), inside]
        importance: np.ndarray = (drawn.min() / drawn) ** np.float32(beta)
        return block * WIDTH + inside, importance

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self._weights.reshape(-1)[: self.slots], "highest": self.highest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights.reshape(-1)[: self.slots] = state["weights"]
        self._stale[:] = True
        self.highest = state["highest"]

    def _set(self, slots: np.ndarray, weights: Any) -> None:
        self._weights.reshape(-1)[slots] = weights
        self._stale[slots // WIDTH] = True

    def _settle(self) -> None:
        changed = np.flatnonzero(self._stale)
        if len(changed):
            self._stale[changed] = False
            self._sums.reshape(-1)[changed] = self._weights[changed].astype(np.float64).sum(axis=1)
            blocks = np.unique(changed // WIDTH)
            self._tops[blocks] = self._sums[blocks].sum(axis=1)
            self._tops.cumsum(out=self._ends[1:])


def descend(entries: np.ndarray, aims: np.ndarray) -> np.ndarray:
    """Return for each row [B, WIDTH] the entry in which the aim [B] falls; make aims relative to the entry's start."""
    rows = np.arange(len(aims))
    ends = entries.cumsum(axis=1, dtype=np.float64)
    beyond = ends > aims[:, None]
    index: np.ndarray = beyond.argmax(axis=1)
    for row in np.flatnonzero(~beyond[:, -1]):  # a sum and a running sum round differently: take the last above 0
        index[row] = np.flatnonzero(entries[row])[-1]
    aims -= np.where(index > 0, ends[rows, index - 1], 0.0)
    return index
