"""The memory that an object holds, in bytes: its arrays and tensors, each piece once."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import IO, Any

import numpy as np
import torch

FOREIGN = ("torch", "numpy", "gymnasium")  # packages whose objects are not searched
PAGES = 1 << 16  # read at a time


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
