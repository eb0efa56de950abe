"""Tells a team's index that a run lives and how it stands, from a thread of its own: a dead database costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from cadenza.engine.events import Ended, Event, Started
from cadenza.errors import CadenzaError
from cadenza.records.shared_index import BEAT_SECONDS, SharedIndex

PATIENCE_SECONDS = 5.0  # for the last word, when the run has ended


class Heartbeat:
    """A listener. What it tells is read from the run's folder."""

    def __init__(self, index: SharedIndex, warn: Callable[[str], None]) -> None:
        self._index, self._warn = index, warn
        self._over = threading.Event()
        self._problem: str | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._thread = threading.Thread(target=self._beat, args=(event.folder.path,), daemon=True)
            self._thread.start()
        elif isinstance(event, Ended) and self._thread is not None:
            self._over.set()
            self._thread.join(PATIENCE_SECONDS)
            if self._thread.is_alive() or self._problem is not None:
                self._warn(f"the team's index does not know how the run ended: {self._problem or 'no answer'}")

    def _beat(self, run: Path) -> None:
        self._tell(run)
        while not self._over.wait(BEAT_SECONDS):
            self._tell(run)
        self._tell(run)

    def _tell(self, run: Path) -> None:
        try:
            self._index.tell(run)
            self._problem = None
        except Exception as problem:  # whatever it is, the next beat may do better
            said = "" if isinstance(problem, CadenzaError) else f"{type(problem).__name__}: "
            self._problem = f"{said}{problem}"
