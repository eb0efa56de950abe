"""Alerts: every row of metrics is checked against the rules, and what they find is reported.

Reports go to the console, to alerts.jsonl and to a command or webhook outside. The alerts are a function of the rows
alone: a resumed run reads its rows again and so knows what was already reported.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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

DIVERGED = "DivergenceError"
STALL_VALUES = 4  # fewer say nothing of progress
COMMAND, WEBHOOK = "CADENZA_ALERT_COMMAND", "CADENZA_ALERT_WEBHOOK"
DELIVERY_SECONDS = 10.0  # that one delivery may take
PATIENCE_SECONDS = 5.0  # to wait for pending deliveries when the run has ended
QUEUE_LENGTH = 100  # pending alerts; further ones are dropped


@dataclass
class MetricState:
    """What one rule remembers about one metric."""

    previous: deque[float]
    highest: float = -math.inf
    lowest: float = math.inf
    count: int = 0
    highest_at: float = 0.0
    streak: int = 0  # consecutive rows that break the rule, up to the latest
    alerts: int = 0

    def extend(self, value: float, position: float) -> None:
        """Update the extremes with the latest value."""
        if value >= self.highest:
            self.highest, self.highest_at = value, position
        self.lowest = min(self.lowest, value)
        self.count += 1


@dataclass
class RuleChecker:
    """The rules applied to the rows of a run, in order; `horizon` is the run's length in `unit`.

    Where teams play each other (`opponents`), rules that say `opponents: false` are left out.
    """

    rules: Mapping[str, Rule]
    unit: str
    horizon: int
    opponents: bool = False
    states: dict[tuple[str, str], MetricState] = field(default_factory=dict)  # by rule and metric
    rules_by_metric: dict[str, list[str]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)  # highest values of the metrics that rules name in `beside`
    phase: str | None = None

    def __post_init__(self) -> None:
        self.rules = {name: rule for name, rule in self.rules.items() if rule.opponents or not self.opponents}

    def check(self, row: Mapping[str, Any]) -> list[Alert]:
        """Return the alerts that this row raises."""
        if row.get("phase") != self.phase:  # each phase has its own speed and losses
            self.phase = row.get("phase")
            for state in self.states.values():
                state.previous.clear()
        alerts = []
        for key, value in row.items():
            if "/" not in key or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            for name in self._rules_for(key):
                reason = self._new_violation(name, key, value, row)
                if reason is not None:
                    alerts.append(self._alert(name, row, key, value, f"{key} is {number(value)}, {reason}"))
        return alerts

    def diverged(self, position: Mapping[str, Any], message: str) -> list[Alert]:
        """Return the alerts about a run that ended because a number is not finite."""
        return [self._alert(name, position, "", None, message) for name, rule in self.rules.items() if rule.not_finite]

    def _rules_for(self, key: str) -> list[str]:
        if key not in self.rules_by_metric:
            self.rules_by_metric[key] = [name for name, rule in self.rules.items() if fnmatchcase(key, rule.metric)]
        return self.rules_by_metric[key]

    def _alert(self, name: str, row: Mapping[str, Any], metric: str, value: Any, what: str) -> Alert:
        rule = self.rules[name]
        place = {"env_steps": row["env_steps"], "updates": row["updates"], "seconds": row.get("time/seconds")}
        fact = {"rule": name, "severity": rule.severity, "metric": metric, "value": value, "what": what}
        return {**place, **fact, "explanation": rule.explanation, "hint": rule.hint}

    def _new_violation(self, name: str, key: str, value: float, row: Mapping[str, Any]) -> str | None:
        """Return the reason for an alert if the rule has just been broken for `rule.rows` rows in succession."""
        rule, position = self.rules[name], row[self.unit]
        state = self.states.setdefault((name, key), MetricState(deque(maxlen=rule.window)))
        state.extend(value, position)
        waits = self._is_negligible(rule, key, row) or position < self._amount(rule.after)
        reason = None if waits else self._violation(rule, state, value, position)
        if reason is None or not (rule.rise or rule.drop):
            state.previous.append(value)  # a violation must not become part of the usual values
        state.streak = 0 if reason is None else state.streak + 1
        if reason is None or state.streak != rule.rows or state.alerts >= rule.times:
            return None
        state.alerts += 1
        return reason + (f" for {rule.rows} rows" if rule.rows > 1 else "")

    def _is_negligible(self, rule: Rule, key: str, row: Mapping[str, Any]) -> bool:
        """Return whether the metric `beside` a metric has fallen to a negligible share of its highest value."""
        sibling = f"{key.rpartition('/')[0]}/{rule.beside}"
        latest = row.get(sibling) if rule.beside else None
        if not isinstance(latest, int | float):
            return False
        self.peaks[sibling] = max(abs(latest), self.peaks.get(sibling, 0.0))
        return abs(latest) <= rule.negligible * self.peaks[sibling]

    def _violation(self, rule: Rule, state: MetricState, value: float, position: float) -> str | None:
        """Return why a value breaks a rule, or None."""
        if rule.above is not None and value > rule.above:
            return f"above {rule.above:g}"
        if rule.below is not None and value < rule.below:
            return f"below {rule.below:g}"
        if len(state.previous) == rule.window and (rule.rise or rule.drop):
            usual = median(state.previous)
            if rule.rise is not None and abs(value) > rule.rise * abs(usual) > 0:
                return f"{abs(value / usual):.0f} times the usual {number(usual)}"
            if rule.drop is not None and 0 <= value < rule.drop * usual:
                return f"{value / usual:.0%} of the usual {number(usual)}"
        if rule.lost is not None and state.highest - value > rule.lost * (state.highest - state.lowest) > 0:
            return f"down from {number(state.highest)}"
        if (
            rule.stall is not None
            and state.count >= STALL_VALUES
            and position - state.highest_at >= self._amount(rule.stall)
        ):
            return f"no higher than {number(state.highest)} at step {state.highest_at:.0f}"
        return None

    def _amount(self, value: float) -> float:
        """Convert a share of the run, up to 1, to a number of steps or updates."""
        return value * self.horizon if value <= 1 else value


class Alerts:
    """A listener that reports the alerts of a run. No failure to report one ends the run."""

    def __init__(self, report: Callable[[str, bool], None]) -> None:
        self._report = report  # a line, and whether it is a warning
        self._messenger = Messenger.from_environment()
        self._all: list[Alert] = []
        self._file_complete = True
        self._checker: RuleChecker | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Row) and self._checker is not None:
            self._add(self._checker.check(event.row))
        elif isinstance(event, Ended) and self._checker is not None:
            if event.error == DIVERGED:
                what = event.message.partition(";")[0].partition(" by step ")[0]  # the alert names the step itself
                place = {"env_steps": event.env_steps, "updates": event.updates}
                self._add(self._checker.diverged(place, what))
            if not self._file_complete:
                self._rewrite()
            if self._messenger is not None and (problem := self._messenger.close()) is not None:
                self._report(problem, True)

    def _start(self, started: Started) -> None:
        self._folder, self._stop = started.folder, started.stop
        horizon = started.folder.read_decisions()["training.horizon"]
        self._checker = RuleChecker(started.config.logging.alerts.watched(), started.unit, horizon, started.opponents)
        rows = metrics.read(started.folder.metrics)
        self._all = [alert for row in rows for alert in self._checker.check(row)]
        if read(started.folder.alerts) != json.loads(dumps(self._all)):  # some came after the checkpoint resumed from
            self._rewrite()

    def _add(self, alerts: Iterable[Alert]) -> None:
        """Write and report new alerts; stop the run if one is that severe."""
        for alert in alerts:
            self._all.append(alert)
            try:
                self._folder.alerts.append(f"{dumps(alert)}\n".encode())
            except OSError:
                self._file_complete = False
            severe = alert["severity"] != "log"
            self._report(line(alert), severe)
            if severe and self._messenger is not None:
                self._messenger.send(line(alert), {"run": self._folder.id, "dir": self._folder.path, **alert})
            if alert["severity"] == "stop":
                self._stop(f"alert {alert['rule']}")

    def _rewrite(self) -> None:
        try:
            atomic.write_text(self._folder.alerts, "".join(dumps(alert) + "\n" for alert in self._all))
            self._file_complete = True
        except OSError as problem:
            self._report(f"alerts.jsonl is not complete: {problem.strerror or problem}", True)


class Messenger:
    """A queue of alerts for a command and a webhook, delivered by a thread: a slow or failing one costs no time.

    Neither is part of a run's config: a command is code, and a webhook's address usually contains a secret.
    """

    def __init__(self, command: str | None, webhook: str | None) -> None:
        self._command, self._webhook = command, webhook
        self._queue: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(QUEUE_LENGTH)
        self._failed, self._problem = 0, ""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @classmethod
    def from_environment(cls) -> Messenger | None:
        """Return a messenger if the environment variables name a command or a webhook."""
        command, webhook = os.environ.get(COMMAND), os.environ.get(WEBHOOK)
        return cls(command, webhook) if command or webhook else None

    def send(self, text: str, alert: dict[str, Any]) -> None:
        """Queue an alert, with its line of text; return at once."""
        try:
            self._queue.put_nowait((text, alert))
        except queue.Full:
            self._failed, self._problem = self._failed + 1, "too many are waiting"

    def close(self) -> str | None:
        """Wait a moment for pending deliveries; return what went wrong, or None."""
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            return "not every alert was delivered: no answer"
        return f"{self._failed} alerts were not delivered: {self._problem}" if self._failed else None

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            text, alert = item
            for deliver, target in ((run_command, self._command), (post, self._webhook)):
                try:
                    if target:
                        deliver(target, text, alert)
                except Exception as problem:  # anything a user's program or server may do
                    self._failed, self._problem = self._failed + 1, f"{type(problem).__name__}: {problem}"


def run_command(command: str, text: str, alert: dict[str, Any]) -> None:
    """Run the command in a shell, with the line in CADENZA_ALERT and the alert as JSON on standard input."""
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"CADENZA_ALERT": text},
        start_new_session=True,
        text=True,
    )
    try:
        process.communicate(dumps(alert) + "\n", timeout=DELIVERY_SECONDS)
    except subprocess.TimeoutExpired:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        raise TimeoutError(f"{COMMAND} took longer than {DELIVERY_SECONDS:g} s") from None
    if process.returncode:
        raise OSError(f"{COMMAND} ended with {process.returncode}")


def post(url: str, text: str, alert: dict[str, Any]) -> None:
    """Post the alert as JSON; `text` is the key that chat services show."""
    from urllib.request import Request, urlopen

    body = dumps({"text": text, **alert}).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=DELIVERY_SECONDS):
        pass
