"""Interrupt the main thread when an environment that runs in it hangs."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from types import FrameType
from typing import Any

from cadenza.envs.sequential import IDLE, INDEX, STAGE, Mark

# Windows has no alarms, and no signal ends a system call there: a hang is interrupted once it is back in Python.
HAS_ALARM = hasattr(signal, "SIGALRM")
ALARM = signal.SIGALRM if HAS_ALARM else signal.SIGILL  # which Windows defines and never sends
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
    reported: tuple[int, ...] = ()
    looks = 0
    while not stop.wait(pause):
        now = tuple(mark)
        looks = looks + 1 if now == last and now[STAGE] != IDLE else 0
        last = now
        if looks >= LOOKS:
            looks = 0
            if _suspect is not None and _suspect[1] == now and now != reported:  # the signal has no effect
                reported = now
                advice = "nothing interrupts native code: end this process, or set environment.vectorize=workers"
                sys.stderr.write(f"warning: environment {now[INDEX]} hangs, and {advice}\n")
            _suspect = (mark, now)
            _interrupt()


def _interrupt() -> None:
    if HAS_ALARM:
        signal.pthread_kill(threading.main_thread().ident or 0, ALARM)
    else:
        _thread.interrupt_main(ALARM)


def _listen() -> None:
    """Install the handler once; foreign alarms are passed on to the handler that was there before."""
    global _previous
    if signal.getsignal(ALARM) is not _alarmed:
        _previous = signal.signal(ALARM, _alarmed)


def _alarmed(number: int, frame: FrameType | None) -> None:
    global _suspect
    suspect, _suspect = _suspect, None
    if suspect is not None:
        mark, unchanged = suspect
        if tuple(mark) == unchanged:
            raise Hung
    elif callable(_previous):
        _previous(number, frame)
