"""Interrupt the main thread when an environment that runs in it hangs."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from cadenza.envs.sequential import IDLE, STAGE, Mark

LOOKS = 4  # polls of an unchanged mark before it counts as hung; polls, not seconds, so a suspended process is safe


class Hung(BaseException):
    """Raised inside the hanging environment; not an Exception, so that the environment does not swallow it."""


class Watchdog:
    """A thread that polls a mark. Only the main thread can be interrupted, so in any other it does nothing."""

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
    last: tuple[int, ...] = ()
    looks = 0
    while not stop.wait(pause):
        now = tuple(mark)
        looks = looks + 1 if now == last and now[STAGE] != IDLE else 0
        last = now
        if looks >= LOOKS:
            looks = 0
            _suspect = (mark, now)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


def _listen() -> None:
    """Install the SIGALRM handler once; foreign alarms are passed on to the handler that was there before."""
    global _previous
    if signal.getsignal(signal.SIGALRM) is not _alarmed:
        _previous = signal.signal(signal.SIGALRM, _alarmed)


def _alarmed(number: int, frame: FrameType | None) -> None:
    global _suspect
    suspect, _suspect = _suspect, None
    if suspect is not None:
        mark, unchanged = suspect
        if tuple(mark) == unchanged:
            raise Hung
    elif callable(_previous):
        _previous(number, frame)
