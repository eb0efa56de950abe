"""The estimated time to the end of a run or of its phase, for the console and `top`."""

from __future__ import annotations

from typing import NamedTuple

from cadenza.base.formatting import number


class Count(NamedTuple):
    """The progress of a run or of a phase in one unit."""

    phase: str  # name of the phase; "" for the run
    unit: str
    progress: int
    end: int | None  # None or 0 without an end
    speed: float | None  # units per second; None if unknown or zero

    @property
    def left(self) -> float | None:
        """The seconds to the end at this speed."""
        return max(0, self.end - self.progress) / self.speed if self.end and self.speed else None


def ahead(run: Count, phase: Count, last: bool) -> tuple[Count, float | None]:
    """Return the count that ends first at the present speeds, and the seconds to that end.

    Before the last phase, the end of the run counts only if the phase is known to end after it: the phases that follow
    may have other speeds.
    """
    if phase.left is not None and (run.left is None or phase.left < run.left):
        return phase, phase.left
    return run, run.left if last or phase.left is not None else None


def speed(amount: int, seconds: float) -> float | None:
    """Return units per second; None if either is zero."""
    return amount / seconds if amount > 0 and seconds > 0 else None


def rate(speed: float | None, unit: str) -> str:
    """Return a speed as text."""
    return "" if speed is None else f"{number(speed)} {'steps' if unit == 'env_steps' else unit}/s"
