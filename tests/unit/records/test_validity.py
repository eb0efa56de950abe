"""Values of wrong types in a run's files: commands and the inspector leave them out or name the damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cadenza.base.json_text import dumps, without_digest
from cadenza.errors import CadenzaError, CheckpointError
from cadenza.lab.inspector.run_catalog import Catalog
from cadenza.lab.inspector.server import ANSWERS
from cadenza.lab.sweeps.journal import Journal
from cadenza.records import live_runs, validity
from cadenza.records.folder import RunFolder
from harness.command import Outcome, cadenza, copied
from harness.files import safe
from harness.wrong_values import MISSING, VALUES, described, encoded, mutated, places

ALERT = {"env_steps": 1, "updates": 1, "rule": "r", "severity": "warn", "metric": "m", "what": "w", "hint": "h"}
EVERY = 13  # of the mutations, each in turn of another kind: 15 kinds, so that all of them meet all places over time
ALLOWED = (0, 2, 74, 78)


@pytest.fixture
def folder(whole: RunFolder, tmp_path: Path) -> RunFolder:
    return copied(whole, tmp_path / "runs")


def mutations(tree: Any, every: int = EVERY) -> Iterator[tuple[str, str]]:
    """Yield a description and the file's text for a part of all mutations of the tree."""
    pairs = [(place, value) for place in places(tree) for value in VALUES]
    for place, value in pairs[::every]:
        yield described(place, value), encoded(mutated(tree, place, value))
    for value in VALUES[:-1]:
        yield repr(value)[:20], encoded(value)


def checked(outcome: Outcome, what: str) -> None:
    assert outcome.code in ALLOWED, f"{what}: {outcome.err}"
    assert "Traceback" not in outcome.err
    assert len([line for line in outcome.err.splitlines() if line.startswith("error: ")]) == (outcome.code != 0)


def inspected(folder: RunFolder, what: str) -> None:
    inspector: Any = SimpleNamespace(catalog=Catalog(folder.path.parent), trust=False, replays=None, busy=Lock())
    query = {"run": [folder.id], "metric": ["train/loss"]}
    for path in ("/api/runs", "/api/sparks", "/api/run", "/api/stand", "/api/curves"):
        try:
            dumps(ANSWERS[path](inspector, {} if path == "/api/runs" else query))
        except CadenzaError:
            continue
        except Exception as problem:
            pytest.fail(f"{path} with {what}: {problem!r}")


@pytest.mark.parametrize("name", ["status.json", "manifest.json", "decisions.json"])
def test_values_of_wrong_types_never_cause_an_internal_error(folder: RunFolder, name: str) -> None:
    path = folder.path / name
    tree = without_digest(json.loads(path.read_text()))  # else every change would be told by that
    for what, text in mutations(tree, EVERY if name == "decisions.json" else 3 * EVERY):
        path.write_text(text)
        checked(cadenza("show", folder.path), what)
        live_runs.describe(folder) if name == "status.json" else inspected(folder, what)
        if name == "decisions.json":
            with suppress(CheckpointError):
                folder.read_decisions()


def test_odd_rows_of_alerts_are_left_out_or_completed(folder: RunFolder) -> None:
    for what, text in mutations(ALERT, 7):
        folder.alerts.path.write_text(text + "\n")
        checked(cadenza("show", folder.path).succeeded(), what)
        live_runs.describe(folder)
    folder.alerts.path.write_text(json.dumps({"rule": "r", "what": "w", "env_steps": 3}) + "\n[]\n{}\n")
    assert cadenza("show", folder.path).succeeded().out.splitlines()[-1] == "warn: r at step 3: w"


def test_odd_rows_of_metrics_are_damage_that_is_named(folder: RunFolder) -> None:
    *rows, last = folder.metrics.read_text().splitlines()
    for what, text in mutations(json.loads(last), 2 * EVERY):
        folder.metrics.path.write_text("\n".join([*rows, text]) + "\n")
        for arguments in (("show", folder.path), ("export", folder.path, "--format", "csv")):
            checked(cadenza(*arguments), what)
        inspected(folder, what)
        live_runs.describe(folder)
    folder.metrics.path.write_text('{"env_steps": 1, "eval/return_mean": "x"}\n')
    cadenza("show", folder.path).refused(78, "row 1 has eval/return_mean='x', which is no number")


def test_invalid_configs_can_be_shown(folder: RunFolder) -> None:
    tree = yaml.safe_load(folder.config.read_text())
    for what, text in mutations(tree, 8 * EVERY):
        folder.config.path.write_text(text.replace("NaN", ".nan"))
        checked(cadenza("show", folder.path), what)
        inspected(folder, what)
    folder.config.path.write_text("algorithm: &a {name: ppo, more: *a}\n")
    checked(cadenza("show", folder.path), "a config that holds itself")


@pytest.mark.parametrize(
    ("key", "value"),
    [("training.budgets", [1]), ("training.budgets", []), ("training.horizon", "x"), ("training.unit", 3),
     ("device", None), ("runtime.kernels", [])],
)  # fmt: skip
def test_decisions_of_another_kind_are_damage_that_is_named(folder: RunFolder, key: str, value: Any) -> None:
    decisions = without_digest(json.loads(folder.decisions.read_text()))
    folder.decisions.path.write_text(encoded(mutated(decisions, (key,), value)))
    cadenza("resume", folder.path, "--quiet").refused(78, "decisions.json", key)


def test_a_run_without_its_budgets_cannot_be_verified(folder: RunFolder) -> None:
    decisions = without_digest(json.loads(folder.decisions.read_text()))
    folder.decisions.path.write_text(encoded(mutated(decisions, ("training.budgets",), MISSING)))
    cadenza("verify", folder.path).refused(78, "decisions.json", "training.budgets")


def test_a_pointer_that_is_no_text_points_nowhere(folder: RunFolder) -> None:
    (folder.checkpoints.path / "last").write_bytes(b"\xff\xfe\x00step")
    cadenza("show", folder.path).succeeded()
    inspected(folder, "a pointer")
    assert validity.pointer(folder.checkpoints / "none") is None


def test_a_journal_with_a_value_of_another_kind_is_damaged(tmp_path: Path) -> None:
    facts = [
        {"event": "asked", "trial": 1, "params": {}},
        {"event": "started", "trial": 1, "seed": 0, "run": "r"},
        {"event": "told", "trial": 1, "state": "finished", "value": 1.0, "values": {"0": 1.0}, "message": ""},
    ]
    path = tmp_path / "journal.jsonl"
    path.write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    Journal(safe(path)).close()
    for index, change in ((0, {"params": 1}), (1, {"run": "../x"}), (1, {"run": 3}), (2, {"value": "x"}),
                          (2, {"values": {"0": []}}), (2, {"state": []}), (2, {"event": "other"})):  # fmt: skip
        changed = [{**fact, **(change if place == index else {})} for place, fact in enumerate(facts)]
        path.write_text("".join(json.dumps(fact) + "\n" for fact in changed))
        with pytest.raises(CheckpointError, match="damaged"):
            Journal(safe(path))
