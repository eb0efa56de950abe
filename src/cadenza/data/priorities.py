"""Proportional prioritised sampling (Schaul et al. 2016, arXiv:1511.05952) over numbered slots."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = 16  # entries under one sum
TINY = float(np.finfo(np.float32).tiny)  # a slot in use never weighs nothing


class Priorities:
    """A weight p^alpha for every slot, 0 where nothing can be sampled.

    A tree of three levels: weights, sums of `WIDTH` of them, sums of `WIDTH` sums. Where weights change, the sums above
    are recomputed and never adjusted, so they do not drift, and the weights alone are state.
    """

    def __init__(self, slots: int, alpha: float) -> None:
        self.slots = slots
        self.alpha = alpha
        self.highest = 1.0  # weight so far: what has never been learned from gets it
        blocks = -(-slots // WIDTH**2)
        self._weights = np.zeros((blocks * WIDTH, WIDTH), np.float32)
        self._sums = np.zeros((blocks, WIDTH))
        self._ends = np.zeros(blocks + 1)  # running total of the sums' sums, from 0
        self._tops = np.zeros(blocks)
        self._stale = np.zeros(blocks * WIDTH, bool)

    @staticmethod
    def bytes_for(slots: int) -> int:
        """What the arrays for so many slots take."""
        blocks = -(-slots // WIDTH**2)
        return blocks * (WIDTH**2 * 4 + WIDTH * 8 + WIDTH + 8 + 8) + 8

    def put(self, slots: np.ndarray) -> None:
        """Slots with something new."""
        self._set(slots, self.highest)

    def drop(self, slots: np.ndarray) -> None:
        """Slots that can no longer be sampled."""
        self._set(slots, 0.0)

    @np.errstate(all="ignore")  # who diverges is told below
    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        """What learning found out, |TD error| say; slots that were dropped meanwhile stay so."""
        weights = np.maximum(np.asarray(priorities, np.float64) ** self.alpha, TINY).astype(np.float32)
        highest = float(weights.max(initial=0.0))
        if not highest < np.inf:
            raise FloatingPointError("a priority is not finite")
        self.highest = max(self.highest, highest)
        self._set(slots, np.where(self._weights.reshape(-1)[slots] > 0, weights, np.float32(0)))

    def sample(self, batch: int, generator: np.random.Generator, beta: float) -> tuple[np.ndarray, np.ndarray]:
        """Slots, one from each of `batch` equal shares of the total, and their importance weights (1 at most)."""
        self._settle()
        total = float(self._ends[-1])
        aims = (generator.random(batch) + np.arange(batch)) * (total / batch)
        np.minimum(aims, np.nextafter(total, 0.0), out=aims)  # rounding must not lead beyond the last
        block = self._ends[1:].searchsorted(aims, side="right")
        aims -= self._ends[block]
        block = block * WIDTH + descend(self._sums.take(block, axis=0), aims)
        weights = self._weights.take(block, axis=0)
        inside = descend(weights, aims)
        found = weights[np.arange(batch), inside]
        importance: np.ndarray = (found.min() / found) ** np.float32(beta)
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
    """In each row [B, WIDTH], the entry within which the aim falls; the aims are left relative to its beginning."""
    rows = np.arange(len(aims))
    ends = entries.cumsum(axis=1, dtype=np.float64)
    beyond = ends > aims[:, None]
    found: np.ndarray = beyond.argmax(axis=1)
    for row in np.flatnonzero(~beyond[:, -1]):  # a sum and a running sum are rounded apart: the last that weighs
        found[row] = np.flatnonzero(entries[row])[-1]
    aims -= np.where(found > 0, ends[rows, found - 1], 0.0)
    return found
