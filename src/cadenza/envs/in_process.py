"""Environments stepped one after the other in this process; a watchdog interrupts the main thread when one hangs."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from cadenza.envs.layout import Array, allocate_buffer
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.envs.sequential import SequentialEnvs
from cadenza.envs.vector import IDLE, INDEX, LOOKS, STAGE, MakeEnv, Mark, StageError, Vector, starting_fault

P = ParamSpec("P")
T = TypeVar("T")
# Windows has no alarms, and no signal ends a system call there: a hang is interrupted once it is back in Python.
HAS_ALARM = hasattr(signal, "SIGALRM")
ALARM = signal.SIGALRM if HAS_ALARM else signal.SIGILL  # which Windows defines and never sends


class InProcess(Vector):
    """Environments stepped one after the other in this process: the fastest vector for light environments."""

    def __init__(self, make_env: MakeEnv, num_envs: int, seeds: EpisodeSeeds, timeout_seconds: float = 60.0) -> None:
        self._timeout = timeout_seconds
        self._mark = [0, 0, IDLE]
        self._watchdog = Watchdog(self._mark, timeout_seconds)
        try:
            self._envs = self._watched(SequentialEnvs, make_env, num_envs, seeds, self._mark)
            buffers = [allocate_buffer(self._envs.layout, num_envs) for _ in range(2)]
            self._envs.attach(buffers)
        except BaseException as problem:
            self._watchdog.close()
            if isinstance(problem, StageError):
                raise starting_fault(problem, seeds) from problem.__cause__
            raise
        weakref.finalize(self, self._watchdog.close)
        super().__init__(self._envs.layout, num_envs, seeds, buffers)

    def close(self) -> None:
        self._watchdog.close()
        self._envs.close()

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        return self._watched(self._envs.step, action, turn)

    def _restore(self, state: dict[str, Any] | None) -> None:
        running = self._ledger.state_dict()
        numbers, lengths = running["numbers"].tolist(), running["lengths"].tolist()
        self._watched(self._envs.replay, numbers, lengths, running["actions"], 0)

    def _watched(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function; raise a StageError where the watchdog finds that it takes too long."""
        try:
            return function(*args, **kwargs)
        except Hung:
            stage, self._mark[STAGE] = self._mark[STAGE], IDLE
            raise StageError(self._mark[INDEX], stage, f"took longer than {self._timeout:g} s") from None


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
