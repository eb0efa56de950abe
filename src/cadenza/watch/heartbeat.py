"""The heartbeat of a run in a team's index, sent by a thread, so that a dead database does not slow training down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from cadenza.engine.events import Ended, Event, Started
from cadenza.errors import explanation
from cadenza.records.shared_index import BEAT_SECONDS, SharedIndex

PATIENCE_SECONDS = 5.0  # to wait for the last update when the run has ended


class Heartbeat:
    """A listener that updates a run's entry in the index from the run's folder, at intervals."""

    def __init__(self, index: SharedIndex, warn: Callable[[str], None]) -> None:
        self._index, self._warn = index, warn
        self._ended = threading.Event()
        self._problem: str | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._thread = threading.Thread(target=self._beat, args=(event.folder.path,), daemon=True)
            self._thread.start()
        elif isinstance(event, Ended) and self._thread is not None:
            self._ended.set()
            self._thread.join(PATIENCE_SECONDS)
            if self._thread.is_alive() or self._problem is not None:
                self._warn(f"the team's index does not know how the run ended: {self._problem or 'no answer'}")

    def _beat(self, run: Path) -> None:
        self._update(run)
        while not self._ended.wait(BEAT_SECONDS):
            self._update(run)
        self._update(run)

    def _update(self, run: Path) -> None:
        try:
            self._index.tell(run)
            self._problem = None
        except Exception as problem:  # whatever it is, the next beat may succeed
            self._problem = explanation(problem)
