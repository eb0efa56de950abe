"""Interrupts the main thread when an environment that runs in it hangs."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from cadenza.envs.slice import IDLE, STAGE, Mark

LOOKS = 4  # looks at an unmoved mark before it counts as hung; looks, not seconds, so that a suspended process is safe


class Hung(BaseException):
    """Raised inside the hanging environment; not an Exception, so that the environment does not swallow it."""


class Watchdog:
    """A thread that looks at a mark now and then. Only the main thread can be interrupted; elsewhere it is idle."""

    def __init__(self, mark: Mark, timeout_seconds: float) -> None:
        self._stop = threading.Event()
        if threading.current_thread() is threading.main_thread():
            _listen()
            arguments = (mark, timeout_seconds / LOOKS, self._stop)
            threading.Thread(target=_watch, args=arguments, name="environment watchdog", daemon=True).start()

    def close(self) -> None:
        self._stop.set()


_suspect: tuple[Mark, tuple[int, ...]] | None = None  # set just before the signal, read by its handler
_previous: Any = None


def _watch(mark: Mark, pause: float, stop: threading.Event) -> None:
    global _suspect
    seen: tuple[int, ...] = ()
    looks = 0
    while not stop.wait(pause):
        now = tuple(mark)
        looks = looks + 1 if now == seen and now[STAGE] != IDLE else 0
        seen = now
        if looks >= LOOKS:
            looks = 0
            _suspect = (mark, now)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


def _listen() -> None:
    """Take SIGALRM over once; alarms that are not ours go to whoever had it before."""
    global _previous
    if signal.getsignal(signal.SIGALRM) is not _alarmed:
        _previous = signal.signal(signal.SIGALRM, _alarmed)


def _alarmed(number: int, frame: FrameType | None) -> None:
    global _suspect
    suspect, _suspect = _suspect, None
    if suspect is not None:
        mark, seen = suspect
        if tuple(mark) == seen:
            raise Hung
    elif callable(_previous):
        _previous(number, frame)
