"""Arrays that live in a file instead of memory. The file has no name and vanishes with the last array."""

from __future__ import annotations

import errno
import os
import tempfile

import numpy as np

from cadenza.base.files import SafePath
from cadenza.errors import StorageError


def mapped_bytes(folder: SafePath | None, size: int, what: str) -> np.ndarray:
    """Return zeroed bytes [size], mapped from a file in a folder; None is the system's temporary folder."""
    if folder is not None:
        folder.mkdir()
    try:
        with tempfile.TemporaryFile() if folder is None else folder.nameless() as file:
            reserve(file.fileno(), size)
            return np.asarray(np.memmap(file, np.uint8, "w+", shape=(size,)))
    except OSError as problem:
        where = folder or tempfile.gettempdir()
        raise StorageError(
            f"{where}: no file for {what} of {size:,} bytes ({problem.strerror or problem})"
        ) from problem


def reserve(file: int, size: int) -> None:
    """Reserve disk space for an open file: a write into a hole on a full disk would kill the process."""
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # this file system cannot do it
            raise
