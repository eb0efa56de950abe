"""Memory in bytes: what this machine can still give, what this process has taken, what an object holds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

FOREIGN = ("torch", "numpy", "gymnasium")  # whose objects are not looked into
CGROUP = Path("/sys/fs/cgroup")


def available() -> int | None:
    """What can be taken without pushing others out, within a container's limit; None where nobody tells."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = (CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int((CGROUP / "memory.current").read_text()))
    except OSError:
        pass
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(found)) if found else None


def peak() -> int | None:
    """The most this process has held so far."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
        else:
            while isinstance(thing.base, np.ndarray):
                thing = thing.base
            if not isinstance(thing, np.memmap):
                found[thing.__array_interface__["data"][0]] = thing.nbytes
    return found
