"""A field of a settings dataclass: its default and, beside it, its meaning, its unit and its bounds."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from math import inf
from typing import Any


@dataclass(frozen=True)
class Bounds:
    """The range of a number, with its ends unless they are open."""

    low: float
    high: float
    open_low: bool
    open_high: bool

    def holds(self, value: float, with_ends: bool = False) -> bool:
        """Return whether a number lies in the range, or `with_ends` in the range with both ends."""
        at_open_end = (self.open_low and value == self.low) or (self.open_high and value == self.high)
        return self.low <= value <= self.high and (with_ends or not at_open_end)

    def __str__(self) -> str:
        if self.high == inf:
            return f"{'above' if self.open_low else 'at least'} {self.low:g}"
        if self.low == -inf:
            return f"{'below' if self.open_high else 'at most'} {self.high:g}"
        return f"in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"


def setting(
    default: Any = MISSING,
    doc: str = "",
    unit: str = "",
    *,
    factory: Any = MISSING,
    sparse: bool = False,
    least: float = -inf,
    above: float = -inf,
    most: float = inf,
    below: float = inf,
    needs: str = "",
) -> Any:
    """Return a dataclass field with its documentation, unit and bounds, for `config explain` and the reference page.

    A number must be at least `least`, at most `most`, above `above` and below `below`. In a list, this holds for every
    number; of a schedule, see `checks.check_bounds`. A sparse setting is left out of stored configs at its default.

    An algorithm's setting that has an effect only beside others names them in `needs`: `kl=v3`, `behaviour=v1|v2`,
    `slow_critic_every` (anything but null, false and 0), or several of these joined by ` and `. The keys are those
    below `algorithm`.
    """
    bounds = Bounds(max(least, above), min(most, below), above > least, below < most)
    limited = bounds.low > -inf or bounds.high < inf
    metadata = {
        "doc": doc,
        "unit": unit,
        "sparse": sparse,
        "bounds": bounds if limited else None,
        "needs": tuple(needs.split(" and ")) if needs else (),
    }
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def with_default(cls: Any, name: str, default: Any) -> Any:
    """Return a setting of a base class with another default."""
    return field(default=default, metadata=cls.__dataclass_fields__[name].metadata)
