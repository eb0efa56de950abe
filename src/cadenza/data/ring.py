"""Rows of several environments in ring buffers, in one block of memory or in a memory-mapped file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cadenza.base.files import SafePath
from cadenza.data.mapped import mapped_bytes
from cadenza.data.priorities import Priorities
from cadenza.envs.layout import allocate_actions, allocate_space
from cadenza.trees import leaves, map_tree, take
from cadenza.types import EnvSpec, Tree


class Ring:
    """One ring of `rows` rows for each environment.

    A *slot* numbers the rows of all environments, one environment's after another's. A *position* counts the rows of
    one environment since its stream began. `head` [N] holds the position of each open row, which still waits for an
    action; the rows before it are complete. `stack` is the number of frames that make an observation. With `alpha`,
    `priorities` has one for each slot from the first row on.
    """

    def __init__(self, num_envs: int, rows: int, stack: int, on_disk: bool, alpha: float | None) -> None:
        self.num_envs = num_envs
        self.rows = rows
        self.stack = stack
        self.on_disk = on_disk
        self.alpha = alpha
        self.folder: SafePath | None = None  # of the memory-mapped file; None: the system's folder for temporary files
        self.oldest = rows - stack  # greatest age of a row that may be drawn; older ones only complete its frame stack
        self.base = np.arange(num_envs) * rows
        self.sealed = np.zeros(num_envs, np.int64)  # positions before which rows lie in segments, as they are
        self.clear()
        self.move_to(np.zeros(num_envs, np.int64), is_open=False)

    @property
    def is_empty(self) -> bool:
        return not self.head.any()

    @property
    def row_bytes(self) -> int:
        return sum(int(array[:1].nbytes) for _, array in leaves(self.arrays))

    def clear(self) -> None:
        """Forget all rows, and of which fields they consist."""
        self.arrays: Tree = {}  # [slots, …] under "groups", "flags" and "state"; empty before the first row
        self.flags = np.zeros(0, np.uint8)  # [slots] bits (see `ring_steps`), the array under "flags"
        self.priorities: Priorities | None = None

    def move_to(self, head: np.ndarray, is_open: bool) -> None:
        """Set the positions of the open rows, and whether the last observations are in them."""
        self.head = head
        self.is_open = is_open
        self._find_open()

    def advance(self, envs: Any) -> None:
        """Open the next row of these environments, with which another becomes too old to be drawn."""
        self.head[envs] += 1
        self._find_open()
        if self.priorities is not None:
            self.priorities.drop(self.base[envs] + (self.head[envs] - self.oldest - 1) % self.rows)

    def _find_open(self) -> None:
        self.open_slots: np.ndarray = self.base + self.head % self.rows
        # a slice writes to a single row faster than an index
        self.open_rows: Any = self.open_slots
        if self.num_envs == 1:
            first = int(self.open_slots[0])
            self.open_rows = slice(first, first + 1)

    def allocate(self, like: Tree) -> None:
        """Make zeroed arrays for rows with the nesting, shapes and dtypes of `like` [1 or more, …], in one block."""
        fields = sorted(leaves(like), key=lambda field: -field[1].dtype.itemsize)  # so that each is aligned
        sizes = {path: leaf[:1].nbytes for path, leaf in fields}
        content, offset, views = self.block(sum(sizes.values())), 0, {}
        slots = self.num_envs * self.rows
        for path, leaf in fields:
            end = offset + slots * sizes[path]
            views[path] = content[offset:end].view(leaf.dtype).reshape(slots, *leaf.shape[1:])
            offset = end
        order = iter([path for path, _ in leaves(like)])
        self.arrays = map_tree(lambda _: views[next(order)], like)
        self.flags = self.arrays["flags"]
        if self.alpha is not None:
            self.priorities = Priorities(slots, self.alpha)

    def block(self, row_bytes: int) -> np.ndarray:
        """Return zeroed bytes for so many per slot, in memory or mapped from a nameless file."""
        size = self.num_envs * self.rows * row_bytes
        return mapped_bytes(self.folder, size, "a replay") if self.on_disk else np.zeros(size, np.uint8)

    def age(self, slots: np.ndarray) -> np.ndarray:
        """Return how many rows slots [B] lie behind the open rows of their streams."""
        return np.asarray((self.head[slots // self.rows] - slots) % self.rows)

    def complete(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return environment and slot of each complete row from position `start` [N] on, one stream after another."""
        counts = self.head - start
        env = np.repeat(np.arange(self.num_envs), counts)
        position = np.arange(len(env)) - np.repeat(counts.cumsum() - counts - start, counts)
        return env, self.base[env] + position % self.rows

    def first_position(self, age: int) -> np.ndarray:
        """Return the position [N] of the oldest row that is at most `age` rows behind the open one."""
        return np.asarray(np.maximum(self.head - age, 0))

    def complete_slots(self) -> np.ndarray:
        """Return the slots of all complete rows."""
        return self.complete(self.first_position(self.rows - 1))[1]

    def take(self, slots: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of rows by path."""
        return dict(leaves(take(self.arrays, slots)))

    def put(self, slots: np.ndarray, rows: dict[str, np.ndarray]) -> None:
        """Write rows by path."""
        for path, array in leaves(self.arrays):
            array[slots] = rows[path]


def newest(obs: Tree, stack: int) -> Tree:
    """Return the last frames [N, A, C, …] of stacks [N, A, stack * C, …]; C: channels of an image, else 1."""
    return obs if stack == 1 else map_tree(lambda x: x[:, :, -(x.shape[2] // stack) :], obs)


def bytes_for(
    spec: EnvSpec,
    num_envs: int,
    capacity: int,
    prioritized: bool = False,
    masks: Mapping[str, int] | None = None,
    extras: int = 0,
    stack: int = 1,
) -> int:
    """Return exactly how many bytes the arrays take; `masks` are widths by group, `extras` bytes per row."""
    rows, size = capacity // num_envs * num_envs, 1 + extras
    parts = [allocate_actions(spec, (1,)), {} if spec.state is None else allocate_space(spec.state, (1,))]
    for name, group in spec.groups.items():
        agents = len(group.agents)
        parts.append(newest(allocate_space(group.observation, (1, agents)), stack))
        size += agents * (4 + 1 + 1 + (masks or {}).get(name, 0))  # reward, active, died, mask
    size += sum(int(array.nbytes) for part in parts for _, array in leaves(part))
    return rows * size + (Priorities.bytes_for(rows) if prioritized else 0)
