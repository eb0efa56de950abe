"""Signals, of Ctrl-C or a cluster: recorded, and handled at the next boundary. A second Ctrl-C exits at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGUSR1": 75}  # SIGHUP: the terminal is gone
STOP = "stop"  # the value of `requested` after a listener called `stop`
SHOW_CURSOR = "\x1b[?25h"  # a live table hides it
STDERR = 2  # sys.stderr may be no file, in a notebook for one


class Signals:
    """A context in which `requested` is the name of the first signal that came, or STOP after `stop`, or None.

    With `pass_on`, each signal is also passed to that function, and the second Ctrl-C does not exit here.
    """

    def __init__(self, pass_on: Callable[[int], None] | None = None) -> None:
        self._signal: str | None = None
        self._stopped = False  # apart from it, so that another thread's `stop` cannot undo a signal
        self._why = ""
        self._pass_on = pass_on
        self._previous: dict[int, Any] = {}
        self.ignored: list[str] = []  # signals that were ignored already and stay so: SIGHUP under nohup

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for name in EXIT_CODES:
                if hasattr(signal, name):  # Windows has neither SIGHUP nor SIGUSR1
                    number = getattr(signal, name)
                    if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                        self.ignored.append(name)
                    else:
                        self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @property
    def requested(self) -> str | None:
        """The request to stop, if there is one."""
        return self._signal or (STOP if self._stopped else None)

    @property
    def why(self) -> str:
        """The reason for `stop`; empty if a signal came as well."""
        return "" if self._signal else self._why

    def stop(self, why: str = "") -> None:
        """Ask the run to stop, as a signal would; from any thread."""
        self._stopped, self._why = True, self._why or why

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        again, name = self._signal is not None, signal.Signals(number).name
        self._signal = self._signal or name
        if self._pass_on is not None:
            self._pass_on(number)
        elif again and name == "SIGINT":
            _say(f"{SHOW_CURSOR if os.isatty(STDERR) else ''}left at once; the last checkpoint is intact")
            os._exit(EXIT_CODES["SIGINT"])  # safe at any point: every file is replaced whole
        elif not again:
            _say(f"{name}: saving at the next boundary …")


def pass_to(process: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a child in a session of its own. On Windows it has none, and Ctrl-C reaches it without this."""
    if os.name != "nt":
        process.send_signal(number)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be listening: the same Ctrl-C ends a `| tee log`
        os.write(STDERR, f"\n{text}\n".encode())
