"""The one way files are replaced: a reader, or a lost power line, sees the old content or the new, never a part."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from cadenza.records.failpoints import failpoint
from cadenza.records.json_text import dumps

TEMPORARY = ".tmp-"  # how leftovers of a killed process are recognised


def temporary_beside(path: Path) -> Path:
    """A fresh name in the same directory, so that moving it to `path` is one atomic rename."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file durably."""
    temporary = temporary_beside(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            failpoint("atomic:before_fsync")
            os.fsync(file.fileno())
        failpoint("atomic:before_rename")
        os.replace(temporary, path)
    except BaseException as problem:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(problem, OSError) and problem.filename is not None:
            problem.filename = str(path)  # which is the name that somebody knows
            problem.filename2 = None
        raise
    failpoint("atomic:after_rename")
    sync_dir(path.parent)


def write_out(path: Path, data: bytes) -> None:
    """For a file that a user names: a link is followed, and a device or a pipe takes what comes as it is."""
    if path.exists() and not path.is_file():
        with open(path, "wb") as device:
            device.write(data)
    else:
        write_bytes(path.resolve() if path.is_symlink() else path, data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, dumps(value, indent=2) + "\n")


def sync_dir(path: Path) -> None:
    """Make renames inside a directory durable. Windows cannot open directories and needs no such call."""
    if os.name == "nt":
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove_leftovers(directory: Path) -> None:
    """Delete what killed writers left in a directory that nobody else is writing to."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)
