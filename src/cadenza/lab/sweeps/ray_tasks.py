"""Jobs on the machines of a Ray cluster. Each is the same process as on this one, started by a task at the other end.

The folder of the runs must be one that all machines share, under the same path, and cadenza must be installed on each.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, install
from cadenza.lab.sweeps.jobs import Job, let_go, spawn
from cadenza.records.lock import is_held

try:
    import ray
    from ray.exceptions import RayError, TaskCancelledError
except ImportError as problem:
    raise MissingExtraError(f"--on ray needs an extra: {install('ray')}") from problem

TICK = 0.1
CONNECT_SECONDS = 5.0
STOPPED, LOST = 143, -9  # exit codes of a process that was told to stop, and of one that was killed


class RayTasks:
    """So many tasks at a time; with no address, the cluster of RAY_ADDRESS, or one of this machine alone."""

    def __init__(self, slots: int, address: str | None) -> None:
        if address is not None:
            _answers(address)
        own = {} if address or os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
        except (ConnectionError, RuntimeError, ValueError) as problem:
            raise CadenzaError(f"--on {address or 'ray'}: no Ray cluster there ({problem})") from None
        self.slots = slots
        sizes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        self._cores = max(1, min(sum(sizes) // slots, max(sizes)))
        self._task = ray.remote(num_cpus=self._cores, max_retries=0)(work)  # who lost it decides about another try
        self._running: dict[Any, Job] = {}
        self._cancelled: set[Any] = set()
        self._signals = 0

    def start(self, job: Job) -> None:
        self._running[self._task.remote(job, self._cores)] = job

    def ended(self) -> Iterator[tuple[Job, int]]:
        if self._signals:
            for task in self._running.keys() - self._cancelled:
                self._cancelled.add(task)
                ray.cancel(task)
        if self._signals > 1:  # leave at once: runs save by themselves when their task is gone
            while self._running:
                yield self._running.popitem()[1], STOPPED
            return
        done = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)[0] if self._running else []
        for task in done:
            job = self._running[task]
            try:
                code = int(ray.get(task))
            except TaskCancelledError:
                if is_held(job.folder.path):  # its process is saving
                    continue
                code = STOPPED
            except RayError:  # the task's worker, or its whole machine, is gone
                code = LOST
            del self._running[task]
            yield job, code

    def stop(self, number: int) -> None:
        self._signals += 1  # Ray is not to be called from a signal's handler

    def close(self) -> None:
        ray.shutdown()


def _answers(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host:  # `auto`
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError) as problem:
        raise ConfigError(f"--on {address}: nobody answers there ({problem})") from None


def work(job: Job, cores: int) -> int:
    """Where a job runs: its exit code. A task that is cancelled or killed closes the pipe, and the run saves."""
    process = spawn(job, cores)
    try:
        while process.poll() is None:
            time.sleep(TICK)  # a wait without end would not hear that the task is cancelled
        return process.returncode
    finally:
        let_go(process)
        process.wait()
