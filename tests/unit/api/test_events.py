"""Events and listeners of a run: their order, and requests to stop."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

import cadenza
from cadenza.api import _outcome
from cadenza.engine.events import Ended, Evaluated, Event, Row, Saved, Started
from cadenza.engine.launch import Result
from cadenza.errors import ConfigError
from cadenza.tools.verify import compare
from harness.command import cadenza as command_line

SMALL: dict[str, Any] = {
    "algorithm.n_steps": 16,
    "algorithm.n_epochs": 1,
    "checkpoint.every_steps": 256,
    "evaluation.every_steps": 512,
    "evaluation.episodes": 2,
    "logging.every_steps": 256,
    "training.max_timesteps": 1024,
}


def train(root: Path, listener: Any = ()) -> cadenza.Run:
    return cadenza.train("toy/identity:ppo", runs_dir=root, on_event=listener, **SMALL)


class Stopper:
    """A listener that stops the run after some env_steps."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.stop = event.stop
        if isinstance(event, Row) and event.row["env_steps"] >= self.at:
            self.stop()


def test_events_arrive_in_order(tmp_path: Path) -> None:
    log: list[Event] = []
    run = train(tmp_path, log.append)
    assert [type(event).__name__ for event in log[:3]] == ["Started", "Saved", "Row"]
    started, ended = log[0], log[-1]
    assert isinstance(started, Started)
    assert (started.folder, started.config, started.unit) == (run.folder, run.folder.read_config(), "env_steps")
    assert ended == Ended("finished", "")
    assert (run.folder.report).exists()  # what is made at the end is there when the end is told
    rows = [event.row for event in log if isinstance(event, Row)]
    assert [row["env_steps"] for row in rows] == [row["env_steps"] for row in run.metrics] == [256, 512, 768, 1024]
    evaluated = [event for event in log if isinstance(event, Evaluated)]
    assert [event.env_steps for event in evaluated] == [512, 1024]
    assert sum(evaluated[0].returns) / 2 == run.metrics[1]["eval/return_mean"]
    assert evaluated[0].lengths == (16, 16)
    saved = [event for event in log if isinstance(event, Saved)]
    assert saved[-1].checkpoint.is_dir()
    assert next(event for event in saved if event.best).checkpoint.name.startswith("step-000000000512")


def test_events_are_read_only(tmp_path: Path) -> None:
    def meddle(event: Event) -> None:
        if isinstance(event, Row):
            with pytest.raises(TypeError, match="does not support item assignment"):
                event.row["env_steps"] = 0  # type: ignore[index]
            with pytest.raises(dataclasses.FrozenInstanceError):
                event.row = {}  # type: ignore[misc]

    assert compare(train(tmp_path / "a", meddle).folder, train(tmp_path / "b").folder) is None


def test_a_run_stopped_by_a_listener_resumes_exactly(tmp_path: Path) -> None:
    ends: list[Event] = []
    run = train(tmp_path / "a", [Stopper(512), ends.append])
    assert ends[-1] == Ended("interrupted", "stop")
    assert (run.result["status"], run.result["message"], run.result["env_steps"]) == ("interrupted", "stop", 512)
    starts: list[Event] = []
    run.resume(on_event=starts.append)
    assert isinstance(starts[0], Started)
    assert starts[0].env_steps == 512
    assert compare(run.folder, train(tmp_path / "b").folder) is None


def test_the_log_of_an_interrupted_run_names_the_command_to_resume_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CADENZA_RUNS", raising=False)
    for root in (tmp_path / "elsewhere", tmp_path / "runs of mine"):
        if "runs" in root.name:
            monkeypatch.setenv("CADENZA_RUNS", str(root))
        folder = train(root, Stopper(512)).folder
        line_of_log = next(line for line in folder.log.read_text().splitlines() if "go on with: " in line)
        assert shlex.split(line_of_log)[-1] == (folder.id if "runs" in root.name else str(folder.path))
        with pytest.raises(KeyboardInterrupt) as caught:
            _outcome(Result(folder, "SIGINT"))
        way = str(caught.value).partition(": ")[2].removesuffix(".resume()")
        assert eval(way, {"cadenza": cadenza}).folder.path == folder.path


def test_a_listener_that_fails_ends_the_run_and_the_checkpoint_is_kept(tmp_path: Path) -> None:
    log: list[Event] = []

    def fail(event: Event) -> None:
        if isinstance(event, Row) and event.row["env_steps"] == 768:
            raise OSError("my own disk is full")

    with pytest.raises(OSError, match="my own disk is full"):
        train(tmp_path / "a", [log.append, fail])
    assert log[-1] == Ended("failed", "my own disk is full", "OSError")
    run = cadenza.Run.find("@last", tmp_path / "a")
    assert run.result["status"] == "failed"
    assert "in fail" in run.folder.log.read_text()
    command_line("resume", run.id, "--runs-dir", tmp_path / "a", "--quiet").succeeded()
    assert compare(run.folder, train(tmp_path / "b").folder) is None


def test_an_oserror_in_a_listener_of_saves_is_not_handled_as_a_disk_error(tmp_path: Path) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, Saved):
            raise OSError("the upload failed")

    with pytest.raises(OSError, match="the upload failed"):
        train(tmp_path, fail)


def test_a_listener_that_is_not_callable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on_event=3: must be a function of one event"):
        train(tmp_path, 3)


def test_a_raised_budget_is_in_the_first_event_and_saved_before_the_first_step(tmp_path: Path) -> None:
    run, log = train(tmp_path), list[Event]()
    run.resume(max_timesteps=2048, on_event=log.append)
    assert [type(event).__name__ for event in log[:2]] == ["Started", "Saved"]
    assert isinstance(log[1], Saved)
    assert log[1].checkpoint.name.startswith("step-000000001024")
