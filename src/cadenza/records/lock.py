"""One writer per run: an operating-system lock on `<run>/lock`, which is released when its process ends."""

from __future__ import annotations

import json
import os
import platform
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cadenza.base.files import SafePath
from cadenza.base.parsing import ParseError, json_object
from cadenza.errors import LockedError, StorageError

LOCK_NAME = "lock"
# A viewer that calls `is_held` has the lock for microseconds: one refusal alone does not prove a writer.
ATTEMPTS = 5
LONGEST = 4096  # bytes of the lock's text
PAUSE_SECONDS = 0.02

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    FAR = 1 << 30  # locks are mandatory there: lock a byte beyond the text, so that others can read who holds it

    def _lock(file: int, shared: bool) -> None:
        os.lseek(file, FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except PermissionError as refused:
            raise BlockingIOError from refused

    def _unlock(file: int) -> None:
        os.lseek(file, FAR, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]

else:

    def _lock(file: int, shared: bool) -> None:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


class RunLock:
    """The lock of a run or a sweep, held from `acquire` to `release`, or as a context; a child does not keep it."""

    def __init__(self, run: Path, kind: str = "run") -> None:
        self.path, self.kind = run / LOCK_NAME, kind
        self._place = SafePath(run) / LOCK_NAME
        self._file: int | None = None

    def acquire(self) -> None:
        file = self._place.open(os.O_RDWR | os.O_CREAT)
        try:
            self._wait(file)
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
            os.write(file, json.dumps(_identity()).encode())
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _own_locks.add(self)

    def release(self) -> None:
        if self._file is not None:
            _unlock(self._file)
            self.forget()

    def forget(self) -> None:
        """Close this process's descriptor without releasing the lock: for a forked child, whose parent keeps it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        _own_locks.discard(self)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *problem: object) -> None:
        self.release()

    def _wait(self, file: int) -> None:
        for attempt in range(ATTEMPTS):
            try:
                return _lock(file, shared=False)
            except BlockingIOError:
                if attempt < ATTEMPTS - 1:
                    time.sleep(PAUSE_SECONDS)
            except OSError as problem:
                raise StorageError(f"cannot lock {self.path}: {problem.strerror}") from problem
        raise LockedError(f"{self.kind} {self.path.parent.name} is in use by {describe(holder(self.path.parent))}")


_own_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_own_locks):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def is_held(run: Path) -> bool:
    """Return whether a living process writes to the run; safe to call at any time."""
    try:
        file = (SafePath(run) / LOCK_NAME).open()
    except OSError:
        return False
    try:
        _lock(file, shared=True)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(file)
    return False


def holder(run: Path) -> dict[str, Any]:
    """Return the process that took the lock last: pid, host, boot_id, started; nothing if that cannot be read."""
    with suppress(OSError, ParseError):
        return json_object((SafePath(run) / LOCK_NAME).read_bytes(LONGEST))
    return {}


def describe(process: dict[str, Any]) -> str:
    """Return a process that holds a lock in words."""
    if not process:
        return "another process"
    return f"process {process.get('pid')} on {process.get('host')} since {process.get('started')}"


def _identity() -> dict[str, Any]:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "boot_id": boot.read_text().strip() if boot.exists() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
