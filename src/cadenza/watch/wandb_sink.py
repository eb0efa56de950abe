"""The Weights & Biases sink: a separate process follows metrics.jsonl, so that W&B cannot slow the training down."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

from cadenza.engine.events import Ended, Event, Started
from cadenza.errors import MissingExtraError, install

PATIENCE_SECONDS = 10.0  # that the end of a run waits for W&B
UNSENT = 3  # exit code of the process when W&B could not be reached

spec = find_spec("wandb")
if spec is None or spec.origin is None:  # a folder `wandb`, as W&B leaves behind, is not the package
    raise MissingExtraError(f"logging.wandb needs an extra: {install('wandb')}")


class Wandb:
    """A listener that starts the process with the run and ends it with it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            command = [sys.executable, "-m", "cadenza.watch.wandb_process", str(event.folder.path.absolute())]
            self._log = event.folder.log.with_name("wandb.log")
            try:
                with self._log.appending() as log:
                    self._process = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                    )
            except OSError as problem:
                self._warn(f"W&B receives nothing from this run: {problem.strerror or problem}")
        elif isinstance(event, Ended) and self._process is not None:
            self._end(self._process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()  # the signal that no more rows will follow
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
        sync = f"`wandb sync {self._log.root / 'wandb'}/*run-*` sends them"
        if process.returncode is None:
            self._warn(f"W&B does not answer; a process keeps trying for some minutes. No row is lost; later {sync}")
        elif process.returncode == UNSENT:
            self._warn(f"W&B could not be reached (see {self._log}). No row is lost; {sync}")
        elif process.returncode:
            self._warn(f"W&B does not have all rows (see {self._log})")
