"""Looks at every row of metrics for what the rules name, and tells: the console, alerts.jsonl, and who is outside.

What is found follows from the rows alone: a run that goes on reads its rows once more and knows what was told before.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

from cadenza.base import atomic
from cadenza.base.formatting import number
from cadenza.base.json_text import dumps
from cadenza.config.alert_rules import Rule
from cadenza.engine.events import Ended, Event, Row, Started
from cadenza.records import metrics
from cadenza.records.alert_log import Alert, line, read
from cadenza.watch.messenger import Messenger

DIVERGED = "DivergenceError"


@dataclass
class Seen:
    """What one rule remembers of one metric."""

    before: deque[float]
    highest: float | None = None
    lowest: float | None = None
    highest_at: float = 0.0
    streak: int = 0  # rows in which it held, up to the latest
    told: int = 0


@dataclass
class Watch:
    """The rules at work on rows, one after the other; `horizon` is the length of the run in its unit."""

    rules: Mapping[str, Rule]
    unit: str
    horizon: int
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    watching: dict[str, list[str]] = field(default_factory=dict)  # metric -> rules
    phase: str | None = None

    def look(self, row: Mapping[str, Any]) -> list[Alert]:
        """What is wrong now and was not in the row before."""
        if row.get("phase") != self.phase:  # which has a speed and losses of its own
            self.phase = row.get("phase")
            for seen in self.seen.values():
                seen.before.clear()
        found = []
        for key, value in row.items():
            if "/" not in key or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            for name in self._rules_of(key):
                reason = self._judge(name, key, value, row[self.unit])
                if reason is not None:
                    found.append(self._alert(name, row, key, value, f"{key} is {number(value)}, {reason}"))
        return found

    def failed(self, position: Mapping[str, Any], message: str) -> list[Alert]:
        """What there is to tell of a run that ended because a number is not finite."""
        return [self._alert(name, position, "", None, message) for name, rule in self.rules.items() if rule.not_finite]

    def _rules_of(self, key: str) -> list[str]:
        if key not in self.watching:
            self.watching[key] = [name for name, rule in self.rules.items() if fnmatchcase(key, rule.metric)]
        return self.watching[key]

    def _alert(self, name: str, row: Mapping[str, Any], metric: str, value: Any, what: str) -> Alert:
        rule = self.rules[name]
        place = {"env_steps": row["env_steps"], "updates": row["updates"], "seconds": row.get("time/seconds")}
        fact = {"rule": name, "severity": rule.severity, "metric": metric, "value": value, "what": what}
        return {**place, **fact, "explanation": rule.explanation, "hint": rule.hint}

    def _judge(self, name: str, key: str, value: float, now: float) -> str | None:
        """Why it is wrong, when it has just become so for long enough."""
        rule = self.rules[name]
        seen = self.seen.setdefault((name, key), Seen(deque(maxlen=rule.window)))
        if seen.highest is None or value >= seen.highest:
            seen.highest, seen.highest_at = value, now
        seen.lowest = value if seen.lowest is None else min(seen.lowest, value)
        reason = self._reason(rule, seen, value, now) if now >= self._amount(rule.after) else None
        if reason is None or not (rule.rise or rule.drop):
            seen.before.append(value)  # else what is wrong would soon be what is usual
        seen.streak = 0 if reason is None else seen.streak + 1
        if reason is None or seen.streak != rule.rows or seen.told >= rule.times:
            return None
        seen.told += 1
        return reason + (f" for {rule.rows} rows" if rule.rows > 1 else "")

    def _reason(self, rule: Rule, seen: Seen, value: float, now: float) -> str | None:
        if rule.above is not None and value > rule.above:
            return f"above {rule.above:g}"
        if rule.below is not None and value < rule.below:
            return f"below {rule.below:g}"
        if len(seen.before) == rule.window and (rule.rise or rule.drop):
            usual = median(seen.before)
            if rule.rise is not None and abs(value) > rule.rise * abs(usual) > 0:
                return f"{abs(value / usual):.0f} times the usual {number(usual)}"
            if rule.drop is not None and 0 <= value < rule.drop * usual:
                return f"{value / usual:.0%} of the usual {number(usual)}"
        assert seen.highest is not None
        assert seen.lowest is not None
        if rule.lost is not None and seen.highest - value > rule.lost * (seen.highest - seen.lowest) > 0:
            return f"down from {number(seen.highest)}"
        if rule.stall is not None and now - seen.highest_at >= self._amount(rule.stall):
            return f"no higher than {number(seen.highest)} at step {seen.highest_at:.0f}"
        return None

    def _amount(self, value: float) -> float:
        return value * self.horizon if value <= 1 else value


class Alerts:
    """A listener. Nothing that goes wrong with telling ends a run."""

    def __init__(self, tell: Callable[[str, bool], None]) -> None:
        self._tell = tell  # a line, and whether it is a warning
        self._messenger = Messenger.wanted()
        self._all: list[Alert] = []
        self._written = True
        self._watch: Watch | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Row) and self._watch is not None:
            self._position: Mapping[str, Any] = event.row
            self._take(self._watch.look(event.row))
        elif isinstance(event, Ended) and self._watch is not None:
            if event.error == DIVERGED:
                self._take(self._watch.failed(self._position, event.message.partition(";")[0]))
            if not self._written:
                self._rewrite()
            if self._messenger is not None and (problem := self._messenger.close()) is not None:
                self._tell(problem, True)

    def _start(self, started: Started) -> None:
        self._folder, self._stop = started.folder, started.stop
        horizon = started.folder.read_decisions()["training.horizon"]
        self._watch = Watch(started.config.logging.alerts.watched(), started.unit, horizon)
        rows = metrics.read(started.folder.metrics)
        self._all = [alert for row in rows for alert in self._watch.look(row)]
        self._position = rows[-1] if rows else {"env_steps": 0, "updates": 0}
        if read(started.folder.alerts) != json.loads(dumps(self._all)):  # some were told after what it goes on from
            self._rewrite()

    def _take(self, found: Iterable[Alert]) -> None:
        for alert in found:
            self._all.append(alert)
            try:
                self._folder.alerts.append(f"{dumps(alert)}\n".encode())
            except OSError:
                self._written = False
            severe = alert["severity"] != "log"
            self._tell(line(alert), severe)
            if severe and self._messenger is not None:
                self._messenger.send(line(alert), {"run": self._folder.id, "dir": self._folder.path, **alert})
            if alert["severity"] == "stop":
                self._stop(f"alert {alert['rule']}")

    def _rewrite(self) -> None:
        try:
            atomic.write_text(self._folder.alerts, "".join(dumps(alert) + "\n" for alert in self._all))
            self._written = True
        except OSError as problem:
            self._tell(f"alerts.jsonl is not complete: {problem.strerror or problem}", True)
