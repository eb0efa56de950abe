"""Python as on Windows: without the calls of POSIX that cadenza uses where they exist."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

SIGNALS = ("SIGALRM", "SIGHUP", "SIGUSR1", "pthread_sigmask", "pthread_kill", "setitimer", "alarm")
SYSTEM = (
    *("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "O_TMPFILE", "memfd_create", "posix_fallocate"),
    *("killpg", "nice", "getppid", "setsid", "sched_getaffinity"),
)  # libraries fork on Linux, and read its /proc


def remove() -> None:
    """Delete the names, and put a stand-in of `msvcrt` in place of `fcntl`."""
    import fcntl

    def locking(file: int, mode: int, count: int) -> None:
        how = fcntl.LOCK_UN if mode == windows.LK_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.flock(file, how)
        except BlockingIOError as taken:
            raise PermissionError(13, "Permission denied") from taken

    windows: Any = types.ModuleType("msvcrt")
    windows.locking, windows.LK_NBLCK, windows.LK_UNLCK = locking, 2, 0
    sys.modules["msvcrt"] = windows
    for module in ("fcntl", "resource", "termios"):
        sys.modules[module] = None
    for name in SIGNALS:
        delattr(signal, name)
    for name in SYSTEM:
        if hasattr(os, name):
            delattr(os, name)
    del select.poll
    os.supports_dir_fd = set()
    start = subprocess.Popen.__init__

    def without_descriptors(self: Any, *arguments: Any, **options: Any) -> None:
        assert not options.get("pass_fds"), "pass_fds not supported on Windows"
        start(self, *arguments, **options)

    subprocess.Popen.__init__ = without_descriptors  # type: ignore[method-assign]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables under which every Python process starts with `remove`."""
    (folder / "sitecustomize.py").write_text("from harness.without_posix import remove\nremove()\n")
    places = [str(folder), str(Path(__file__).parents[1]), *sys.path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(place for place in places if place)}
