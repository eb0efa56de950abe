"""Walks along the rows of a ring, for a batch of slots at once: n steps ahead, frames back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cadenza.data.ring import Ring
from cadenza.trees import map_tree
from cadenza.types import Tree

FIRST, TERMINATED, TRUNCATED, LAST = 1, 2, 4, 8  # bits of a row's flags


class Ahead(NamedTuple):
    """The result of n steps."""

    end: np.ndarray  # [B] slot of the observation after them
    steps: np.ndarray  # [B] really taken
    reward: dict[str, np.ndarray]  # group -> [B, A] discounted sum of the rewards on the way
    over: dict[str, np.ndarray]  # group -> [B, A] bool: the agent died on the way, or the episode terminated


def following(slots: np.ndarray, rows: int) -> np.ndarray:
    """Return the next row in the same stream."""
    after = slots + 1
    return np.where(after % rows == 0, after - rows, after)


def preceding(slots: np.ndarray, rows: int) -> np.ndarray:
    """Return the row before in the same stream."""
    return np.where(slots % rows == 0, slots + rows, slots) - 1


def ahead(ring: Ring, start: np.ndarray, n_step: int, gamma: float) -> Ahead:
    """Take `n_step` steps from slots `start` [B]; fewer where the episode or the stream ends earlier."""
    flags, groups, rows = ring.flags, ring.arrays["groups"], ring.rows
    reward = {group: data["reward"].take(start, axis=0) for group, data in groups.items()}
    over = {group: data["died"].take(start, axis=0) for group, data in groups.items()}
    end, count = following(start, rows), np.ones(len(start), np.int64)
    age = ring.age(start) if n_step > 1 else count
    for step in range(1, n_step):
        going = (flags[end] & LAST == 0) & (age > step)
        for group, data in groups.items():
            earning = going[:, None] & ~over[group]
            reward[group] += gamma**step * np.where(earning, data["reward"].take(end, axis=0), np.float32(0))
            over[group] |= earning & data["died"].take(end, axis=0)
        count += going
        end = np.where(going, following(end, rows), end)
    terminated = flags[end] & (LAST | TERMINATED) == LAST | TERMINATED
    return Ahead(end, count, reward, {group: dead | terminated[:, None] for group, dead in over.items()})


def onward(ring: Ring, start: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return slots [B, steps + 1] from `start` [B] on, and [B, steps] whether each step was taken in the same episode.

    Where the episode or the stream ends earlier, its last row is repeated.
    """
    walk, valid = [start], []
    age = ring.age(start)
    going = np.ones(len(start), bool)
    for step in range(steps):
        going = going & (ring.flags[walk[-1]] & LAST == 0) & (age > step)
        valid.append(going)
        walk.append(np.where(going, following(walk[-1], ring.rows), walk[-1]))
    return np.stack(walk, 1), np.stack(valid, 1)


def back(ring: Ring, index: np.ndarray) -> np.ndarray:
    """Return slots [*index, frames] of the frames of an observation, oldest first.

    The first frame of an episode is repeated before its start.
    """
    walk = [index]
    for _ in range(ring.stack - 1):
        is_first = ring.flags[walk[-1]] & FIRST != 0
        walk.append(np.where(is_first, walk[-1], preceding(walk[-1], ring.rows)))
    return np.stack(walk[::-1], axis=-1)


def window(ring: Ring, index: np.ndarray, behind: int, on: int) -> tuple[np.ndarray, np.ndarray]:
    """Return slots [B, behind] of the rows up to transitions `index` [B], and [B, on] of the transitions from them on.

    Both are in order of time and contain the transition itself. Before the start of its episode, or the oldest row
    that may be drawn, the first row is repeated; after its end, or that of the stream, the last transition.
    """
    past, future = [index], [index]
    for _ in range(behind - 1):
        has_previous = (ring.flags[past[-1]] & FIRST == 0) & (ring.age(past[-1]) < ring.oldest)
        past.append(np.where(has_previous, preceding(past[-1], ring.rows), past[-1]))
    for _ in range(on - 1):
        after = following(future[-1], ring.rows)
        going = (ring.flags[after] & LAST == 0) & (ring.age(after) != 0)
        future.append(np.where(going, after, future[-1]))
    return np.stack(past[::-1], axis=-1), np.stack(future, axis=-1)


def stacked(frames: Tree, slots: np.ndarray) -> Tree:
    """Return the stacks [*index, A, k * C, …] of the frames [slots, A, C, …] in slots [*index, k]."""

    def stack(array: np.ndarray) -> np.ndarray:
        drawn = np.moveaxis(array.take(slots, axis=0), slots.ndim - 1, slots.ndim)  # [*index, A, k, C, …]
        return drawn.reshape(*drawn.shape[: slots.ndim], -1, *array.shape[3:])

    return map_tree(stack, frames)
