"""Runs with truncated, changed, lost or foreign files: damage is noticed, reported and, where possible, repaired."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cadenza.records.checkpoint import manifest_digest
from cadenza.records.folder import RunFolder
from harness.command import TOY, assert_same_end, cadenza, copied, last, resume, train

COMMANDS = ("resume", "evaluate", "show", "verify", "report", "list")


def newest(folder: RunFolder) -> Path:
    return max(folder.checkpoints.path.glob("step-*"))


@pytest.fixture
def folder(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the whole run to be damaged."""
    return copied(whole, tmp_path / "runs")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of another seed: the same files with other content."""
    root = tmp_path_factory.mktemp("stranger") / "runs"
    train(root, *TOY, "--seed", "7").succeeded()
    return last(root)


def cut(path: Path, to: float = 0.6) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * to)])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


CHECKPOINT_DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut weights": lambda path: cut(path / "workflow.safetensors"),
    "flipped bit in the weights": lambda path: flip(path / "workflow.safetensors"),
    "flipped bit in the state": lambda path: flip(path / "state.json"),
    "empty manifest": lambda path: (path / "MANIFEST.json").write_text(""),
    "binary manifest": lambda path: (path / "MANIFEST.json").write_bytes(b"\xff\xfe\0"),
    "manifest of another shape": lambda path: (path / "MANIFEST.json").write_text("[1, 2]"),
    "no manifest": lambda path: (path / "MANIFEST.json").unlink(),
    "no weights": lambda path: (path / "workflow.safetensors").unlink(),
    "nothing in it": empty,
}


@pytest.mark.parametrize("damage", CHECKPOINT_DAMAGE)
def test_resume_falls_back_and_ends_the_same(damage: str, whole: RunFolder, folder: RunFolder) -> None:
    bad = newest(folder)
    CHECKPOINT_DAMAGE[damage](bad)
    root = folder.path.parent
    cadenza("evaluate", "@last", "--checkpoint", "2048", "--runs-dir", root).refused(78, bad.name, "also step-")
    outcome = resume(root).succeeded()
    assert len(outcome.warnings) == 1
    assert bad.name in outcome.warnings[0]
    assert "falling back" in outcome.warnings[0]
    assert_same_end(whole, folder)


def test_a_checkpoint_of_another_run_is_not_loaded(whole: RunFolder, folder: RunFolder, stranger: RunFolder) -> None:
    shutil.rmtree(newest(folder))
    shutil.copytree(newest(stranger), folder.checkpoints.path / newest(stranger).name)
    cadenza("evaluate", "@last", "--runs-dir", folder.path.parent).refused(78, "saved under config")
    assert "saved under config" in resume(folder.path.parent).succeeded().warnings[0]
    assert_same_end(whole, folder)


def test_a_run_without_a_valid_checkpoint_is_refused(folder: RunFolder) -> None:
    paths = sorted(folder.checkpoints.path.glob("step-*"))
    for path in paths:
        flip(path / "workflow.safetensors")
    resume(folder.path.parent).refused(78, f"none of {len(paths)} checkpoints is valid")
    resume(folder.path.parent).refused(78, f"none of {len(paths)} checkpoints is valid")  # nothing was thrown away
    assert sorted(folder.checkpoints.path.glob("step-*")) == paths, "what may still be saved by hand is not thrown away"


@pytest.mark.parametrize("part", ["clock", "workflow", "environment", "scheduler", "metrics", "store.rollout"])
@pytest.mark.parametrize("content", [None, {}, [], 3], ids=str)
def test_a_state_that_does_not_fit_is_refused(part: str, content: object, folder: RunFolder) -> None:
    """The hashes are right, but the state does not fit, as if another version had written it."""
    path = newest(folder)
    state = json.loads((path / "state.json").read_text())
    del state[part]
    if content is not None:
        state[part] = content
    before = folder.metrics.read_bytes()
    seal(path, "state.json", json.dumps(state).encode())
    resume(folder.path.parent).refused(78, f"'{part}' does not fit")
    assert folder.metrics.read_bytes() == before


def seal(checkpoint: Path, file: str, content: bytes) -> None:
    """Write a file into a checkpoint and put its hash into the manifest."""
    from hashlib import sha256

    (checkpoint / file).write_bytes(content)
    manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
    manifest["files"][file] = {"size": len(content), "sha256": sha256(content).hexdigest()}
    manifest["digest"] = manifest_digest(manifest)
    (checkpoint / "MANIFEST.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe", b"{}"], ids=str)
def test_a_lost_status_is_written_again(content: bytes | None, whole: RunFolder, folder: RunFolder) -> None:
    put(folder.status.path, content)
    root = folder.path.parent
    for command in COMMANDS[1:]:
        assert cadenza(command, *runs(command), "--runs-dir", root).succeeded().err == ""
    result = json.loads(resume(root, "@last", "--json").succeeded().out)
    assert (result["run"], result["status"], result["env_steps"]) == (folder.id, "finished", 2048)
    assert result["dir"] == str(folder.path)
    assert_same_end(whole, folder)


def put(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def runs(command: str) -> list[str]:
    return [] if command == "list" else ["@last"]


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b"\xff\xfe", b"{}", b"[" * 100_000], ids=lambda content: str(content)[:9]
)
@pytest.mark.parametrize("name", ["manifest.json", "decisions.json"])
def test_lost_files_that_cannot_be_restored_are_named(name: str, content: bytes | None, folder: RunFolder) -> None:
    put(folder.path / name, content)
    root = folder.path.parent
    resume(root).refused(78, str(folder.path / name), "copy of the run")
    for command in COMMANDS[1:]:
        outcome = cadenza(command, *runs(command), "--runs-dir", root)
        if outcome.code:
            outcome.refused(78, str(folder.path / name))
    assert cadenza("list", "--runs-dir", root).code == 0, "one damaged run does not hide the others"


@pytest.mark.parametrize("field", ["spec", "command", "configs", "versions", "machine", "git"])
def test_invalid_values_in_a_manifest_are_named(field: str, folder: RunFolder) -> None:
    folder.manifest.path.write_text(json.dumps(folder.read_manifest() | {field: 5}))
    root = folder.path.parent
    resume(root).refused(78, str(folder.manifest), f"({field}='5')")
    for command in COMMANDS:
        outcome = cadenza(command, *runs(command), "--runs-dir", root)
        if outcome.code:
            outcome.refused(78, str(folder.manifest))


def test_metrics_after_the_checkpoint_may_be_damaged(whole: RunFolder, folder: RunFolder) -> None:
    shutil.rmtree(newest(folder))
    for content in (folder.metrics.read_bytes()[:-7], folder.metrics.read_bytes() + b'{"env_steps": 4096, "upd'):
        folder.metrics.path.write_bytes(content)
        cadenza("show", "@last", "--runs-dir", folder.path.parent).succeeded()
    resume(folder.path.parent).succeeded()
    assert_same_end(whole, folder)


@pytest.mark.parametrize("damage", ["cut", "edited", "gone", "binary", "not rows", "a stranger's"])
def test_damaged_metrics_before_the_checkpoint_are_refused(damage: str, folder: RunFolder, stranger: RunFolder) -> None:
    text = folder.metrics.read_text()
    changed = {
        "cut": text[: len(text) // 2],
        "edited": text.replace('"updates": ', '"updates": 1', 1),
        "binary": "\0" * len(text) + "\n",
        "not rows": "5\n" * len(text),
        "a stranger's": stranger.metrics.read_text() + " " * len(text),
    }
    put(folder.metrics.path, changed[damage].encode() if damage in changed else None)
    root = folder.path.parent
    resume(root).refused(78, str(folder.metrics))
    for command in COMMANDS[1:]:
        outcome = cadenza(command, *runs(command), "--runs-dir", root)
        assert outcome.code in (0, 1, 2, 78)
        assert "internal error" not in outcome.err
        assert "Traceback" not in outcome.err


def test_edited_metrics_do_not_verify(folder: RunFolder) -> None:
    text = folder.metrics.read_text()
    folder.metrics.path.write_text(text.replace('"updates": ', '"updates": 1', 1))
    outcome = cadenza("verify", "@last", "--runs-dir", folder.path.parent)
    assert outcome.code == 1
    assert "updates" in outcome.out


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"\xff\xfe"], ids=str)
def test_a_wrong_checkpoint_pointer_is_ignored_and_a_wrong_last_run_is_refused(
    content: bytes, whole: RunFolder, folder: RunFolder
) -> None:
    root = folder.path.parent
    shutil.rmtree(newest(folder))
    (folder.checkpoints.path / "last").write_bytes(content)
    assert resume(root).succeeded().err == ""
    assert_same_end(whole, folder)
    (root / "@last").write_bytes(content)
    resume(root).refused(2, "@last")


def test_a_damaged_index_is_rebuilt(folder: RunFolder) -> None:
    root = folder.path.parent
    (root / "index.sqlite").write_bytes(b"no database")
    assert folder.id in cadenza("list", "--runs-dir", root).succeeded().out


AUDITED = """
import sys
CALLS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class")
OURS = ("git", "uname")  # what a new run asks about the machine
def watch(event, arguments):
    if armed and event.startswith(CALLS) and arguments[0] not in OURS:
        print("EXECUTED", event, arguments, file=sys.stderr)
armed = False
from cadenza.cli.main import run
import torch
sys.addaudithook(watch)
armed = True
for root in sys.argv[1:]:
    for command in ("resume", "evaluate", "show", "report", "list", "verify"):
        sys.stderr.write(f"{root} {command}: ")
        print(run([command, *([] if command == "list" else ["@last"]), "--runs-dir", root]), file=sys.stderr)
"""


class Payload:
    """Unpickling it writes the canary."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (f"touch {self.canary}",)


def poisoned_weights(folder: RunFolder, canary: Path) -> None:
    seal(newest(folder), "workflow.safetensors", pickle.dumps(Payload(canary)))


def poisoned_state(folder: RunFolder, canary: Path) -> None:
    call = {"_target_": "os.system", "_args_": [f"touch {canary}"]}
    state = json.loads((newest(folder) / "state.json").read_text())
    seal(newest(folder), "state.json", json.dumps(state | {"clock": call, "_target_": "os.system"}).encode())


def poisoned_yaml(folder: RunFolder, canary: Path) -> None:
    text = folder.config.read_text()
    folder.config.path.write_text(f"{text}poison: !!python/object/apply:os.system ['touch {canary}']\n")


def poisoned_target(folder: RunFolder, canary: Path) -> None:
    text = folder.config.read_text()
    changed = text.replace("algorithm:\n", f"algorithm:\n  _target_: os.system\n  _args_: [{canary}]\n")
    folder.config.path.write_text(changed)


def poisoned_json(folder: RunFolder, canary: Path) -> None:
    for path in (folder.manifest, folder.decisions, folder.status, folder.metrics):
        path.path.write_bytes(pickle.dumps(Payload(canary)))


POISONS = (poisoned_weights, poisoned_state, poisoned_yaml, poisoned_target, poisoned_json)


def test_a_strangers_files_execute_nothing(whole: RunFolder, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    roots = [tmp_path / poison.__name__ for poison in POISONS]
    for root, poison in zip(roots, POISONS, strict=True):
        poison(copied(whole, root), canary)
    process = subprocess.run([sys.executable, "-c", AUDITED, *roots], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert process.stderr.count(" verify: ") == len(POISONS)
    assert "EXECUTED" not in process.stderr
    assert "internal error" not in process.stderr
    assert "Traceback" not in process.stderr
    assert not canary.exists()


def test_the_poisoned_pickle_would_execute_if_it_were_loaded(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "identity",
    [
        5,
        {"config": 5, "phases": [], "decisions": {}},
        {"config": {}, "phases": 5, "decisions": {}},
        {"config": {}, "phases": [], "decisions": {"training.budgets": 5}},
        {"config": {}, "phases": [], "decisions": {"device.changes": [5]}},
    ],
    ids=str,
)
def test_identity_of_the_wrong_kind_in_a_checkpoint_is_refused(identity: object, folder: RunFolder) -> None:
    path = newest(folder) / "MANIFEST.json"
    manifest = json.loads(path.read_text()) | {"run": identity}
    path.write_text(json.dumps(manifest | {"digest": manifest_digest(manifest)}))
    outcome = resume(folder.path.parent, "@last", "--max-timesteps", "2304")
    outcome.refused(78, newest(folder).name, "what it was saved with is damaged")


def test_recorded_episode_that_its_environment_refuses_is_one_line(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("99 is no action")

    monkeypatch.setattr("cadenza.lab.view.play.render", lambda env: np.zeros((8, 8, 3), np.uint8))
    monkeypatch.setattr("cadenza.lab.view.play.action_caption", broken)
    place = folder.path.parent
    command = ("play", "@last", "--episode", "0", "--video", place / "a.gif", "--runs-dir", place)
    cadenza(*command).refused(78, f"episode 0 of {folder.id} cannot be played again (AssertionError: 99 is no action)")
