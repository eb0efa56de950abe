"""Memory in bytes: what this machine can still give, what this process has taken, what an object holds."""

from __future__ import annotations

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

FOREIGN = ("torch", "numpy", "gymnasium")  # whose objects are not looked into
CGROUP = Path("/sys/fs/cgroup")
PAGES = 1 << 16  # looked at in one go


def available() -> int | None:
    """What can be taken without pushing others out, within a container's limit; None where nobody tells."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = (CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int((CGROUP / "memory.current").read_text()) + _reclaimable())
    except OSError:
        pass
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(found)) if found else None


def _reclaimable() -> int:
    """What a container is charged for copies of files, which go when somebody needs the room."""
    try:
        told = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(told.get("inactive_file", 0))


def total() -> int | None:
    """What there is at all, within a container's limit; None where nobody tells."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
    except OSError:
        return here
    return here if limit == "max" else min(here, int(limit))


def resident() -> int | None:
    """What this process holds now, shared libraries included; the most it ever held where only that is told."""
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
    """How much of these pieces of memory (address -> bytes) is there: what was never used takes nothing. Else all."""
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
            return sum(min(size, _present(pagemap, address, size)) for address, size in pieces.items())
    except OSError:
        return sum(pieces.values())


def _present(pagemap: IO[bytes], address: int, size: int) -> int:
    first, end = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    pagemap.seek(first * 8)
    found = 0
    for start in range(first, end, PAGES):
        entries = np.frombuffer(pagemap.read(min(PAGES, end - start) * 8), np.uint64)
        found += int((entries >> np.uint64(63)).sum())
    return found * mmap.PAGESIZE


def arrays(root: Any) -> list[Any]:
    """Every array and tensor that can be reached from `root` through attributes and containers, once each."""
    seen: set[int] = set()
    found, pending = [], [root]
    while pending:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray | torch.Tensor):
            found.append(thing)
        else:
            pending.extend(_parts(thing))
    return found


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
    """Address -> bytes of each piece of memory that holds an array or a tensor; views count as what they look into.

    Arrays that are mapped from files do not count: their memory can be had back at any time.
    """
    found = {}
    for thing in arrays(root):
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif not isinstance(owner := _owner(thing), np.memmap):
            found[owner.__array_interface__["data"][0]] = owner.nbytes
    return found


def mapped(root: Any) -> dict[int, int]:
    """The same for arrays that are mapped from files."""
    owners = [_owner(thing) for thing in arrays(root) if isinstance(thing, np.ndarray)]
    return {one.__array_interface__["data"][0]: one.nbytes for one in owners if isinstance(one, np.memmap)}


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
