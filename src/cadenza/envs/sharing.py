"""Memory shared between a vector environment and its workers. It has no name, so no file can be left behind."""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from typing import Any

import numpy as np

from cadenza.envs.layout import Array, Buffer, Layout, allocate_actions, allocate_buffer

PAGE = mmap.ALLOCATIONGRANULARITY
LINE = 64  # bytes of a cache line; every array starts on one


def nameless_file() -> int:
    """Open an empty file in memory and return its descriptor; it disappears with the last process that holds it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cadenza-envs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def named_file() -> str:
    """Return an unused path for a shared file, where other processes cannot inherit a descriptor (Windows)."""
    return os.path.join(tempfile.gettempdir(), f"cadenza-envs-{os.getpid()}-{secrets.token_hex(8)}")


def open_named(path: str) -> int:
    """Open, or create, a shared file and return its descriptor. Windows deletes it when nobody has it open."""
    flags = getattr(os, "O_BINARY", 0) | getattr(os, "O_TEMPORARY", 0) | getattr(os, "O_NOINHERIT", 0)
    return os.open(path, os.O_RDWR | os.O_CREAT | flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def share_marks(descriptor: int, workers: int) -> Array:
    """Map the workers' marks [workers, 3] on the file's first pages: what each worker is doing at the moment."""
    size = -(-workers * 3 * 8 // PAGE) * PAGE
    if os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)
    return np.frombuffer(mmap.mmap(descriptor, size), np.int64, workers * 3).reshape(workers, 3)


def share_arrays(
    descriptor: int, workers: int, layout: Layout, num_envs: int, fresh: bool
) -> tuple[list[Buffer], dict[str, Array]]:
    """Map two buffers and the actions behind the marks, at the same offsets in every process.

    The first process passes `fresh=True`: it initialises the arrays.
    """
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
    """An allocator that places arrays one behind the other in `memory`; without memory it only measures their size."""

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
