"""Files of a run changed by hand are refused and accepted by name; resumptions killed before their first save."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from cadenza.api import Run
from cadenza.base.json_text import with_digest
from cadenza.records.checkpoint import Checkpoints, manifest_digest
from cadenza.records.folder import RunFolder, file_digest
from harness.command import TOY, assert_same_end, cadenza, copied, last, resume, train
from harness.processes import call

MORE = ("--max-timesteps", "3072")


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A finished run, the last of its folder."""
    return copied(whole, tmp_path / "runs")


def decide(run: RunFolder, **values: Any) -> None:
    """Change decisions.json as an editor would, with the old digest."""
    content = json.loads(run.decisions.read_text())
    run.decisions.path.write_text(
        json.dumps(content | {key.replace("__", "."): value for key, value in values.items()})
    )


def edit(run: RunFolder, before: str, now: str) -> None:
    text = run.config.read_text()
    assert before in text
    run.config.path.write_text(text.replace(before, now, 1))


def test_checkpoint_records_config_phases_and_decisions(run: RunFolder) -> None:
    checkpoints = Checkpoints.from_run(run)
    facts = checkpoints.facts(checkpoints.resolve("last"))
    assert facts["run"]["config"]["algorithm"]["gamma"] == run.read_config().algorithm.gamma
    assert [hook["name"] for hook in facts["run"]["phases"][0]["hooks"]] == ["collect", "update"]
    decisions = run.read_decisions()
    assert facts["run"]["decisions"] == {key: value for key, value in decisions.items() if key != "debugger"}
    assert facts["best"] == (run.checkpoints / "best").read_text().strip()


def test_changed_decision_is_refused_then_accepted_by_name_and_recorded(run: RunFolder) -> None:
    root = run.path.parent
    decide(run, runtime__kernels="torch")
    resume(root, "@last", *MORE).refused(78, "decisions.json", "digest", "--accept-changes")
    outcome = resume(root, "@last", *MORE, "--accept-changes").succeeded()
    change = 'decisions.json: runtime.kernels: "numpy" → "torch"'
    assert outcome.warnings == [f"warning: accepted: {change}"]
    (entry,) = run.read_decisions()["accepted"]
    assert entry["changes"] == {"decisions.runtime.kernels": ["numpy", "torch"]}
    assert resume(root, "@last", "--max-timesteps", "4096").succeeded().warnings == []  # accepted once and for all
    outcome = cadenza("verify", "@last", "--runs-dir", root)
    if outcome.code:  # kernels may agree for so small a run
        assert change in outcome.out


def test_decision_changed_together_with_its_digest_is_refused_by_name(run: RunFolder) -> None:
    decide(run, training__horizon=99)
    run.decisions.path.write_text(json.dumps(with_digest(json.loads(run.decisions.read_text()))))
    resume(run.path.parent, "@last", *MORE).refused(78, "decisions.json: training.horizon: 2048 → 99")


@pytest.mark.parametrize("changes", [{"runtime.kernels": "nump9"}, {"runtime.kernel": "numpy"}])
def test_misspelt_decision_is_refused_even_where_changes_are_accepted(changes: dict[str, str], run: RunFolder) -> None:
    decide(run, **{key.replace(".", "__"): value for key, value in changes.items()})
    resume(run.path.parent, "@last", "--accept-changes").refused(78, *changes)


def test_changed_config_is_accepted_by_name(run: RunFolder) -> None:
    root = run.path.parent
    edit(run, "gamma: 0.99", "gamma: 0.5")
    resume(root, "@last", *MORE).refused(2, "was changed after the run began", "--accept-changes")
    outcome = resume(root, "@last", *MORE, "--accept-changes").succeeded()
    assert "warning: accepted: config.yaml: algorithm.gamma: 0.99 → 0.5" in outcome.warnings
    assert run.read_config().algorithm.gamma == 0.5
    newest = Checkpoints.from_run(run)
    assert newest.facts(newest.resolve("last"))["run"]["config"]["algorithm"]["gamma"] == 0.5
    resume(root, "@last", "--max-timesteps", "4096").succeeded()
    outcome = cadenza("verify", "@last", "--runs-dir", root)
    assert outcome.code == 1
    assert "config.yaml: algorithm.gamma: 0.99 → 0.5 (--accept-changes)" in outcome.out


def test_config_changed_together_with_the_manifest_is_refused_by_name(run: RunFolder) -> None:
    edit(run, "gamma: 0.99", "gamma: 0.5")
    run.write_manifest(run.read_manifest() | {"configs": [file_digest(run.config)]})
    resume(run.path.parent, "@last", *MORE).refused(2, "config.yaml: algorithm.gamma: 0.99 → 0.5")
    Run(run).resume(3072, accept_changes=True)
    assert run.read_decisions()["accepted"][0]["changes"] == {"config.algorithm.gamma": [0.99, 0.5]}


def test_changed_manifest_is_refused(run: RunFolder) -> None:
    content = json.loads(run.manifest.read_text())
    run.manifest.path.write_text(json.dumps(content | {"seed": 7}))
    resume(run.path.parent, "@last", "--accept-changes").refused(78, str(run.manifest), "digest")


def test_run_of_an_older_version_resumes_and_verifies(run: RunFolder) -> None:
    """Remove digests and identities from a run, as in older versions."""
    root = run.path.parent
    for path in (run.decisions, run.manifest):
        content = json.loads(path.read_text())
        del content["digest"]
        path.path.write_text(json.dumps(content))
    for checkpoint in run.checkpoints.glob("step-*"):
        manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
        del manifest["run"], manifest["best"]
        manifest["digest"] = manifest_digest(manifest)
        (checkpoint / "MANIFEST.json").path.write_text(json.dumps(manifest))
    assert cadenza("evaluate", "@last", "--checkpoint", "best", "--runs-dir", root).succeeded().err == ""
    assert resume(root, "@last", *MORE).succeeded().warnings == []
    assert "digest" in json.loads(run.decisions.read_text())
    cadenza("verify", "@last", "--runs-dir", root).succeeded()


def test_best_that_names_another_checkpoint_is_noticed(whole: RunFolder, run: RunFolder) -> None:
    root, pointer = run.path.parent, run.checkpoints / "best"
    names, best = Checkpoints.from_run(run).names(), (run.checkpoints / "best").read_text()
    other = next(name for name in names if name != best.strip())
    pointer.path.write_text(other + "\n")
    if best.strip() != names[-1]:  # else the newest manifest names itself, as after a kill before pointing
        refused = cadenza("evaluate", "@last", "--checkpoint", "best", "--runs-dir", root)
        refused.refused(78, "best", other, "cadenza resume")
        assert "set right" in resume(root).succeeded().warnings[0]
    else:
        resume(root).succeeded()
    assert pointer.read_text() == best
    assert_same_end(whole, run)


@pytest.mark.parametrize("content", ["step-", "{}\x0b", "\0{}\n"])
def test_best_that_names_nothing_is_corrected(content: str, whole: RunFolder, run: RunFolder) -> None:
    pointer = run.checkpoints / "best"
    best = pointer.read_text()
    pointer.path.write_text(content.format(best.strip()))
    cadenza("evaluate", "@last", "--checkpoint", "best", "--runs-dir", run.path.parent).succeeded()
    resume(run.path.parent).succeeded()
    assert pointer.read_text() == best
    assert_same_end(whole, run)


# written by `resume --max-timesteps`: manifest.json, config.yaml, decisions.json, status.json, a checkpoint
@pytest.mark.parametrize("hit", range(1, 5))
@pytest.mark.parametrize("point", ["atomic:before_rename", "atomic:after_rename"])
def test_extension_killed_before_its_first_save_can_be_made_again(point: str, hit: int, run: RunFolder) -> None:
    root = run.path.parent
    whole = copied(run, root.with_name("whole"))
    resume(whole.path.parent, "@last", *MORE).succeeded()
    assert call(["resume", "@last", *MORE], root, f"{point}@{hit}")[0] == -signal.SIGKILL
    assert resume(root, "@last", *MORE).succeeded().warnings == []
    assert_same_end(whole, run)
    assert run.read_decisions() == whole.read_decisions()


@pytest.mark.parametrize("hit", range(1, 5))
def test_move_to_another_device_killed_before_its_first_save_can_be_made_again(hit: int, tmp_path: Path) -> None:
    """The device of the run does not exist on this machine."""
    train(tmp_path, *TOY).succeeded()
    run = last(tmp_path)
    run.write_decisions(run.read_decisions() | {"device": "cuda:98"})
    move = ["--device", "cpu", *MORE]
    whole = copied(run, tmp_path / "whole")
    resume(whole.path.parent, "@last", *move).succeeded()
    assert call(["resume", "@last", *move], tmp_path, f"atomic:after_rename@{hit}")[0] == -signal.SIGKILL
    resume(tmp_path, "@last", *move).succeeded()
    assert_same_end(whole, run)
    assert run.read_decisions() == whole.read_decisions()
    (change,) = run.read_decisions()["device.changes"]
    assert (change["before"], change["now"]) == ("cuda:98", "cpu")
