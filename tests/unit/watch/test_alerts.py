"""Alerts: what the rules report, that each alert is reported once after kills, and that delivery cannot end a run."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.alert_rules import AlertsConfig, Rule, shipped_rules
from cadenza.config.convert import build
from cadenza.config.load import load
from cadenza.errors import ConfigError
from cadenza.records.alert_log import read
from cadenza.records.metrics import read as read_metrics
from cadenza.watch import alerts as watch_alerts
from cadenza.watch.alerts import RuleChecker
from harness.command import TOY, cadenza, last, resume, train
from harness.processes import call

ALWAYS = "logging.alerts.rules.mine={metric:train/kl,above:-1,rows:9,severity:%s,hint:rest}"  # from the ninth row on


def alerts(rule: Rule, values: list[float], metric: str = "train/kl") -> list[tuple[int, str]]:
    """Row and text of each alert over rows a thousand steps apart, in a run of 100,000."""
    checker = RuleChecker({"it": rule}, "env_steps", 100_000)
    rows = [{"env_steps": 1000 * n, "updates": n, metric: value} for n, value in enumerate(values)]
    return [(n, alert["what"]) for n, row in enumerate(rows) for alert in checker.check(row)]


def test_a_broken_bound_alerts_after_the_rule_s_rows_and_again_only_after_recovery() -> None:
    rule = Rule(metric="train/*", above=1.0, rows=2)
    assert alerts(rule, [2, 0, 2, 2, 2, 0, 2, 2]) == [
        (3, "train/kl is 2, above 1 for 2 rows"),
        (7, "train/kl is 2, above 1 for 2 rows"),
    ]
    assert alerts(Rule(metric="train/kl", above=1.0, times=1), [2, 0, 2]) == [(0, "train/kl is 2, above 1")]
    assert alerts(Rule(metric="train/kl", below=0.0, after=0.03), [-1] * 4) == [(3, "train/kl is -1, below 0")]
    assert alerts(rule, [2, 2], "eval/kl") == []


def test_rise_and_drop_alert_against_the_median_of_the_window() -> None:
    rise = Rule(metric="train/kl", rise=10, window=3)
    assert alerts(rise, [1, 2, 3, 19, 41, 42, 2]) == [(4, "train/kl is 41, 14 times the usual 3")]
    drop = Rule(metric="train/kl", drop=0.5, window=3)
    assert alerts(drop, [100, 100, 100, 60, 40, 40]) == [(4, "train/kl is 40, 40% of the usual 100")]


def test_a_new_phase_starts_a_new_window() -> None:
    checker = RuleChecker({"slow": Rule(metric="time/steps_per_second", drop=0.5, window=3)}, "env_steps", 10_000)
    speeds = [("rollouts", speed) for speed in (100, 100, 100)] + [("train", speed) for speed in (10, 10, 10, 4)]
    rows = [
        {"env_steps": step, "updates": 0, "phase": phase, "time/steps_per_second": speed}
        for step, (phase, speed) in enumerate(speeds)
    ]
    assert [len(checker.check(row)) for row in rows] == [0, 0, 0, 0, 0, 0, 1]


def test_lost_and_stall_alert_against_the_highest_value() -> None:
    lost = Rule(metric="train/kl", lost=0.5)
    assert alerts(lost, [-100, -20, -50, -61]) == [(3, "train/kl is -61, down from -20")]
    stall = Rule(metric="train/kl", stall=0.03)
    assert alerts(stall, [1, 5, 4, 4, 4]) == [(4, "train/kl is 4, no higher than 5 at step 1000")]
    assert alerts(stall, [1, 5, 5, 5, 5, 5, 5]) == []  # as good as it gets
    absolute = Rule(metric="train/kl", stall=2500)
    assert alerts(absolute, [5, 4, 4, 4]) == [(3, "train/kl is 4, no higher than 5 at step 0")]
    assert alerts(absolute, [5, 4]) == []
    assert alerts(Rule(metric="train/kl", stall=1000), [5, 4, 4]) == []  # three values say nothing of progress


def test_a_critic_with_nothing_to_explain_raises_no_alert() -> None:
    """When every episode returns the same, the explained variance is a ratio of rounding errors."""
    rule = build(Rule, shipped_rules()["critic_explains_nothing"])

    def reported(value_losses: list[float]) -> int:
        checker = RuleChecker({"critic": rule}, "env_steps", 100_000)
        rows = [
            {"env_steps": 5000 * n, "updates": n, "train/a/explained_variance": -3.0, "train/a/value_loss": loss}
            for n, loss in enumerate(value_losses)
        ]
        return sum(len(checker.check(row)) for row in rows)

    assert reported([100.0, *[50.0] * 19]) == 1
    assert reported([100.0, *[1e-5] * 19]) == 0
    assert reported([100.0, *[1e-5] * 9, *[50.0] * 10]) == 1


def test_where_teams_play_each_other_no_rule_looks_at_the_sum_of_their_returns() -> None:
    rules = AlertsConfig().watched()
    falling = [{"env_steps": 1000 * n, "updates": n, "eval/return_mean": 100.0 - n} for n in range(100)]

    def reported(opponents: bool) -> set[str]:
        checker = RuleChecker(rules, "env_steps", 100_000, opponents)
        return {alert["rule"] for row in falling for alert in checker.check(row)}

    assert reported(opponents=False) == {"return_collapsed", "no_progress"}
    assert reported(opponents=True) == set()


def test_every_shipped_rule_has_an_explanation_and_a_hint() -> None:
    for name, rule in AlertsConfig().watched().items():
        assert rule.explanation, name
        assert rule.hint, name
    assert AlertsConfig(rules={"slow": None}).watched().keys() == shipped_rules().keys() - {"slow"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("high_k.severity=stop", "rules.high_k: no such rule; did you mean 'high_kl'?"),
        ("high_kl.severty=stop", "did you mean 'logging.alerts.rules.high_kl.severity'?"),
        ("high_kl.severity=loud", "severity='loud': must be one of log, alert, stop"),
        ("high_kl.rows=0", "logging.alerts.rules.high_kl.rows=0: must be at least 1"),
        ("new.above=3", "logging.alerts.rules.new.metric is missing"),
        ("nothing=null", "rules.nothing=null: no such rule"),
    ],
)
def test_an_invalid_rule_is_refused_with_its_key(change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        load("toy/identity:ppo", [f"logging.alerts.rules.{change}"])


def test_a_stop_alert_saves_and_interrupts_and_resume_continues(tmp_path: Path) -> None:
    stopped = train(tmp_path, *TOY, ALWAYS % "stop")
    assert stopped.code == 70
    assert stopped.err.splitlines()[-1].startswith("error: alert mine stopped the run; it is saved")
    folder = last(tmp_path)
    (alert,) = read(folder.alerts)
    assert (alert["rule"], alert["severity"], alert["env_steps"]) == ("mine", "stop", 9 * 128)
    assert folder.read_status()["message"] == "alert mine"
    outcome = cadenza("show", "@last", "--runs-dir", tmp_path)
    assert "stop: mine at step 1152: train/kl is" in outcome.out
    assert resume(tmp_path).succeeded().warnings == []  # reported once
    assert read(folder.alerts) == [alert]
    assert json.loads(cadenza("show", "@last", "--json", "--runs-dir", tmp_path).out)["alerts"] == [alert]


def test_a_stop_alert_in_the_last_row_lets_the_run_finish(tmp_path: Path) -> None:
    rule = "+logging.alerts.rules.mine={metric: eval/return_mean, above: -1, severity: stop}"
    finished = train(tmp_path, *TOY, "logging.every_steps=100000", "evaluation.every_steps=0", rule)
    assert "mine at step 2048" in finished.succeeded().warnings[0]
    assert last(tmp_path).read_status()["status"] == "finished"


def test_a_killed_and_resumed_run_has_each_alert_once(tmp_path: Path) -> None:
    rare = [*TOY, "checkpoint.every_steps=1024", "evaluation.every_steps=4096", ALWAYS % "log"]
    assert call(["train", *rare], tmp_path, "run:task@26")[0] == -signal.SIGKILL
    folder = last(tmp_path)
    before = read(folder.alerts)
    assert [alert["env_steps"] for alert in before] == [1152]  # after the checkpoint it goes on from
    with folder.alerts.path.open("a") as file:
        file.write('{"cut sh')
    assert call(["resume", "@last"], tmp_path) == (0, "")
    after = [{**alert, "seconds": None} for alert in read(folder.alerts)]
    assert after == [{**alert, "seconds": None} for alert in before]


def test_divergence_raises_the_not_finite_alert(tmp_path: Path) -> None:
    failed = train(tmp_path, "Pendulum-v1:ppo", "algorithm.learning_rate=1e25", "--max-timesteps", "20000")
    assert failed.code == 70
    (alert,) = [line for line in failed.warnings if "not_finite" in line]
    (error,) = [line for line in failed.err.splitlines() if line.startswith("error: ")]
    step = error.partition(" by step ")[2].split()[0]
    assert int(step) > 0
    assert f"not_finite at step {step}: " in alert
    assert " by step " not in alert
    assert [alert["rule"] for alert in read(last(tmp_path).alerts)] == ["not_finite"]


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A local server's address, and the requests that it has received."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


def test_alerts_reach_the_command_and_the_webhook(
    tmp_path: Path, webhook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = webhook
    monkeypatch.setenv(watch_alerts.WEBHOOK, url)
    monkeypatch.setenv(watch_alerts.COMMAND, f'(echo "$CADENZA_ALERT"; cat) > {tmp_path}/delivered')
    assert len(train(tmp_path / "runs", *TOY, ALWAYS % "alert").succeeded().warnings) == 1
    text, alert = (tmp_path / "delivered").read_text().splitlines()
    assert text.startswith("mine at step 1152: train/kl is")
    assert text.endswith("; try: rest")
    assert received == [{"text": text, **json.loads(alert)}]
    assert received[0]["run"] == last(tmp_path / "runs").id


def test_failed_deliveries_of_alerts_end_in_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_alerts, "DELIVERY_SECONDS", 0.2)
    monkeypatch.setenv(watch_alerts.WEBHOOK, "http://127.0.0.1:9")  # refused
    monkeypatch.setenv(watch_alerts.COMMAND, "sleep 60")
    warnings = train(tmp_path, *TOY, ALWAYS % "alert").succeeded().warnings
    assert len(warnings) == 2
    assert "2 alerts were not delivered" in warnings[1]
    assert len(read_metrics(last(tmp_path).metrics)) == 16
