"""What a run's metrics are watched for: rules, each with what it means and what to try. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cadenza.config.setting import setting
from cadenza.errors import ConfigError, nearest

RULES = Path(__file__).parents[1] / "conf" / "metrics.yaml"
CONDITIONS = ("above", "below", "rise", "drop", "lost", "stall", "not_finite")


@dataclass(frozen=True)
class Rule:
    """One thing to watch for, in every metric that the pattern names."""

    metric: str = setting("", "name of a metric; * and ? are wildcards")
    above: float | None = setting(None, "too high above this")
    below: float | None = setting(None, "too low below this")
    rise: float | None = setting(None, "so many times the median of the rows before")
    drop: float | None = setting(None, "less than this share of the median of the rows before")
    lost: float | None = setting(None, "this share of what was gained since the lowest value is lost again")
    stall: float | None = setting(
        None, "no value as high as the highest for so long; up to 1: a share of the run", "env_steps or updates"
    )
    not_finite: bool = setting(False, "the run ends because a number is NaN or infinite")
    rows: int = setting(1, "in so many rows one after the other", "rows")
    window: int = setting(20, "rows before that the median of rise and drop is taken of", "rows")
    after: float = setting(0.0, "not before this point; up to 1: a share of the run", "env_steps or updates")
    times: int = setting(3, "at most so often in a run, for each metric")
    severity: Literal["log", "alert", "stop"] = setting(
        "alert", "log: a line; alert: a warning, and told outside; stop: the run is saved and interrupted, too"
    )
    explanation: str = setting("", "what it means")
    hint: str = setting("", "what to try")

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in CONDITIONS}
        given = [name for name, value in values.items() if value is not None and value is not False]  # but 0 is given
        if not given:
            raise ConfigError(f"needs something to watch for: one of {', '.join(CONDITIONS)}")
        if not self.metric and not self.not_finite:
            raise ConfigError("metric is missing: name one, e.g. train/value_loss")
        for name in ("rows", "window", "times"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("rise", "drop", "lost", "stall"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value:g}: must be above 0")
        if self.after < 0:
            raise ConfigError(f"after={self.after:g}: cannot be negative")


@dataclass(frozen=True)
class AlertsConfig:
    """Watching the metrics. Who is told outside is said by CADENZA_ALERT_COMMAND and CADENZA_ALERT_WEBHOOK."""

    enabled: bool = setting(True, "watch by the rules of conf/metrics.yaml and those below")
    rules: Mapping[str, Any] = setting(
        doc="changes to those rules by name, new ones, or null for none; see docs/lab-book.md", factory=dict
    )

    def __post_init__(self) -> None:
        if self.rules:
            self.watched()

    def watched(self) -> dict[str, Rule]:
        """Every rule in force, by name."""
        from cadenza.config.convert import build

        found, shipped = {}, shipped_rules()
        for name in dict.fromkeys([*shipped, *self.rules]):
            where, change = f"logging.alerts.rules.{name}", self.rules.get(name, {})
            if change is None:
                if name not in shipped:
                    raise ConfigError(f"{where}=null: no such rule{nearest(name, shipped)}")
                continue
            if not isinstance(change, Mapping):
                raise ConfigError(f"{where}={change}: must be settings of a rule, or null to switch it off")
            known = shipped.get(name, {})
            if not known and not {*CONDITIONS} & {*change}:
                new = f"a new one needs metric and one of {', '.join(CONDITIONS)}"
                raise ConfigError(f"{where}: no such rule{nearest(name, shipped)} ({new})")
            found[name] = build(Rule, {**known, **change}, where)
        return found


@cache
def shipped_rules() -> dict[str, dict[str, Any]]:
    """The content of conf/metrics.yaml."""
    import yaml

    found: dict[str, dict[str, Any]] = yaml.safe_load(RULES.read_text())
    return found
