"""The counters of a run, the scores of its policy, and triggers that fire when an interval is crossed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any


class Fields:
    """The base of a dataclass whose state is a copy of its fields."""

    def state_dict(self) -> dict[str, Any]:
        return deepcopy(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in deepcopy(state).items():
            setattr(self, name, value)


@dataclass
class Clock(Fields):
    """The counters of a run."""

    env_steps: int = 0  # calls of env.step summed over environments
    vec_steps: int = 0  # calls of the vector environment's step
    updates: int = 0  # gradient steps
    offline_updates: int = 0  # those in phases that do not collect
    cycles: int = 0  # rounds of a phase's hooks
    episodes: int = 0  # finished training episodes
    evaluations: int = 0
    seconds: float = 0.0  # spent in this run, over all its processes
    phase: str = ""  # the name of the latest phase
    cycle_ended: bool = False  # the work at the end of a cycle is still to be done

    @property
    def position(self) -> list[int]:
        """Env_steps and updates, after which a checkpoint is named."""
        return [self.env_steps, self.updates]


@dataclass
class Scores(Fields):
    """The returns of the latest and the best evaluation, and the positions where they were measured and logged."""

    best: float | None = None  # of the evaluations that a checkpoint `best` was saved for
    best_at: list[int] = field(default_factory=list)  # its position
    latest: float | None = None
    evaluated_at: list[int] = field(default_factory=list)  # position of the latest evaluation
    logged_at: list[int] = field(default_factory=list)  # position of the latest row
    stopped_early: bool = False


class Every:
    """A trigger that is due whenever a multiple of its interval was crossed.

    It counts env_steps, and updates in phases that do not collect. Multiples up to and including `after` env_steps do
    not count. An interval of 0 or None is never due.
    """

    def __init__(self, steps: int | None, updates: int | None = None, after: int = 0) -> None:
        self.steps, self.updates = steps or 0, updates or 0
        self.next_steps, self.next_updates = multiple_above(self.steps, after), multiple_above(self.updates, 0)

    def due(self, clock: Clock) -> bool:
        """Return whether a multiple was crossed since `rearm`; several count as one."""
        by_steps = bool(self.steps) and clock.env_steps >= self.next_steps
        return by_steps or (bool(self.updates) and clock.offline_updates >= self.next_updates)

    def rearm(self, clock: Clock) -> None:
        """Wait for the next multiple."""
        self.next_steps = max(self.next_steps, multiple_above(self.steps, clock.env_steps))
        self.next_updates = max(self.next_updates, multiple_above(self.updates, clock.offline_updates))

    def state_dict(self) -> dict[str, Any]:
        return {"next_steps": self.next_steps, "next_updates": self.next_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_steps, self.next_updates = state["next_steps"], state["next_updates"]


def multiple_above(interval: int, now: int) -> int:
    """Return the least multiple of the interval above `now`, or 0 without an interval."""
    return (now // interval + 1) * interval if interval else 0
