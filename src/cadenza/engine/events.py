"""What a run tells those who listen: a handful of read-only events, each a frozen dataclass.

A listener is any callable: `cadenza.train(…, on_event=listener)`. What it raises ends the run like any other failure.
After a kill, what happened since the last checkpoint happens again, and is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.config.schema import RunConfig
from cadenza.records.folder import RunFolder


@dataclass(frozen=True)
class Started:
    """The run begins, or goes on. `stop()`, now or at any later event, saves and interrupts it as Ctrl-C would."""

    folder: RunFolder
    config: RunConfig
    unit: str  # of the run's budget: env_steps or updates
    env_steps: int  # where it stands: above 0 when resumed
    stop: Callable[..., None]  # takes a reason, too, which the status will tell


@dataclass(frozen=True)
class Row:
    """A row of metrics was written."""

    row: Mapping[str, Any]


@dataclass(frozen=True)
class Evaluated:
    """The policy was measured; its numbers are in the row that follows."""

    env_steps: int
    returns: tuple[float, ...]  # of each episode
    lengths: tuple[int, ...]
    number: int = 0  # of this evaluation in the run, from 1


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    checkpoint: Path
    best: bool  # better than any before


@dataclass(frozen=True)
class Ended:
    """Nothing follows. Status: finished, interrupted (a signal or `stop`, named by the message) or failed."""

    status: str
    message: str
    error: str = ""  # the class of the error that a run failed with


Event = Started | Row | Evaluated | Saved | Ended
Listener = Callable[[Event], object]
