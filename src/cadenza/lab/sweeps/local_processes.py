"""Jobs as processes on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from cadenza.engine.signals import pass_to
from cadenza.envs.vector import share_of_cores
from cadenza.lab.sweeps.jobs import Job, close_stdin, spawn


class LocalProcesses:
    """A number of processes at the same time, each with its share of the cores; they save and stop with this one."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._cores = share_of_cores(slots)
        self._running: list[tuple[Job, subprocess.Popen[bytes]]] = []
        self._signal: int | None = None

    def start(self, job: Job) -> None:
        """Start a process for the job."""
        process = spawn(job, self._cores)
        self._running.append((job, process))
        if self._signal is not None:  # it arrived while the process started; hearing it twice does no harm then
            pass_to(process, self._signal)

    def poll(self) -> Iterator[tuple[Job, int]]:
        """Yield the jobs that are over, with their exit codes."""
        for job, process in list(self._running):
            code = process.poll()
            if code is not None:
                close_stdin(process)
                self._running.remove((job, process))
                yield job, code

    def stop(self, number: int) -> None:
        """Send a signal to every process, also to those that are just being started."""
        self._signal = number
        for _, process in self._running:
            pass_to(process, number)

    def close(self) -> None:
        """Let the processes save and stop, and wait for them."""
        for _, process in self._running:
            close_stdin(process)
        for _, process in self._running:
            process.wait()
        self._running.clear()
