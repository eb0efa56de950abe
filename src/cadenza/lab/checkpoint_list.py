"""The checkpoints of a run as commands and the inspector list and name them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from cadenza.records.folder import RunFolder
from cadenza.records.validity import pointer

NAME = re.compile(r"step-(\d{1,18})-(\d{1,18})")
POINTERS = ("last", "best")


def listed(folder: RunFolder) -> list[dict[str, Any]]:
    """Return each checkpoint, oldest first, with its position, size, and the pointers to it."""
    entries = []
    for path in folder.checkpoints.glob("step-*"):
        with suppress(OSError):  # a running run may just remove it
            if (match := NAME.fullmatch(path.name)) and path.is_dir():
                position = {"env_steps": int(match[1]), "updates": int(match[2])}
                size = sum(file.stat().st_size for file in path.glob("*"))
                entries.append({"name": path.name, **position, "bytes": size, "pointers": pointers(folder, path.name)})
    return entries


def pointers(folder: RunFolder, name: str) -> list[str]:
    """Return which of `last` and `best` name a checkpoint."""
    return [which for which in POINTERS if pointer(folder.checkpoints / which) == name]


def title(folder: RunFolder, name: str) -> str:
    """Return the run and a checkpoint of it in words, such as `RUN at step-… (last, best)`."""
    named = ", ".join(pointers(folder, name))
    return f"{folder.id} at {name}" + (f" ({named})" if named else "")
