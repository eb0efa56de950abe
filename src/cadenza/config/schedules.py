"""Numbers that change over a run.

`lin_0.001`, `{schedule: linear, start_value:, end_value:, start:, end:}`, or a rule of yours, `my_rates:cosine` or
`{schedule: my_rates:cosine, kwargs: {peak: 0.001}}`: a function `rule(now, horizon, **kwargs)` that returns a number.

The settings that may be schedules are those that a class names in `scheduled`; `TimedSettings` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

from cadenza.base.json_text import dumps
from cadenza.config import plugins
from cadenza.config.setting import setting
from cadenza.errors import ConfigError, foreign_code
from cadenza.types import PhaseInfo

IMAGINED_HORIZON = 1_000_000  # of the run in which a rule of yours is asked for its first and its last value
KEYS = ("schedule", "start_value", "end_value", "start", "end")  # which every stored schedule has


@dataclass(frozen=True)
class Schedule:
    """A value that moves from `start_value` to `end_value` between two points of the run; it is constant outside."""

    plain: ClassVar[str] = "a schedule such as lin_0.001"
    part_key: ClassVar[str] = "schedule"

    schedule: Literal["linear"] | str = setting(
        "linear", "shape of the change; or a rule of yours, `package.module:rule` or a registered name"
    )
    start_value: float = setting(0.0, "value until `start`")
    end_value: float = setting(0.0, "value from `end` on")
    start: float = setting(0.0, "beginning of the change: a fraction of the run up to 1, env_steps above 1", least=0)
    end: float = setting(1.0, "end of the change: a fraction of the run up to 1, env_steps above 1", least=0)
    kwargs: Mapping[str, Any] = setting(doc="keyword arguments for a rule of yours", factory=dict, sparse=True)

    def __post_init__(self) -> None:
        if self.schedule != "linear":
            plugins.check_name("schedule", self.schedule, "schedule", ("linear",))
            if replace(self, schedule="linear", kwargs={}) != Schedule():
                raise ConfigError(f"start_value, end_value, start and end belong to linear, not to {self.schedule}")
            return
        if self.kwargs:
            raise ConfigError("kwargs belong to a rule of yours, and the schedule is linear")
        if (self.start > 1) == (self.end > 1) and self.start >= self.end:
            raise ConfigError(f"a schedule must end after it starts (start={self.start:g}, end={self.end:g})")

    @cached_property
    def rule(self) -> Callable[..., Any]:
        """The function behind a schedule of yours."""
        rule: Callable[..., Any] = plugins.load("schedule", self.schedule)
        return rule

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last value; of a rule of yours, those of an imagined run."""
        if self.schedule == "linear":
            return self.start_value, self.end_value
        return value_at(self, 0, IMAGINED_HORIZON), value_at(self, IMAGINED_HORIZON, IMAGINED_HORIZON)

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the settings that a short form stands for, others as they are.

        `lin_X` goes from X to 0 over the whole run; the name of a rule is a schedule by this rule.
        """
        if isinstance(value, str) and value.startswith("lin_"):
            try:
                return {"schedule": "linear", "start_value": float(value[4:]), "end_value": 0.0}
            except ValueError:
                forms = "lin_ and a number, e.g. lin_0.001, or {start_value: A, end_value: B}"
                raise ConfigError(f"'{value}' is no schedule; write {forms}") from None
        if isinstance(value, str) and (":" in value or value in plugins.names("schedule")):
            return {"schedule": value}
        return value


Scheduled = float | Schedule
Settings = TypeVar("Settings")


def value_at(value: Scheduled, now: int, horizon: int) -> float:
    """Return the value at the time `now` of a run of length `horizon` (both in env_steps, or both in updates)."""
    if not isinstance(value, Schedule):
        return float(value)
    if value.schedule != "linear":
        return _by_rule(value, now, horizon)
    start, end = (edge if edge > 1 else edge * horizon for edge in (value.start, value.end))
    if now <= start:
        return value.start_value
    if now >= end:
        return value.end_value
    return value.start_value + (value.end_value - value.start_value) * (now - start) / (end - start)


class TimedSettings(Generic[Settings]):
    """The settings of an algorithm over a run: `at` returns them with every schedule as a number."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.schedules = {key.removeprefix("."): schedule for key, schedule in schedules_in(settings, "")}

    def values(self, now: int, horizon: int) -> dict[str, float]:
        """Return the present value of every schedule by its key, `gamma` or `planning.min_std`."""
        return {key: value_at(schedule, now, horizon) for key, schedule in self.schedules.items()}

    def at(self, phase: PhaseInfo) -> Settings:
        """Return the settings at the present point of the run: the same object where nothing is scheduled."""
        return self.filled(self.values(phase.now, phase.horizon))

    def filled(self, values: Mapping[str, Any]) -> Settings:
        """Return the settings with `values`, numbers or tensors, in place of the schedules of these keys."""
        settings = self.settings
        for key, value in values.items():
            settings = _changed(settings, key, value)
        return settings


def _changed(settings: Any, key: str, value: Any) -> Any:
    """Return a copy with another value, which is not checked: a schedule was."""
    name, _, rest = key.partition(".")
    changed = object.__new__(type(settings))
    vars(changed).update(vars(settings))
    vars(changed)[name] = _changed(vars(settings)[name], rest, value) if rest else value
    return changed


def _by_rule(schedule: Schedule, now: int, horizon: int) -> float:
    """Return what a user's rule makes of the present progress; refuse anything but a finite number."""
    rule = schedule.rule
    with foreign_code(f"schedule {schedule.schedule}(now={now}, horizon={horizon}) failed"):
        number = rule(now, horizon, **schedule.kwargs)
    if isinstance(number, bool) or not hasattr(number, "__float__") or not math.isfinite(number):
        raise ConfigError(f"schedule {schedule.schedule}(now={now}, horizon={horizon}) is {number!r}: no finite number")
    return float(number)


def schedules_in(settings: Any, where: str) -> Iterator[tuple[str, Schedule]]:
    """Yield each schedule in a settings dataclass and those below it, with its dotted key; `where` is that of all."""
    for field in fields(settings):
        key, value = f"{where}.{field.name}", getattr(settings, field.name)
        if isinstance(value, Schedule):
            yield key, value
        elif is_dataclass(value):
            yield from schedules_in(value, key)


def with_short_schedules(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain settings by dotted key in which each schedule is one text; the kwargs of a rule keep their keys."""
    parents = [key.removesuffix(".schedule") for key in settings if key.endswith(".schedule")]
    parts = {f"{parent}.{key}": parent for parent in parents for key in KEYS}
    parts = {key: parent for key, parent in parts.items() if all(f"{parent}.{part}" in settings for part in KEYS)}
    short: dict[str, Any] = {}
    for key, value in settings.items():
        if (parent := parts.get(key)) is None:
            short[key] = value
        elif parent not in short:
            short[parent] = brief({part: settings[f"{parent}.{part}"] for part in KEYS})
    return short


def brief(schedule: Mapping[str, Any]) -> str:
    """Return the stored settings of a schedule as one text: `lin_0.001`, `1..0.05[0,0.1]`, or the name of a rule.

    Different schedules have different texts, but for the kwargs of a rule.
    """
    if schedule["schedule"] != "linear":
        return str(schedule["schedule"])
    first, last, start, end = (dumps(schedule[key]).removesuffix(".0") for key in KEYS[1:])
    span = "" if (start, end) == ("0", "1") else f"[{start},{end}]"
    return (f"lin_{first}" if last == "0" else f"{first}..{last}") + span
