"""Jobs in processes on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from cadenza.envs.vector import share_of_cores
from cadenza.lab.sweeps.jobs import Job, let_go, spawn


class LocalProcesses:
    """So many at a time, each with its share of the processors; they save and stop when this process is gone."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._cores = share_of_cores(slots)
        self._running: list[tuple[Job, subprocess.Popen[bytes]]] = []
        self._signal: int | None = None

    def start(self, job: Job) -> None:
        process = spawn(job, self._cores)
        self._running.append((job, process))
        if self._signal is not None:  # it came while the process started; one that has done nothing may hear it twice
            process.send_signal(self._signal)

    def ended(self) -> Iterator[tuple[Job, int]]:
        for job, process in list(self._running):
            code = process.poll()
            if code is not None:
                let_go(process)
                self._running.remove((job, process))
                yield job, code

    def stop(self, number: int) -> None:
        self._signal = number
        for _, process in self._running:
            process.send_signal(number)

    def close(self) -> None:
        for _, process in self._running:
            let_go(process)
        for _, process in self._running:
            process.wait()
        self._running.clear()
