"""The process that hosts a share of a vector's environments; `workers.py` starts it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from cadenza.envs.pipes import Pipes
from cadenza.envs.sequential import SequentialEnvs
from cadenza.envs.sharing import open_named, share_arrays, share_marks
from cadenza.envs.vector import PROGRESS, StageError
from cadenza.errors import CadenzaError

OK, FAILED = b"+", b"-"
RESTORE, CLOSE = b"restore", b"close"  # any other command is the number of the buffer to step into
# sent to the whole process group, where the parent decides what follows; it blocks them while it starts a worker
IGNORED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]
PR_SET_PDEATHSIG = 1


def main(memory: str, worker: int, workers: int, socket: int | None = None, parent: int = 0) -> None:
    """Serve the parent's commands until it asks to close or dies.

    `memory` and `socket` are inherited descriptors; without a socket, `memory` is a path and the parent's line are the
    standard streams.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    line: Connection[Any, Any] | Pipes
    if socket is None:
        line = Pipes(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
        os.dup2(2, 1)  # what environments print is no message
        file = open_named(memory)
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # even while an environment hangs
        if os.getppid() != parent:
            return
        line, file = Connection(socket), int(memory)
    mark = share_marks(file, workers)[worker]
    mark[PROGRESS] = 1  # the interpreter is up
    try:
        serve(line, file, workers, mark)
    except (EOFError, ConnectionError):  # the parent died
        return


def serve(line: Connection[Any, Any] | Pipes, memory: int, workers: int, mark: Any) -> None:
    """Make the environments that the parent asks for, then run its commands; report the first failure and return."""
    make_env, low, high, num_envs, seeds = line.recv()
    try:
        envs = SequentialEnvs(make_env, high - low, seeds, mark)
    except (StageError, CadenzaError) as problem:
        return report(line, problem)
    line.send_bytes(OK)
    line.send(envs.layout)
    buffers, actions = share_arrays(memory, workers, line.recv(), num_envs, fresh=False)
    rows = {group: array[low:high] for group, array in actions.items()}
    try:
        envs.attach([buffer.rows(low, high) for buffer in buffers])
    except StageError as problem:
        return report(line, problem)
    line.send_bytes(OK)
    while (command := line.recv_bytes()) != CLOSE:
        try:
            if command == RESTORE:
                numbers, lengths, past_actions = line.recv()
                envs.replay(numbers, lengths, past_actions, 0)
            else:
                envs.step(rows, int(command))
        except StageError as problem:
            return report(line, problem)
        line.send_bytes(OK)
    envs.close()


def report(line: Connection[Any, Any] | Pipes, problem: Exception) -> None:
    """Send a failure to the parent, with the traceback as text."""
    line.send_bytes(FAILED)
    if isinstance(problem, StageError):
        cause = problem.__cause__
        text = "".join(traceback.format_exception(cause)).rstrip() if cause else ""
        line.send((problem.index, problem.stage, problem.reason, text))
    else:
        line.send(problem)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
