"""The command line in processes forked from a server that has torch imported.

A start takes milliseconds, and kills, signals and locks are real.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from cadenza.records.folder import RunFolder, find

PATIENCE = 60.0
TICK = 0.005

forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(
    [
        "cadenza.cli.main",
        "cadenza.engine.launch",
        "cadenza.engine.build",
        "cadenza.workflows.ppo",
        "cadenza.envs.toys.toy",
        "cadenza.lab.report",
        "hydra._internal.hydra",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
        "torch._dynamo",
    ]
)


@dataclass
class Command:
    """A running command; its stderr is written to a file."""

    process: ForkServerProcess
    root: Path
    output: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end; return the exit code, negative after a kill by a signal."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, f"still running after {PATIENCE} s: {self.errors}"
        return self.process.exitcode

    @property
    def errors(self) -> str:
        return self.output.read_text()

    @property
    def run(self) -> RunFolder:
        return find(self.root, "@last")

    def until(self, reached: Callable[[], bool]) -> Command:
        """Wait until a condition holds or the process ends."""
        deadline = time.monotonic() + PATIENCE
        while not reached() and self.process.is_alive():
            assert time.monotonic() < deadline, f"waited {PATIENCE} s: {self.errors}"
            self.process.join(TICK)
        return self

    def until_locked(self) -> Command:
        return self.until(lambda: (self.root / "@last").exists() and holder(self.run) == self.pid)

    def until_training(self, steps: int = 1) -> Command:
        """Wait for a checkpoint of at least `steps` steps."""
        self.until_locked()
        return self.until(
            lambda: any(int(path.name.split("-")[1]) >= steps for path in self.run.checkpoints.glob("step-*"))
        )

    def until_stopped(self) -> Command:
        """Wait until the process stops at a failpoint."""
        return self.until(self.stopped)

    def stopped(self) -> bool:
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)


def start(arguments: Sequence[str], root: Path, failpoint: str = "", packages: Path | None = None) -> Command:
    """Start `cadenza ARGUMENTS --runs-dir ROOT` (with --quiet for trainings) without waiting.

    `packages` is a folder with further installed packages.
    """
    root.mkdir(parents=True, exist_ok=True)
    output = root.with_name(f"{root.name}-{time.monotonic_ns()}.txt")
    output.touch()
    line = [*arguments, "--runs-dir", str(root), *(["--quiet"] if arguments[0] in ("train", "resume") else [])]
    process = forkserver.Process(
        target=_main, args=(line, output, failpoint, packages), daemon=True
    )  # ends with a failed test
    process.start()
    return Command(process, root, output)


def call(arguments: Sequence[str], root: Path, failpoint: str = "", packages: Path | None = None) -> tuple[int, str]:
    """Run `cadenza ARGUMENTS` to its end; return the exit code and stderr."""
    command = start(arguments, root, failpoint, packages)
    return command.wait(), command.errors


def holder(folder: RunFolder) -> int | None:
    try:
        return int(json.loads((folder.path / "lock").read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def _main(arguments: list[str], output: Path, failpoint: str, packages: Path | None) -> None:
    os.setsid()
    if packages:
        sys.path.insert(0, str(packages))
        os.environ["PYTHONPATH"] = str(packages)  # for processes of its own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from cadenza.base import failpoints
    from cadenza.cli.main import run

    failpoints.armed = failpoints.parse(failpoint)
    code = run(arguments)
    sys.stderr.flush()
    os._exit(code)
