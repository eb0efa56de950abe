"""Weights & Biases beside a run: a process of its own follows metrics.jsonl, so that nothing W&B does is felt here."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

from cadenza.engine.events import Ended, Event, Started
from cadenza.errors import MissingExtraError, install

PATIENCE_SECONDS = 10.0  # that the end of a run waits for W&B
UNSENT = 3  # what the process ends with when W&B could not be reached

found = find_spec("wandb")
if found is None or found.origin is None:  # a folder `wandb`, as W&B leaves them, is no package
    raise MissingExtraError(f"logging.wandb needs an extra: {install('wandb')}")


class Wandb:
    """A listener."""

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
                self._warn(f"W&B gets nothing of this run: {problem.strerror or problem}")
        elif isinstance(event, Ended) and self._process is not None:
            self._end(self._process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()  # which tells it that there will be no more rows
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
        sync = f"`wandb sync {self._log.root / 'wandb'}/*run-*` sends them"
        if process.returncode is None:
            self._warn(f"W&B does not answer; it goes on trying for some minutes. All rows are here; later {sync}")
        elif process.returncode == UNSENT:
            self._warn(f"W&B could not be reached ({self._log} says why). All rows are here; {sync}")
        elif process.returncode:
            self._warn(f"W&B does not have all rows: {self._log} says why")
