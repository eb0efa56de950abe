"""The process that hosts a share of a vector's environments; `workers.py` starts it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from cadenza.envs.sharing import share_arrays, share_marks
from cadenza.envs.slice import PROGRESS, Slice, Trouble
from cadenza.errors import CadenzaError

OK, FAILED = b"+", b"-"
RESTORE, CLOSE = b"restore", b"close"  # any other command is the number of the buffer to step into
# the parent blocks them while it starts a worker
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1


def main(socket: int, memory: int, worker: int, workers: int, parent: int) -> None:
    """Obey the parent until it says so or is gone."""
    for number in HELD:  # sent to the whole group; the parent decides what follows
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # even while an environment hangs
    if os.getppid() != parent:
        return
    mark = share_marks(memory, workers)[worker]
    mark[PROGRESS] = 1  # the interpreter is up
    parent_line = Connection(socket)
    try:
        serve(parent_line, memory, workers, mark)
    except (EOFError, ConnectionError):  # the parent is gone
        return


def serve(line: Connection[Any, Any], memory: int, workers: int, mark: Any) -> None:
    make_env, low, high, num_envs, seeds = line.recv()
    try:
        part = Slice(make_env, high - low, seeds, mark)
    except (Trouble, CadenzaError) as problem:
        return report(line, problem)
    line.send_bytes(OK)
    line.send(part.layout)
    buffers, actions = share_arrays(memory, workers, line.recv(), num_envs, fresh=False)
    mine = {group: array[low:high] for group, array in actions.items()}
    try:
        part.attach([buffer.rows(low, high) for buffer in buffers])
    except Trouble as problem:
        return report(line, problem)
    line.send_bytes(OK)
    while (command := line.recv_bytes()) != CLOSE:
        try:
            if command == RESTORE:
                numbers, lengths, taken = line.recv()
                part.replay(numbers, lengths, taken, 0)
            else:
                part.step(mine, int(command))
        except Trouble as problem:
            return report(line, problem)
        line.send_bytes(OK)
    part.close()


def report(line: Connection[Any, Any], problem: Exception) -> None:
    """Say what went wrong, with the traceback as the parent cannot see it."""
    line.send_bytes(FAILED)
    if isinstance(problem, Trouble):
        cause = problem.__cause__
        text = "".join(traceback.format_exception(cause)).rstrip() if cause else ""
        line.send((problem.index, problem.stage, problem.reason, text))
    else:
        line.send(problem)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
