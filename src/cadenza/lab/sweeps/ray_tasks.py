"""Jobs on the machines of a Ray cluster: tasks that start the same processes as on this machine.

All machines must have cadenza installed and share the folder of the runs under the same path.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, install
from cadenza.lab.sweeps.jobs import Job, close_stdin, spawn
from cadenza.records.lock import is_held

try:
    import ray
    from ray.exceptions import RayError, TaskCancelledError
except ImportError as problem:
    raise MissingExtraError(f"--on ray needs an extra: {install('ray')}") from problem

TICK = 0.1  # seconds between two polls
CONNECT_SECONDS = 5.0
STOPPED, LOST = 143, -9  # exit codes of a process stopped by SIGTERM, and of a killed one


class RayTasks:
    """A number of tasks at the same time.

    Without an address they run on the cluster of RAY_ADDRESS, or else on this machine alone.
    """

    def __init__(self, slots: int, address: str | None) -> None:
        if address is not None:
            _check_connection(address)
        local = {} if address or os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
        except (ConnectionError, RuntimeError, ValueError) as problem:
            raise CadenzaError(f"--on {address or 'ray'}: no Ray cluster there ({problem})") from None
        self.slots = slots
        sizes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        self._cores = max(1, min(sum(sizes) // slots, max(sizes)))
        self._task = ray.remote(num_cpus=self._cores, max_retries=0)(work)  # the sweep decides about retries
        self._running: dict[Any, Job] = {}
        self._cancelled: set[Any] = set()
        self._signals = 0

    def start(self, job: Job) -> None:
        """Submit a task for the job."""
        self._running[self._task.remote(job, self._cores)] = job

    def poll(self) -> Iterator[tuple[Job, int]]:
        """Yield the jobs that are over, with their exit codes; cancel the tasks after a signal."""
        if self._signals:
            for task in self._running.keys() - self._cancelled:
                self._cancelled.add(task)
                ray.cancel(task)
        if self._signals > 1:  # leave at once: runs save when their task is gone
            while self._running:
                yield self._running.popitem()[1], STOPPED
            return
        if not self._running:
            return
        for task in ray.wait(list(self._running), num_returns=len(self._running), timeout=0)[0]:
            job = self._running[task]
            try:
                code = int(ray.get(task))
            except TaskCancelledError:
                if is_held(job.folder.path):  # its process is saving
                    continue
                code = STOPPED
            except RayError:  # the worker of the task, or its machine, is gone
                code = LOST
            del self._running[task]
            yield job, code

    def stop(self, number: int) -> None:
        """Note a signal; `poll` acts on it, because Ray must not be called from a signal handler."""
        self._signals += 1

    def close(self) -> None:
        """Disconnect from the cluster; remaining tasks end, and their runs save."""
        ray.shutdown()


def _check_connection(address: str) -> None:
    """Refuse an address that does not answer: Ray itself would retry for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host:  # `auto`
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError) as problem:
        raise ConfigError(f"--on {address}: no answer ({problem})") from None


def work(job: Job, cores: int) -> int:
    """Run a job in a Ray task; return its exit code. Cancelling or killing the task lets the run save and stop."""
    process = spawn(job, cores)
    try:
        while process.poll() is None:
            time.sleep(TICK)  # a blocking wait would not notice that the task is cancelled
        return process.returncode
    finally:
        close_stdin(process)
        process.wait()
