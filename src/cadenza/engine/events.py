"""The events of a run, passed to its listeners: five read-only dataclasses.

A listener is any callable: `cadenza.train(…, on_event=listener)`. An exception in it ends the run like any other
failure. After a kill, what happened since the last checkpoint happens again, and so do its events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadenza.config.schema import RunConfig
from cadenza.records.folder import RunFolder


@dataclass(frozen=True)
class Started:
    """The run starts or is resumed. `stop()`, now or at any later event, saves and interrupts it as Ctrl-C would."""

    folder: RunFolder
    config: RunConfig
    unit: str  # of the run's budget: env_steps or updates
    env_steps: int  # so far: above 0 when resumed
    stop: Callable[..., None]  # takes a reason for status.json, too
    opponents: bool = False  # teams play each other: returns are summed over them


@dataclass(frozen=True)
class Row:
    """A row of metrics was written."""

    row: Mapping[str, Any]


@dataclass(frozen=True)
class Evaluated:
    """The policy was evaluated; its metrics are in the next row."""

    env_steps: int
    returns: tuple[float, ...]  # of each episode
    lengths: tuple[int, ...]
    number: int = 0  # of this evaluation in the run, from 1


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    checkpoint: Path
    best: bool  # its score is the best so far: not below any before, and of opponents any; told once for each score


@dataclass(frozen=True)
class Ended:
    """The run ended: finished, interrupted (by the signal or `stop` that `message` names) or failed."""

    status: str
    message: str
    error: str = ""  # the class of the error that a run failed with
    env_steps: int = field(default=0, compare=False)  # where it ended
    updates: int = field(default=0, compare=False)


Event = Started | Row | Evaluated | Saved | Ended
Listener = Callable[[Event], object]
