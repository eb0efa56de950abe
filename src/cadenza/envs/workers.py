"""Environments in worker processes, for steps that cost more than a message. The results are those of one process."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from cadenza.envs.layout import Array, Layout
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.envs.pipes import Pipes, PolledPipes
from cadenza.envs.sharing import named_file, nameless_file, open_named, share_arrays, share_marks
from cadenza.envs.vector import BUILD, INDEX, LOOKS, PROGRESS, STAGE, MakeEnv, StageError, Vector, starting_fault
from cadenza.envs.worker_main import CLOSE, IGNORED, OK, RESTORE
from cadenza.errors import CadenzaError

START_SECONDS = 120.0  # for an interpreter to start on a busy machine
CLOSE_SECONDS = 5.0
INHERITS = hasattr(select, "poll")  # whether processes inherit sockets and files; not on Windows
# as in process: an environment's own linear algebra must round alike, and there is a process for every core already
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}


class Workers(Vector):
    """A vector whose worker processes each host neighbouring environments and write into shared memory.

    `make_env` is pickled, so it must be importable. `id` replaces the id in the spec, where workers use another.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        num_envs: int,
        seeds: EpisodeSeeds,
        timeout_seconds: float = 60.0,
        workers: int = 2,
        id: str | None = None,
    ) -> None:
        workers = min(workers, num_envs)
        bounds = np.linspace(0, num_envs, workers + 1).astype(int).tolist()
        path = None if INHERITS else named_file()
        memory = nameless_file() if path is None else open_named(path)
        marks = share_marks(memory, workers)
        self._workers: list[Process] = []
        try:
            for index, (low, high) in enumerate(pairwise(bounds)):
                process = Process(memory, path, index, workers, low, high, marks[index], timeout_seconds)
                self._workers.append(process)
                process.send((make_env, low, high, num_envs, replace(seeds, first_env=seeds.first_env + low)))
            layout = self._receive_layout()
            layout = replace(layout, spec=replace(layout.spec, id=id or layout.spec.id))
            buffers, self._actions = share_arrays(memory, workers, layout, num_envs, fresh=True)
            for process in self._workers:
                process.send(layout)
            self._wait()
            super().__init__(layout, num_envs, seeds, buffers)
        except BaseException as problem:
            self._kill()
            if isinstance(problem, StageError):
                raise starting_fault(problem, seeds) from problem.__cause__
            raise
        finally:
            os.close(memory)
            if path is not None:
                with suppress(OSError):  # Windows deletes it later, with the last process that has it open
                    os.unlink(path)

    def close(self) -> None:
        """End the processes, asking first so that environments can close what they hold open."""
        for process in self._workers:
            process.ask_to_close()
        for process in self._workers:
            process.end(CLOSE_SECONDS)
        self._workers = []

    def _receive_layout(self) -> Layout:
        """Wait until all environments are made and reset; return their layout, which is the same for all."""
        self._wait()
        layouts: list[Layout] = [process.receive() for process in self._workers]
        return layouts[0]

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        for group, array in self._actions.items():
            array[...] = action[group]
        command = b"%d" % turn
        for process in self._workers:
            process.command(command)
        self._wait()
        step = self._buffers[turn].step
        ended: list[int] = np.flatnonzero(step.terminated | step.truncated).tolist()
        return ended

    def _restore(self, state: dict[str, Any] | None) -> None:
        running = self._ledger.state_dict()
        ends = np.cumsum(running["lengths"])
        for process in self._workers:
            low, high = process.low, process.high
            first, last = ends[low] - running["lengths"][low], ends[high - 1]
            actions = {group: array[first:last] for group, array in running["actions"].items()}
            process.command(RESTORE)
            process.send((running["numbers"][low:high].tolist(), running["lengths"][low:high].tolist(), actions))
        self._wait()

    def _wait(self) -> None:
        """Wait for an answer from every worker; kill all processes if one reports a failure."""
        try:
            for process in self._workers:
                process.wait()
        except (StageError, CadenzaError):
            self._kill()
            raise

    def _kill(self) -> None:
        for process in self._workers:
            process.kill()
        self.close()


class Process:
    """The parent's end of one worker."""

    def __init__(
        self, memory: int, path: str | None, index: int, workers: int, low: int, high: int, mark: Array, timeout: float
    ) -> None:
        self.low, self.high = low, high
        self._mark, self._timeout = mark, timeout
        self._line: Connection[Any, Any] | Pipes
        self._poll: Callable[[float], Any]  # seconds to whether there is an answer
        command = [sys.executable, "-P", "-m", "cadenza.envs.worker_main"]
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        if path is not None:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [*command, path, str(index), str(workers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # Ctrl-C is for the parent
            )
            assert self._process.stdout is not None
            assert self._process.stdin is not None
            self._line = pipes = PolledPipes(self._process.stdout, self._process.stdin)
            self._poll = pipes.poll
            return
        ours, theirs = socket.socketpair()
        arguments = (memory, index, workers, theirs.fileno(), os.getpid())
        with theirs, _signals_blocked():
            self._process = subprocess.Popen(
                [*command, *map(str, arguments)],
                pass_fds=(theirs.fileno(), memory),
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout carries results; what environments print is not one
                env=environment,
            )
        self._line = Connection(ours.detach())
        poll = select.poll()
        poll.register(self._line.fileno(), select.POLLIN)
        self._poll = lambda seconds: poll.poll(seconds * 1000)

    def send(self, message: Any) -> None:
        with suppress(ConnectionError):  # a dead worker shows at the next wait, where there is more to say about it
            self._line.send(message)

    def command(self, command: bytes) -> None:
        with suppress(ConnectionError):
            self._line.send_bytes(command)

    def receive(self) -> Any:
        try:
            return self._line.recv()
        except (EOFError, ConnectionError):
            raise self._death() from None

    def wait(self) -> None:
        """Wait for the answer to a command; raise the worker's report, or a StageError if it died or hangs."""
        last: tuple[int, ...] = ()
        looks = 0
        while not self._poll(self._timeout / LOOKS):
            now = tuple(self._mark.tolist())
            looks = looks + 1 if now == last else 0
            last = now
            enough = LOOKS if now[PROGRESS] else LOOKS * max(1.0, START_SECONDS / self._timeout)
            if looks >= enough:
                raise self._stage_error(f"took longer than {self._timeout:g} s")
        try:
            answer = self._line.recv_bytes()
        except (EOFError, ConnectionError):
            raise self._death() from None
        if answer != OK:
            raise self._receive_report()

    def ask_to_close(self) -> None:
        self.command(CLOSE)

    def kill(self) -> None:
        self._process.kill()

    def end(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._line.close()

    def _receive_report(self) -> Exception:
        report = self.receive()
        if isinstance(report, CadenzaError):
            return report
        index, stage, reason, traceback = report
        error = StageError(self.low + index, stage, reason)
        if traceback:
            error.add_note(f"In the worker process:\n{traceback}")
        return error

    def _death(self) -> StageError:
        code = self._process.wait()
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        return self._stage_error(f"ended its worker process {how}")

    def _stage_error(self, reason: str) -> StageError:
        return StageError(self.low + int(self._mark[INDEX]), int(self._mark[STAGE]) or BUILD, reason)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals that a worker ignores while it starts: it inherits the mask, so none arrives too early."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
