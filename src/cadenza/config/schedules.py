"""Numbers that change over a run: `lin_0.001`, or `{schedule: linear, start_value:, end_value:, start:, end:}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cadenza.config.setting import setting
from cadenza.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """A value that moves from `start_value` to `end_value` between two points of the run; it is constant outside."""

    plain: ClassVar[str] = "a schedule such as lin_0.001"

    schedule: Literal["linear"] = setting("linear", "shape of the change")
    start_value: float = setting(0.0, "value until `start`")
    end_value: float = setting(0.0, "value from `end` on")
    start: float = setting(0.0, "beginning of the change: a fraction of the run up to 1, env_steps above 1", least=0)
    end: float = setting(1.0, "end of the change: a fraction of the run up to 1, env_steps above 1", least=0)

    def __post_init__(self) -> None:
        if (self.start > 1) == (self.end > 1) and self.start >= self.end:
            raise ConfigError(f"a schedule must end after it starts (start={self.start:g}, end={self.end:g})")

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the settings that `lin_X` stands for (X to 0 over the whole run); return other values as they are."""
        if isinstance(value, str) and value.startswith("lin_"):
            try:
                return {"schedule": "linear", "start_value": float(value[4:]), "end_value": 0.0}
            except ValueError:
                raise ConfigError(f"'{value}' is no schedule; write lin_ and a number, e.g. lin_0.001") from None
        return value


Scheduled = float | Schedule


def value_at(value: Scheduled, now: int, horizon: int) -> float:
    """Return the value at the time `now` of a run of length `horizon` (both in env_steps, or both in updates)."""
    if not isinstance(value, Schedule):
        return float(value)
    start, end = (edge if edge > 1 else edge * horizon for edge in (value.start, value.end))
    if now <= start:
        return value.start_value
    if now >= end:
        return value.end_value
    return value.start_value + (value.end_value - value.start_value) * (now - start) / (end - start)
