"""A job: start or continue one run of a trial, in a process that ends with the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cadenza.base import blas
from cadenza.base.files import SafePath
from cadenza.config.convert import to_dict
from cadenza.config.load import read
from cadenza.errors import ConfigError, LockedError
from cadenza.records.folder import RunFolder

if TYPE_CHECKING:
    from cadenza.engine.events import Event
    from cadenza.engine.launch import Result

LOCK_SECONDS = 60.0  # how long to wait for a process whose sweep was killed, and which is saving the run


@dataclass(frozen=True)
class Job:
    """A run to train to its end, or until a metric is measured at or after some point."""

    trial: int
    seed: int
    root: Path
    run: str
    config: SafePath
    log: SafePath
    metric: str = ""
    until: tuple[str, int] | None = None  # a unit (env_steps or updates) and an amount

    @property
    def command(self) -> list[str]:
        """The command line of the job's process."""
        words = [sys.executable, "-m", "cadenza", "trial", str(self.config), self.run, "--runs-dir", str(self.root)]
        if self.until is not None:
            unit, amount = self.until
            words += ["--until", f"{unit}={amount}", "--metric", self.metric]
        return words

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.root / self.run)


class Backend(Protocol):
    """What runs jobs: processes on this machine, or tasks of a Ray cluster."""

    slots: int  # largest number of jobs at the same time

    def start(self, job: Job) -> None:
        """Start a job."""

    def poll(self) -> Iterator[tuple[Job, int]]:
        """Yield the jobs that are over, with their exit codes (below 0: killed by that signal); never wait."""

    def stop(self, number: int) -> None:
        """Send a signal to every running job; called from a signal handler."""

    def close(self) -> None:
        """Let the remaining jobs save and stop, and release everything."""


def spawn(job: Job, cores: int) -> subprocess.Popen[bytes]:
    """Start the process of a job, with this number of cores.

    It saves and stops when its standard input closes: by `close_stdin`, or because this process has died.
    """
    from cadenza.envs.vector import limited_to

    with job.log.appending() as log:
        return subprocess.Popen(
            job.command,
            stdin=subprocess.PIPE,  # nothing is written to it; closing it is the signal
            stdout=log,
            stderr=log,
            env=limited_to(cores, os.environ),
            start_new_session=True,  # so that Ctrl-C reaches it only once, through this process
        )


def close_stdin(process: subprocess.Popen[bytes]) -> None:
    """Ask a process that `spawn` started to save and stop."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def train(config: Path, root: Path, run: str, until: tuple[str, int] | None = None, metric: str = "") -> Result:
    """Start the run, or continue it; stop it at `until` as a signal would, once `metric` is measured there."""
    settings = read(config)
    blas.choose(settings.runtime.blas)  # before NumPy is imported
    from cadenza.engine.events import Row, Started
    from cadenza.lab import session

    stop: Callable[[], None] | None = None

    def reached(row: Mapping[str, Any]) -> bool:
        return until is not None and row.get(metric) is not None and row[until[0]] >= until[1]

    def listen(event: Event) -> None:
        nonlocal stop
        if isinstance(event, Started):
            stop = event.stop
        elif isinstance(event, Row) and stop is not None and reached(event.row):
            stop()

    folder = RunFolder(root / run)
    if not folder.path.exists():
        return session.train(settings, root, ["cadenza", "train", str(config)], True, [listen], run_id=run)
    if folder.settings() != to_dict(settings):
        raise ConfigError(f"{folder.config} differs from the config of the sweep ({config}): put it back")
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return session.resume(folder, quiet=True, trust=True, on_event=[listen])
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def stop_with_parent() -> None:
    """Stop this process as SIGTERM would when its standard input closes: its parent has died or asks it to."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        if os.name == "nt":  # where `kill` leaves no time to save
            signal.raise_signal(signal.SIGTERM)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
