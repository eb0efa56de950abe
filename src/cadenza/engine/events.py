"""Between a run and what observes it: events for listeners, and the protocols of display, probe and attachments.

The events are five read-only dataclasses. A listener is any callable: `cadenza.train(…, on_event=listener)`. An
exception in it ends the run like any other failure. After a kill, what happened since the last checkpoint happens
again, and so do its events. The engine knows nothing else of these; `lab/session.py` provides the console, sinks,
alerts, videos and the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cadenza.config.schema import RunConfig
from cadenza.records.folder import RunFolder
from cadenza.types import Acted, Mode, PhaseInfo, Step, Store, Tree, Updated

if TYPE_CHECKING:
    from cadenza.engine.orchestrator import Orchestrator
    from cadenza.engine.scheduler import PhaseProgress


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

Act = Callable[[Step, Tree, Mode], Acted]
Update = Callable[[Store, PhaseInfo], Updated]


class Display(Protocol):
    """The display of one run's progress. `update` may be called at every step."""

    def start(self, headline: Sequence[str], position: int, progress: PhaseProgress) -> None: ...

    def update(self, position: int, progress: PhaseProgress, row: dict[str, Any] | None = None) -> None: ...

    def note(self, text: str, warning: bool = False) -> None: ...

    def finish(self, summary: str) -> None: ...

    def close(self) -> None: ...


class Attachments(Protocol):
    """A factory of what is attached to a run; each method is called once, in this order."""

    def check(self, config: RunConfig) -> None:
        """Refuse a config that names something that is not installed, before anything is made."""

    def display(self, folder: RunFolder, unit: str, total: int | None) -> Display:
        """Open the display; `total` counts the run's budget in `unit`, env_steps or updates."""

    def attach(self, run: Orchestrator) -> None:
        """Attach a probe to a run that has just been built."""

    def listen(self, run: Orchestrator) -> None:
        """Add the listeners to a run that is about to start."""

    def finish(self, run: Orchestrator) -> None:
        """Write what is made of a run once it has stopped, such as its report."""


class Probe:
    """A probe that observes nothing. Each method calls its argument; a subclass overrides the ones it needs."""

    def run(self, train: Callable[[], str | None]) -> str | None:
        """Run the whole loop; return the name of the signal that ended it, if one did."""
        return train()

    def task(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a `collect`, `evaluate` or `save`."""
        return work()

    def update(self, hook: str, update: Update, store: Store, phase: PhaseInfo) -> Updated:
        """Call an update hook."""
        return update(store, phase)

    def act(self, act: Act, step: Step, carry: Tree, mode: Mode) -> Acted:
        """Choose actions, in training and evaluation."""
        return act(step, carry, mode)

    def step(self, step: Callable[[dict[str, Any]], Step], action: dict[str, Any]) -> Step:
        """Step the training environments."""
        return step(action)
