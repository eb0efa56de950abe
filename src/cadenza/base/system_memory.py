"""Memory in bytes: available on this machine, used by this process, held by an object."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import IO, Any

import numpy as np
import torch

FOREIGN = ("torch", "numpy", "gymnasium")  # packages whose objects are not searched
CGROUP = Path("/sys/fs/cgroup")
PAGES = 1 << 16  # read at a time
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's `mallopt`
KEPT_MEMORY = 1 << 28  # bytes: of the largest array kept, and of unused memory kept in all


def available() -> int | None:
    """Return the memory that can be allocated without swapping, within a container's limit; None if unknown."""
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        limit = (CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            limits.append(int(limit) - int((CGROUP / "memory.current").read_text()) + _reclaimable())
    except OSError:
        pass
    if not limits and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(limits)) if limits else None


def _reclaimable() -> int:
    """Return the page cache that a container is charged for, which is freed on demand."""
    try:
        statistics = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(statistics.get("inactive_file", 0))


def total() -> int | None:
    """Return the memory of the machine, within a container's limit; None if unknown."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit))


def resident() -> int | None:
    """Return the resident memory of this process, with shared libraries; its peak where only that is known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def touched(pieces: dict[int, int]) -> int:
    """Return the resident bytes of pieces of memory (address -> bytes); all bytes where the system does not tell."""
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
            return sum(min(size, _present(pagemap, address, size)) for address, size in pieces.items())
    except OSError:
        return sum(pieces.values())


def _present(pagemap: IO[bytes], address: int, size: int) -> int:
    first, end = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    pagemap.seek(first * 8)
    pages = 0
    for start in range(first, end, PAGES):
        entries = np.frombuffer(pagemap.read(min(PAGES, end - start) * 8), np.uint64)
        pages += int((entries >> np.uint64(63)).sum())
    return pages * mmap.PAGESIZE


def arrays(root: Any) -> list[Any]:
    """Return every array and tensor that can be reached from `root` through attributes and containers, once each."""
    visited: set[int] = set()
    leaves, pending = [], [root]
    while pending:
        thing = pending.pop()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        if isinstance(thing, np.ndarray | torch.Tensor):
            leaves.append(thing)
        else:
            pending.extend(_parts(thing))
    return leaves


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set):
        yield from thing
    elif isinstance(thing, type | ModuleType | FunctionType | MethodType):
        return
    elif type(thing).__module__.split(".")[0] not in FOREIGN:
        if is_dataclass(thing):  # those with slots have no __dict__
            yield from (getattr(thing, field.name) for field in fields(thing))
        yield from getattr(thing, "__dict__", {}).values()


def blocks(root: Any) -> dict[int, int]:
    """Return address -> bytes of each piece of memory that holds an array or a tensor; views count as their base.

    Arrays that are mapped from files do not count: their memory can be freed at any time.
    """
    pieces = {}
    for thing in arrays(root):
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            pieces[storage.data_ptr()] = storage.nbytes()
        elif not isinstance(owner := _owner(thing), np.memmap):
            pieces[owner.__array_interface__["data"][0]] = owner.nbytes
    return pieces


def mapped(root: Any) -> dict[int, int]:
    """Return address -> bytes of the arrays that are mapped from files."""
    owners = [_owner(thing) for thing in arrays(root) if isinstance(thing, np.ndarray)]
    return {owner.__array_interface__["data"][0]: owner.nbytes for owner in owners if isinstance(owner, np.memmap)}


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def keep_memory() -> bool:
    """Make glibc reuse the memory of large arrays instead of returning it: fresh pages cost as much as a copy.

    Return whether that was possible.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # the former first: where it is refused (glibc before 2.35), the latter alone would make things worse
    return bool(set_option and set_option(M_MMAP_THRESHOLD, KEPT_MEMORY) and set_option(M_TRIM_THRESHOLD, KEPT_MEMORY))
