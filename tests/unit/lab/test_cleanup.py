from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cadenza.base import owned_files
from cadenza.base.files import SafePath
from cadenza.config.load import load
from cadenza.errors import NotFoundError
from cadenza.lab import cleanup
from cadenza.lab.cleanup import KeepRules, clean, disk_use, removable
from cadenza.records.checkpoint import Checkpoints
from cadenza.records.folder import EVENT_FILES, RunFolder, create, find
from cadenza.records.index import rows
from cadenza.records.lock import RunLock, is_held
from harness.command import cadenza, resume

STAYS = ("config.yaml", "manifest.json", "status.json", "decisions.json", "metrics.jsonl", "notes.txt")
GOES = {  # files as cadenza writes them, one in each place
    "checkpoints": "step-000000000001-000000000001/data.bin",
    "replay": "replay/000000000000-000000000008.safetensors",
    "episodes": "000000000008.safetensors",
    "videos": "replay-step-000000000001-000000000001.gif",
    "tensorboard": "events.out.tfevents.00000000000000000001",
    "debug": "trace.json",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def old(make_curve: Callable[..., RunFolder]) -> Any:
    """Return a function that makes runs with large files in every folder, changed some days ago."""

    def make(score: float, days: float = 10, **more: Any) -> RunFolder:
        folder = make_curve([score], **more)
        for name, file in GOES.items():
            path = folder.files / name / file
            path.parent.mkdir()
            path.path.write_bytes(b"x" * 8192)
            if name in ("replay", "episodes", "videos"):
                owned_files.note(path.parent, path.name, "0" * 64)
            (folder.path / name / "notes.bin").write_text("mine")
        manifest = (folder.checkpoints / GOES["checkpoints"]).with_name("MANIFEST.json")
        manifest.path.write_text('{"files": {"data.bin": 1}}')
        (folder.path / "tensorboard" / EVENT_FILES).write_text(f"{GOES['tensorboard']}\n")
        (folder.path / "notes.txt").write_text("mine")
        with RunLock(folder.path):
            pass
        folder.update_status(updated=(datetime.now(UTC) - timedelta(days=days)).isoformat())
        return folder

    return make


def whole(folder: RunFolder) -> bool:
    exist = [(folder.path / name / file).exists() for name, file in GOES.items()]
    assert all(exist) or not any(exist)
    assert all((folder.path / name / "notes.bin").exists() for name in GOES), "what somebody put there stays"
    assert all((folder.path / name).exists() for name in STAYS), "what it was and achieved always stays"
    return all(exist)


def weight(folder: RunFolder) -> int:
    return sum(file.stat().st_blocks * 512 for file in removable(folder.files))


def test_the_best_of_each_spec_the_recent_and_the_tagged_are_kept(root: Path, old: Callable[..., RunFolder]) -> None:
    best, second, worst = old(9.0, seed=0), old(5.0, seed=1), old(1.0, seed=2)
    other = old(0.5, env="Acrobot-v1")
    recent, tagged = old(0.1, days=1, seed=3), old(0.2, seed=4, tags=("paper",))
    heavy = weight(second) + weight(worst)
    result = clean(root, KeepRules(best=1, days=2, tags=("paper",)))
    assert [whole(folder) for folder in (best, other, recent, tagged)] == [True] * 4
    assert [whole(folder) for folder in (second, worst)] == [False] * 2
    reasons = {run.id: run.outcome for run in result.runs}
    assert reasons[best.id] == "kept: number 1 of CartPole-v1:ppo by return"
    assert reasons[recent.id] == "kept: changed within 2 days"
    assert reasons[tagged.id] == "kept: tagged paper"
    assert result.before - result.after == result.freed == heavy
    assert result.after == disk_use(root)
    assert [row["return"] for row in rows(root, {"seed": 2})] == [1.0], "still in the index"


def test_a_dry_run_reports_the_same_and_deletes_nothing(root: Path, old: Callable[..., RunFolder]) -> None:
    folders = [old(float(seed), seed=seed) for seed in range(3)]
    rows(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    tried = clean(root, KeepRules(best=1), dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    result = clean(root, KeepRules(best=1))
    assert tried.freed == result.freed > 0
    assert {run.id for run in tried.runs if run.freed} == {folder.id for folder in folders[:2]}


def test_a_run_in_use_is_never_touched(root: Path, old: Callable[..., RunFolder]) -> None:
    running, resumed = old(1.0, seed=0), old(2.0, seed=1)
    running.update_status(status="running", updated="2020-01-01T00:00:00+00:00")
    with RunLock(running.path), RunLock(resumed.path):
        result = clean(root, KeepRules(best=0))
        assert whole(running)
        assert whole(resumed)
        reasons = {run.id: run.outcome for run in result.runs}
        assert reasons[running.id] == "kept: running"
        assert reasons[resumed.id].startswith("kept: in use by process")
    clean(root, KeepRules(best=0))
    assert not whole(running), "crashed, and free to go"


def test_a_killed_cleanup_is_completed_by_the_next(
    root: Path, old: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = old(1.0)

    heavy, unlink = weight(folder), SafePath.unlink
    deleted: list[int] = []

    def killed(path: SafePath, missing_ok: bool = False) -> None:
        if len(deleted) == 3:
            raise KeyboardInterrupt
        deleted.append(path.stat().st_blocks * 512)
        unlink(path, missing_ok)

    monkeypatch.setattr(SafePath, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        clean(root, KeepRules(best=0))
    monkeypatch.undo()
    assert clean(root, KeepRules(best=0)).freed == heavy - sum(deleted)
    assert not whole(folder)
    assert clean(root, KeepRules(best=0)).freed == 0


def test_filters_limit_the_deleted_runs_and_best_considers_all_runs(root: Path, old: Callable[..., RunFolder]) -> None:
    best, mine, theirs = old(9.0, seed=0), old(5.0, seed=1), old(1.0, seed=2)
    clean(root, KeepRules(best=1), ["seed=1"])
    assert [whole(folder) for folder in (best, mine, theirs)] == [True, False, True]


def test_links_are_not_deleted(root: Path, old: Callable[..., RunFolder], tmp_path: Path) -> None:
    folder, far = old(1.0), tmp_path / "far"
    (folder.path / "replay").rename(far)
    (folder.path / "replay").symlink_to(far)
    assert "replay is a link" in clean(root, KeepRules(best=0)).runs[0].outcome
    assert (far / GOES["replay"]).exists()


def test_a_cleaned_run_does_not_count_as_one_of_the_best(root: Path, old: Callable[..., RunFolder]) -> None:
    best, second = old(9.0, seed=0), old(5.0, seed=1)
    clean(root, KeepRules(best=0), ["seed=0"])
    assert find(root, "@best").id == second.id
    clean(root, KeepRules(best=1))
    assert [whole(folder) for folder in (best, second)] == [False, True]
    with pytest.raises(NotFoundError, match=r"no checkpoint 'last' in .*: the run was cleaned up at 2"):
        Checkpoints.from_run(best).resolve("last")
    clean(root, KeepRules(best=0))
    with pytest.raises(NotFoundError, match=r"every run in .* that was evaluated has been cleaned up"):
        find(root, "@best")


def test_variants_of_an_algorithm_are_kept_apart(root: Path, old: Callable[..., RunFolder]) -> None:
    plain, recurrent = old(9.0), old(5.0, seed=1, experiment="CartPole-v1/ppo_lstm")
    result = clean(root, KeepRules(best=1))
    assert whole(plain)
    assert whole(recurrent)
    assert "kept: number 1 of CartPole-v1:ppo_lstm by return" in [run.outcome for run in result.runs]
    assert recurrent.read_manifest()["spec"] == "CartPole-v1:ppo_lstm"
    assert find(root, "@best:CartPole-v1:ppo_lstm").id == recurrent.id


def test_a_linked_run_is_not_cleaned(root: Path, old: Callable[..., RunFolder], tmp_path: Path) -> None:
    folder = old(1.0)
    far = folder.path.rename(tmp_path / "far")
    folder.path.symlink_to(far)
    assert [run.outcome for run in clean(root, KeepRules(best=0)).runs] == ["kept: a link"]
    assert whole(RunFolder(far))


def test_runs_that_a_sweep_may_continue_are_kept(root: Path, old: Callable[..., RunFolder]) -> None:
    waiting, pruned, finished = old(1.0, seed=0), old(2.0, seed=1), old(3.0, seed=2)
    for folder in (waiting, pruned):
        folder.update_status(status="interrupted", updated=folder.read_status()["updated"])
    facts = [{"event": "started", "trial": n, "run": run.id} for n, run in enumerate((waiting, pruned, finished))]
    facts.append({"event": "told", "trial": 1, "state": "pruned"})
    (root / "sweeps" / "mine").mkdir(parents=True)
    lines = "\n".join(map(json.dumps, facts))
    (root / "sweeps" / "mine" / "journal.jsonl").write_text(f"{lines}\n" + '{"event": "sta')
    outcomes = {run.id: run.outcome for run in clean(root, KeepRules(best=0)).runs}
    assert outcomes[waiting.id] == "kept: sweep mine may continue it"
    assert [whole(folder) for folder in (waiting, pruned, finished)] == [True, False, False]


def test_a_run_that_changed_since_it_was_judged_is_kept(
    root: Path, old: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, judge = old(1.0), cleanup._reasons

    def meanwhile(*arguments: Any) -> Any:
        judged = judge(*arguments)
        folder.update_status(status="finished")  # resumed, and finished again
        return judged

    monkeypatch.setattr(cleanup, "_reasons", meanwhile)
    assert [run.outcome for run in clean(root, KeepRules(best=0)).runs] == ["kept: changed meanwhile"]
    assert whole(folder)
    assert not is_held(folder.path)


def test_the_status_of_a_run_of_another_machine_is_trusted(root: Path, old: Callable[..., RunFolder]) -> None:
    folder = old(1.0)
    folder.update_status(status="running", updated="2020-01-01T00:00:00+00:00")
    (folder.path / "lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    for dry_run in (True, False):
        result = clean(root, KeepRules(best=0), dry_run=dry_run)
        assert [run.outcome for run in result.runs] == ["kept: running on elsewhere, according to its status"]
    assert whole(folder)


def test_a_cleaned_run_that_is_resumed_counts_again(root: Path) -> None:
    config = load("toy/identity:ppo", ["training.max_timesteps=128", "algorithm.n_steps=8", "algorithm.n_epochs=1"])
    folder = create(root, config, ["test"])
    folder.update_status(status="interrupted", cleaned="2026-01-01T00:00:00+00:00")
    resume(root).succeeded()
    assert find(root, "@best").id == folder.id
    clean(root, KeepRules(best=1))
    assert list(folder.checkpoints.path.iterdir())


def test_the_cleanup_command_prints_text_and_json(root: Path, old: Callable[..., RunFolder]) -> None:
    folder = old(1.0)
    heavy = weight(folder)
    cadenza("cleanup", "--runs-dir", root).refused(2, "say what to keep")
    cadenza("cleanup", "--runs-dir", root, "--keep-best", "1", "--metric", "retrun").refused(2, "did you mean 'return'")
    dry = cadenza("cleanup", "--runs-dir", root, "--keep-best", "0", "--dry-run").succeeded().out
    assert "would be cleaned" in dry
    assert f"would free {heavy // 1024} KiB of 1 of 1 runs" in dry
    assert whole(folder)
    result = json.loads(cadenza("cleanup", "--runs-dir", root, "--keep-recent", "3", "--json").succeeded().out)
    assert result["cleaned"] == [{"run": folder.id, "freed_bytes": heavy}]
    assert result["before_bytes"] - result["after_bytes"] == result["freed_bytes"] == heavy
    assert "were deleted" in cadenza("show", folder.id, "--runs-dir", root).succeeded().out
