"""Ctrl-C and the cluster's signals: remembered, then obeyed at the next boundary. A second Ctrl-C leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

STDERR = 2  # sys.stderr may be no file, in a notebook for one
EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGUSR1": 75}


class Signals:
    """While entered, `requested` holds the name of the signal that asked the run to stop, if any."""

    def __init__(self) -> None:
        self.requested: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for name in EXIT_CODES:
                if hasattr(signal, name):  # Windows has no SIGUSR1
                    number = getattr(signal, name)
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name == "SIGINT" and self.requested is not None:
            os.write(STDERR, b"\nleft at once; the last checkpoint is intact\n")
            os._exit(EXIT_CODES["SIGINT"])  # safe at any point: every file is replaced whole
        if self.requested is None:
            self.requested = name
            os.write(STDERR, f"\n{name}: saving at the next boundary …\n".encode())
