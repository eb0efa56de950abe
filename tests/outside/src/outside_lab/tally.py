"""A metric sink that counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from cadenza import events


class Tally:
    """Counts events by kind; writes the counts into the run's folder when the run ends."""

    def __init__(self, warn: Callable[[str], None], name: str = "tally.json") -> None:
        self._counts: Counter[str] = Counter()
        self._name = name

    def __call__(self, event: events.Event) -> None:
        self._counts[type(event).__name__] += 1
        if isinstance(event, events.Started):
            self._path = event.folder.path / self._name
        elif isinstance(event, events.Ended):
            self._path.write_text(json.dumps(self._counts))
