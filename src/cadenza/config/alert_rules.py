"""The alert rules that watch the metrics of a run, each with its explanation and a hint. They import without torch."""

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
    """A condition on every metric whose name matches a pattern."""

    metric: str = setting("", "name of a metric; * and ? are wildcards")
    above: float | None = setting(None, "alert above this value")
    below: float | None = setting(None, "alert below this value")
    rise: float | None = setting(None, "alert above this multiple of the median of the rows before", above=0)
    drop: float | None = setting(None, "alert below this share of the median of the rows before", above=0)
    lost: float | None = setting(None, "alert when this share of the gain since the lowest value is lost", above=0)
    stall: float | None = setting(
        None, "alert when the highest value is this old; up to 1: a share of the run", "env_steps or updates", above=0
    )
    not_finite: bool = setting(False, "the run ends because a number is NaN or infinite")
    rows: int = setting(1, "consecutive rows in which the condition must hold", "rows", least=1)
    window: int = setting(20, "previous rows whose median rise and drop compare with", "rows", least=1)
    after: float = setting(0.0, "start of watching; up to 1: a share of the run", "env_steps or updates", least=0)
    beside: str = setting("", "the rule waits while this metric of the same group is `negligible`")
    negligible: float = setting(
        0.001, "share of its highest value in the run below which `beside` counts as 0", above=0
    )
    opponents: bool = setting(True, "applies also where teams play each other, and returns are summed over them")
    times: int = setting(3, "largest number of alerts in a run, for each metric", least=1)
    severity: Literal["log", "alert", "stop"] = setting(
        "alert", "log: a line; alert: also a warning and a notification; stop: also save and interrupt the run"
    )
    explanation: str = setting("", "meaning of the alert")
    hint: str = setting("", "advice")

    def __post_init__(self) -> None:
        values = (getattr(self, name) for name in CONDITIONS)
        if all(value is None or value is False for value in values):  # 0 is a condition
            raise ConfigError(f"needs a condition: one of {', '.join(CONDITIONS)}")
        if not self.metric and not self.not_finite:
            raise ConfigError("metric is missing: name one, e.g. train/value_loss")


@dataclass(frozen=True)
class AlertsConfig:
    """Alert rules. CADENZA_ALERT_COMMAND and CADENZA_ALERT_WEBHOOK determine where notifications go."""

    enabled: bool = setting(True, "watch the metrics by the rules of conf/metrics.yaml and those below")
    rules: Mapping[str, Any] = setting(
        doc="changes to rules by name, new rules, or null to disable one; see docs/lab-book.md", factory=dict
    )

    def __post_init__(self) -> None:
        if self.rules:
            self.watched()

    def watched(self) -> dict[str, Rule]:
        """Return every rule in force, by name."""
        from cadenza.config.convert import build

        rules, shipped = {}, shipped_rules()
        for name in dict.fromkeys([*shipped, *self.rules]):
            where, change = f"logging.alerts.rules.{name}", self.rules.get(name, {})
            if change is None:
                if name not in shipped:
                    raise ConfigError(f"{where}=null: no such rule{nearest(name, shipped)}")
                continue
            if not isinstance(change, Mapping):
                raise ConfigError(f"{where}={change}: must be settings of a rule, or null to switch it off")
            base = shipped.get(name, {})
            if not base and not {*CONDITIONS} & {*change}:
                new = f"a new one needs metric and one of {', '.join(CONDITIONS)}"
                raise ConfigError(f"{where}: no such rule{nearest(name, shipped)} ({new})")
            rules[name] = build(Rule, {**base, **change}, where)
        return rules


@cache
def shipped_rules() -> dict[str, dict[str, Any]]:
    """Return the content of conf/metrics.yaml."""
    import yaml

    rules: dict[str, dict[str, Any]] = yaml.safe_load(RULES.read_text())
    return rules
