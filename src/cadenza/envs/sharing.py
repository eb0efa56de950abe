"""Memory shared between a vector environment and its workers. It has no name, so nothing can be left behind."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np

from cadenza.envs.layout import Array, Buffer, Layout, allocate_actions, allocate_buffer

PAGE = mmap.ALLOCATIONGRANULARITY
LINE = 64  # bytes of a cache line: arrays begin on one


def nameless_file() -> int:
    """A descriptor of an empty file in memory; it is gone with the last process that holds it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cadenza-envs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def share_marks(descriptor: int, workers: int) -> Array:
    """What each worker is doing right now, [workers, 3]; it lives on the file's first pages."""
    size = -(-workers * 3 * 8 // PAGE) * PAGE
    if os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)
    return np.frombuffer(mmap.mmap(descriptor, size), np.int64, workers * 3).reshape(workers, 3)


def share_arrays(
    descriptor: int, workers: int, layout: Layout, num_envs: int, fresh: bool
) -> tuple[list[Buffer], dict[str, Array]]:
    """Two buffers and the actions behind the marks, in the same places whichever process asks; `fresh` is the first."""
    begin = -(-workers * 3 * 8 // PAGE) * PAGE
    measure = _Arena(None, begin)
    _allocate(layout, num_envs, measure, fresh)
    if os.fstat(descriptor).st_size < measure.end:
        os.ftruncate(descriptor, measure.end)
    return _allocate(layout, num_envs, _Arena(mmap.mmap(descriptor, measure.end), begin), fresh)


def _allocate(layout: Layout, num_envs: int, arena: _Arena, fresh: bool) -> tuple[list[Buffer], dict[str, Array]]:
    buffers = [allocate_buffer(layout, num_envs, arena, fresh) for _ in range(2)]
    return buffers, allocate_actions(layout.spec, (num_envs,), arena)


class _Arena:
    """Hands out arrays one behind the other; without memory it only measures."""

    def __init__(self, memory: mmap.mmap | None, begin: int) -> None:
        self._memory = memory
        self.end = begin

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> Array:
        count = int(np.prod(shape, dtype=np.int64))
        start = self.end
        self.end += -(-count * np.dtype(dtype).itemsize // LINE) * LINE
        if self._memory is None:
            return np.zeros(shape, dtype)
        return np.frombuffer(self._memory, dtype, count, start).reshape(shape)
