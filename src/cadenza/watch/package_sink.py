"""Sinks of other packages (`logging.sinks`), created before the run and dropped when they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cadenza.config.plugins import load, split_entry
from cadenza.engine.events import Event, Listener
from cadenza.errors import ConfigError, explanation


class PackageSink:
    """A sink that another package provides. An error during the run ends the sink, not the run."""

    def __init__(self, entry: str | Mapping[str, Any]) -> None:
        self._name, arguments = split_entry(entry, "logging.sinks")
        self._early: list[str] = []  # warnings from before the run had a console
        self._warn: Callable[[str], object] = self._early.append
        try:
            self._listener: Listener | None = load("sink", self._name)(lambda text: self._warn(text), **arguments)
        except Exception as problem:  # whatever a user's class may raise
            raise ConfigError(f"logging.sinks: '{self._name}' cannot be made: {explanation(problem)}") from problem
        if not callable(self._listener):
            kind = type(self._listener).__name__
            raise ConfigError(f"logging.sinks: '{self._name}' made a {kind}, which cannot be called with events")

    def __call__(self, warn: Callable[[str], None]) -> Listener:
        """Return the listener, whose warnings now go to `warn`."""
        self._warn = warn
        for text in self._early:
            warn(text)
        return self._forward

    def _forward(self, event: Event) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception as problem:  # a server that is gone, a disk that is full
            self._listener = None
            reason = f"{type(problem).__name__}: {problem}"
            self._warn(
                f"logging.sinks: '{self._name}' failed and gets no more events until the run is resumed: {reason}"
            )
