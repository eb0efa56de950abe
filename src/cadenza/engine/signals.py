"""Ctrl-C and the cluster's signals: remembered, then obeyed at the next boundary. A second Ctrl-C leaves at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGUSR1": 75}  # SIGHUP: the terminal is gone
STOP = "stop"  # what `requested` holds when the run was asked to stop by a listener
SHOW_CURSOR = "\x1b[?25h"  # which a live table hides
STDERR = 2  # sys.stderr may be no file, in a notebook for one


class Signals:
    """While entered, `requested` holds the name of the signal that asked the run to stop, if any; else STOP, if asked.

    With `pass_on`, every signal is handed to it instead of being acted upon here.
    """

    def __init__(self, pass_on: Callable[[int], None] | None = None) -> None:
        self._signal: str | None = None
        self._stopped = False  # beside it, so that another thread's `stop` cannot undo a signal
        self._why = ""
        self._pass_on = pass_on
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for name in EXIT_CODES:
                if hasattr(signal, name):  # Windows has neither SIGHUP nor SIGUSR1
                    number = getattr(signal, name)
                    if name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN:  # else: under nohup
                        self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @property
    def requested(self) -> str | None:
        return self._signal or (STOP if self._stopped else None)

    @property
    def why(self) -> str:
        """The reason given to `stop`, unless a signal came as well."""
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


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be listening: the same Ctrl-C ends a `| tee log`
        os.write(STDERR, f"\n{text}\n".encode())
