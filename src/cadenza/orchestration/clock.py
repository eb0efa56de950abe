"""What has happened so far, in every unit, and triggers that fire when an interval is crossed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Clock:
    env_steps: int = 0  # calls of env.step summed over environments
    vec_steps: int = 0  # calls of the vector environment's step
    updates: int = 0  # gradient steps
    cycles: int = 0  # rounds of a phase's hooks
    episodes: int = 0  # finished training episodes
    evaluations: int = 0
    seconds: float = 0.0  # spent in this run, over all its processes

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class Every:
    """Fires once at each multiple of `interval` that is crossed, strictly after `after`; never for 0 or None."""

    def __init__(self, interval: int | None, after: int = 0) -> None:
        self.interval = interval or 0
        self.next = self._multiple_above(after)

    def due(self, now: int) -> bool:
        """Whether a multiple was reached since the last time; however many were skipped, it fires once."""
        if not self.interval or now < self.next:
            return False
        self.next = self._multiple_above(now)
        return True

    def _multiple_above(self, now: int) -> int:
        return (now // self.interval + 1) * self.interval if self.interval else 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]
