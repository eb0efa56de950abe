"""Walks along streams of rows that lie in rings: n steps ahead, frames back. Vectorised over a batch of starts.

Slots number the rows of all environments, those of one after those of another, `rows` each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cadenza.trees import map_tree
from cadenza.types import Tree

FIRST, TERMINATED, TRUNCATED, LAST = 1, 2, 4, 8  # bits of a row's flags


class Ahead(NamedTuple):
    """Where n steps led."""

    end: np.ndarray  # [B] slot of what was seen then
    walked: np.ndarray  # [B] steps it really took
    reward: dict[str, np.ndarray]  # group -> [B, A] discounted sum of what was earned on the way
    over: dict[str, np.ndarray]  # group -> [B, A] bool: the agent died on the way, or the episode terminated


def following(slots: np.ndarray, rows: int) -> np.ndarray:
    """The next row in the same stream."""
    after = slots + 1
    return np.where(after % rows == 0, after - rows, after)


def preceding(slots: np.ndarray, rows: int) -> np.ndarray:
    """The row before in the same stream."""
    return np.where(slots % rows == 0, slots + rows, slots) - 1


def ahead(arrays: Tree, start: np.ndarray, head: np.ndarray, rows: int, n_step: int, gamma: float) -> Ahead:
    """`n_step` steps from `start` [B]; fewer where the episode ends before, or the stream, at its `head` [N]."""
    flags, groups = arrays["flags"], arrays["groups"]
    reward = {group: data["reward"].take(start, axis=0) for group, data in groups.items()}
    over = {group: data["died"].take(start, axis=0) for group, data in groups.items()}
    end, walked = following(start, rows), np.ones(len(start), np.int64)
    age = (head[start // rows] - start) % rows if n_step > 1 else walked
    for step in range(1, n_step):
        going = (flags[end] & LAST == 0) & (age > step)
        for group, data in groups.items():
            earning = going[:, None] & ~over[group]
            reward[group] += gamma**step * np.where(earning, data["reward"].take(end, axis=0), np.float32(0))
            over[group] |= earning & data["died"].take(end, axis=0)
        walked += going
        end = np.where(going, following(end, rows), end)
    terminated = flags[end] & (LAST | TERMINATED) == LAST | TERMINATED
    return Ahead(end, walked, reward, {group: dead | terminated[:, None] for group, dead in over.items()})


def onward(
    flags: np.ndarray, start: np.ndarray, head: np.ndarray, rows: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Slots [B, steps + 1] from `start` [B] on, and [B, steps] whether each step was taken in the same episode.

    Where it ends before, or the stream, at its `head` [N], what was reached last is repeated.
    """
    walk, taken = [start], []
    age = (head[start // rows] - start) % rows
    going = np.ones(len(start), bool)
    for step in range(steps):
        going = going & (flags[walk[-1]] & LAST == 0) & (age > step)
        taken.append(going)
        walk.append(np.where(going, following(walk[-1], rows), walk[-1]))
    return np.stack(walk, 1), np.stack(taken, 1)


def back(flags: np.ndarray, index: np.ndarray, rows: int, frames: int) -> np.ndarray:
    """Slots [*index, frames] of the latest rows, oldest first; an episode's first is repeated before its start."""
    walk = [index]
    for _ in range(frames - 1):
        is_first = flags[walk[-1]] & FIRST != 0
        walk.append(np.where(is_first, walk[-1], preceding(walk[-1], rows)))
    return np.stack(walk[::-1], axis=-1)


def window(
    flags: np.ndarray, index: np.ndarray, head: np.ndarray, rows: int, oldest: int, behind: int, on: int
) -> tuple[np.ndarray, np.ndarray]:
    """Around transitions `index` [B]: slots of the latest `behind` rows [B, behind], and of `on` transitions [B, on].

    Both contain the transition itself. Before its episode's start, or the `oldest` age that is known, the first row is
    repeated; after its end, or that of the stream, the last transition.
    """
    head, past, future = head[index // rows], [index], [index]
    for _ in range(behind - 1):
        known = (flags[past[-1]] & FIRST == 0) & ((head - past[-1]) % rows < oldest)
        past.append(np.where(known, preceding(past[-1], rows), past[-1]))
    for _ in range(on - 1):
        after = following(future[-1], rows)
        going = (flags[after] & LAST == 0) & ((head - after) % rows != 0)
        future.append(np.where(going, after, future[-1]))
    return np.stack(past[::-1], axis=-1), np.stack(future, axis=-1)


def newest(obs: Tree, stack: int) -> Tree:
    """Of stacks [N, A, stack * C, …] the last frames [N, A, C, …]; C: channels of an image, else 1."""
    return obs if stack == 1 else map_tree(lambda x: x[:, :, -(x.shape[2] // stack) :], obs)


def stacked(frames: Tree, slots: np.ndarray) -> Tree:
    """The stacks [*index, A, k * C, …] of the frames [slots, A, C, …] that lie in slots [*index, k]."""

    def together(array: np.ndarray) -> np.ndarray:
        found = np.moveaxis(array.take(slots, axis=0), slots.ndim - 1, slots.ndim)  # [*index, A, k, C, …]
        return found.reshape(*found.shape[: slots.ndim], -1, *array.shape[3:])

    return map_tree(together, frames)
