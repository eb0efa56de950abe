"""Atomic replacement of files: a reader, or a loss of power, sees the old content or the new, never a part."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cadenza.base.failpoints import failpoint
from cadenza.base.files import OpenFolder, SafePath
from cadenza.base.json_text import dumps

TEMPORARY = ".tmp-"  # prefix of temporary files, by which leftovers of a killed process are recognised
_TEMPORARY_NAME = re.compile(re.escape(TEMPORARY) + r"(.+)-\d+-[0-9a-f]{8}")


def temporary_beside(path: Path) -> Path:
    """Return an unused path in the same directory, so that moving it to `path` is one atomic rename."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def write_bytes(path: Path | SafePath, data: bytes) -> None:
    """Replace the content of a file durably."""
    target = path if isinstance(path, SafePath) else SafePath(path.parent) / path.name
    try:
        with target.parent.inside() as folder:
            _replace(folder, temporary_beside(target.path).name, target.name, data)
    except OSError as problem:
        if problem.filename is not None:
            problem.filename = str(path)  # the name that the user knows
            problem.filename2 = None
        raise


def _replace(folder: OpenFolder, temporary: str, name: str, data: bytes) -> None:
    try:
        folder.create(temporary, data, partial(failpoint, "atomic:before_fsync"))
        failpoint("atomic:before_rename")
        folder.replace(temporary, name)
    except BaseException:
        with suppress(OSError):
            folder.unlink(temporary)
        raise
    failpoint("atomic:after_rename")
    folder.sync()


def write_out(path: Path | SafePath, data: bytes) -> None:
    """Write a file that a user named: follow a link, and write directly to a device or a pipe."""
    if isinstance(path, SafePath):
        write_bytes(path, data)
    elif path.exists() and not path.is_file():
        with open(path, "wb") as device:
            device.write(data)
    else:
        write_bytes(path.resolve() if path.is_symlink() else path, data)


def write_text(path: Path | SafePath, text: str) -> None:
    """Replace the content of a file by a text, durably."""
    write_bytes(path, text.encode())


def write_json(path: Path | SafePath, value: Any) -> None:
    """Replace the content of a file by indented JSON, durably."""
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


def remove_leftovers(directory: SafePath, names: Collection[str]) -> None:
    """Delete the temporary files that killed writers of `names` left in a directory without another writer."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        match = _TEMPORARY_NAME.fullmatch(leftover.name)
        if match is not None and match[1] in names and leftover.is_file():
            leftover.unlink(missing_ok=True)
