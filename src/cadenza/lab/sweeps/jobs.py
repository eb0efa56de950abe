"""One run of a trial as a piece of work: begun or gone on with, in a process of its own that ends with its starter."""

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

from cadenza.base.files import SafePath
from cadenza.config.convert import to_dict
from cadenza.config.load import read
from cadenza.errors import ConfigError, LockedError
from cadenza.records.folder import RunFolder

if TYPE_CHECKING:
    from cadenza.engine.events import Event
    from cadenza.engine.launch import Result

LOCK_SECONDS = 60.0  # how long a run may still be held by a process that lost its sweep and is saving


@dataclass(frozen=True)
class Job:
    """A run to train until its end, or until a metric is measured at or after some point."""

    trial: int
    seed: int
    root: Path
    run: str
    config: SafePath
    log: SafePath
    metric: str = ""
    until: tuple[str, int] | None = None  # a unit and an amount of it

    @property
    def command(self) -> list[str]:
        line = [sys.executable, "-m", "cadenza", "trial", str(self.config), self.run, "--runs-dir", str(self.root)]
        return (
            line
            if self.until is None
            else [*line, "--until", f"{self.until[0]}={self.until[1]}", "--metric", self.metric]
        )

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.root / self.run)


class Engine(Protocol):
    """Where jobs run: in processes here, or on the machines of a Ray cluster."""

    slots: int  # jobs at the same time

    def start(self, job: Job) -> None: ...

    def ended(self) -> Iterator[tuple[Job, int]]:
        """Jobs that are over, with their exit codes (below 0: killed by that signal); comes back at once."""

    def stop(self, number: int) -> None:
        """Hand a signal to every job that runs."""

    def close(self) -> None: ...


def spawn(job: Job, cores: int) -> subprocess.Popen[bytes]:
    """The job's process. It saves and stops when its standard input closes: by `let_go`, or because we are gone."""
    from cadenza.envs.vector import limited_to

    with job.log.appending() as log:
        return subprocess.Popen(
            job.command,
            stdin=subprocess.PIPE,  # never written to: that it closes is the message
            stdout=log,
            stderr=log,
            env=limited_to(cores, os.environ),
            start_new_session=True,  # so that Ctrl-C reaches it once, through us
        )


def let_go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def train(config: Path, root: Path, run: str, until: tuple[str, int] | None = None, metric: str = "") -> Result:
    """Begin the run, or go on with it; `until` stops it there as a signal would."""
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

    folder, settings = RunFolder(root / run), read(config)
    if not folder.path.exists():
        return session.train(settings, root, ["cadenza", "train", str(config)], True, [listen], run_id=run)
    own = folder.settings() == to_dict(settings)
    if not own:
        raise ConfigError(f"{folder.config} is not what the sweep asked for ({config}): put it back")
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return session.resume(folder, quiet=True, trust=own, on_event=[listen])
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def end_with_starter() -> None:
    """Stop as by SIGTERM when whoever started this process is gone, which closes its end of our standard input."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
