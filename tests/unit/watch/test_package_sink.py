"""Metric sinks of other packages, named in `logging.sinks`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.records.metrics import read
from harness.command import TOY, last, resume, train

MODULE = """
import json

class Sink:
    def __init__(self, warn, path="rows.jsonl", fails=False):
        if not path:
            raise ValueError("no path")
        warn(f"rows go to {path}")
        self.path, self.fails = path, fails

    def __call__(self, event):
        kind = type(event).__name__
        if self.fails and kind == "Row":
            raise RuntimeError("the server is gone")
        with open(self.path, "a") as file:
            file.write(json.dumps([kind, dict(event.row) if kind == "Row" else None]) + "\\n")

def nothing(warn):
    return None

number = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with sinks in the current folder, a new one for each test."""
    name = f"sinks_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_sink_by_import_path_receives_every_row_also_after_a_resume(tmp_path: Path, module: str) -> None:
    outcome = train(tmp_path, *TOY, f"logging.sinks=[{module}:Sink]").succeeded()
    assert outcome.warnings == ["warning: rows go to rows.jsonl"]
    resume(tmp_path, "@last", "--max-timesteps", "3072").succeeded()
    events = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert [event[0] for event in events if event[0] in ("Started", "Ended")] == ["Started", "Ended"] * 2
    heard = [(row["env_steps"], row["train/policy_loss"]) for kind, row in events if kind == "Row"]
    assert heard == [(row["env_steps"], row["train/policy_loss"]) for row in read(last(tmp_path).metrics)]


def test_a_sink_with_arguments_that_fails_is_dropped_with_a_warning(tmp_path: Path, module: str) -> None:
    outcome = train(tmp_path, *TOY, f"logging.sinks=[{{id: '{module}:Sink', path: other.jsonl, fails: true}}]")
    assert [line for line in outcome.succeeded().warnings if "failed" in line] == [
        f"warning: logging.sinks: '{module}:Sink' failed and gets no more events until the run is resumed: "
        "RuntimeError: the server is gone"
    ]
    assert Path("other.jsonl").read_text() == '["Started", null]\n["Saved", null]\n'


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ("MODULE:Missing", "logging.sinks: 'MODULE:Missing' cannot be made: cannot import 'MODULE:Missing': module"),
        ("no_such_module_here:Sink", "cannot import 'no_such_module_here:Sink': No module named"),
        ("{id: 'MODULE:Sink', path: ''}", "'MODULE:Sink' cannot be made: ValueError: no path"),
        ("{id: 'MODULE:Sink', color: red}", "unexpected keyword argument 'color'"),
        ("MODULE:nothing", "'MODULE:nothing' made a NoneType, which cannot be called with events"),
        ("MODULE:number", "'MODULE:number' names a value of type int: a sink must be a class or a function"),
        ("Sink", "logging.sinks='Sink': must be an import path `package.module:name`"),
        ("7", "logging.sinks=7: must be a name, or a mapping with an id"),
        ("{path: a}", "logging.sinks={'path': 'a'}: must be a name, or a mapping with an id"),
    ],
)
def test_an_invalid_sink_is_refused_before_the_run_folder_is_created(
    sink: str, words: str, tmp_path: Path, module: str
) -> None:
    outcome = train(tmp_path / "runs", *TOY, f"logging.sinks=[{sink.replace('MODULE', module)}]")
    outcome.refused(2, words.replace("MODULE", module))
    assert not (tmp_path / "runs").exists()
