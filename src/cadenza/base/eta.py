"""Which end a run comes to first, its budget's or its phase's, and when: one rule for the console and `top`."""

from __future__ import annotations

from typing import NamedTuple

from cadenza.base.formatting import number


class Count(NamedTuple):
    """How far a run is, or a phase of it, in something that is counted up to an end."""

    phase: str  # its name; "": it is the run
    unit: str
    done: int
    end: int | None  # None or 0: it has none
    speed: float | None  # units per second; None: not known yet, or it stands still

    @property
    def left(self) -> float | None:
        """Seconds to its end at that speed."""
        return max(0, self.end - self.done) / self.speed if self.end and self.speed else None


def ahead(run: Count, phase: Count, last: bool) -> tuple[Count, float | None]:
    """The count that comes to its end first at the speeds so far, and in how many seconds.

    Before the last phase the run's own end counts only if the phase's is known to lie behind it: other phases would
    follow, at other speeds.
    """
    if phase.left is not None and (run.left is None or phase.left < run.left):
        return phase, phase.left
    return run, run.left if last or phase.left is not None else None


def speed(amount: int, seconds: float) -> float | None:
    return amount / seconds if amount > 0 and seconds > 0 else None


def rate(speed: float | None, unit: str) -> str:
    """A speed for people."""
    return "" if speed is None else f"{number(speed)} {'steps' if unit == 'env_steps' else unit}/s"
