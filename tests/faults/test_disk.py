"""Disk errors: training continues while it can, no saved state is lost, and the final result is the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cadenza import train as lab_train
from cadenza.base import failpoints
from cadenza.engine.events import Event, Row
from cadenza.errors import StorageError
from cadenza.records.checkpoint import Checkpoints
from cadenza.records.folder import RunFolder
from harness.command import BEST, TOY, Outcome, assert_same_end, last, resume, train
from harness.processes import call

# For each named moment of saving a hit in the middle of the run: `atomic` is hit at the start by the run's first files.
SAVING = {
    "ckpt:before_fsync": 12,
    "ckpt:after_write": 3,
    "ckpt:before_rename": 3,
    "ckpt:after_rename": 3,
    "ckpt:before_prune": 3,
    "atomic:before_fsync": 14,
    "atomic:before_rename": 15,
    "atomic:after_rename": 16,
    "episodes:seal": 3,
    "metrics:append": 3,
}
STARTING = 7  # replaced files before the first checkpoint


def train_with(failpoint: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    monkeypatch.setattr(failpoints, "armed", failpoints.parse(failpoint))
    outcome = train(root, *TOY)
    assert failpoints.armed is not None
    assert failpoints.armed.hits >= failpoints.armed.at, "the failpoint was never reached"
    monkeypatch.setattr(failpoints, "armed", None)
    return outcome


def leftovers(folder: RunFolder) -> list[Path]:
    return [path for path in folder.path.rglob(".*") if path.name.startswith((".tmp-", ".staging-"))]


def assert_newest_is_valid(folder: RunFolder) -> None:
    checkpoints = Checkpoints(folder.checkpoints, folder.read_manifest()["config_hash"])
    warnings: list[str] = []
    assert checkpoints.newest(warnings.append) is not None
    assert warnings == []


# an error of another kind once for each kind of file: what is done about one does not ask which it is
OTHERWISE = ("ckpt:before_fsync", "atomic:before_rename", "episodes:seal", "metrics:append")


@pytest.mark.parametrize(
    ("point", "error"), [*((point, "enospc") for point in SAVING), *((point, "eio") for point in OTHERWISE)]
)
def test_one_failed_write_is_survived(
    point: str, error: str, whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = train_with(f"{point}@{SAVING[point]}:{error}", tmp_path / "runs", monkeypatch).succeeded()
    assert len(outcome.warnings) == 1
    folder = last(tmp_path / "runs")
    assert_same_end(whole, folder, BEST)
    assert leftovers(folder) == []


@pytest.mark.parametrize("point", SAVING)
def test_a_disk_that_stays_full_ends_the_run_and_nothing_saved_is_lost(
    point: str, whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    outcome = train_with(f"{point}@{SAVING[point]}+:enospc", root, monkeypatch)
    outcome.refused(74, str(root), "the last good checkpoint is kept")
    if point != "metrics:append":  # rows wait in memory while there is something to save them with
        assert len([line for line in outcome.warnings if "cannot save" in line]) == 2
    folder = last(root)
    assert_newest_is_valid(folder)
    assert leftovers(folder) == []
    resume(root).succeeded()
    assert_same_end(whole, folder, BEST)


@pytest.mark.parametrize("hit", range(1, STARTING + 1))
def test_a_new_run_on_a_full_disk_is_refused(
    hit: int, whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    train_with(f"atomic:before_rename@{hit}:enospc", root, monkeypatch).refused(74, "No space left on device")
    if (root / "@last").exists():  # the run began: it can still be done
        resume(root).succeeded()
        assert_same_end(whole, last(root), BEST)
    else:
        assert list(root.iterdir()) == []


def test_failed_saves_that_are_not_consecutive_do_not_end_the_run(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    fails = Recurring("ckpt:before_rename", {2, 3, 5, 6})
    monkeypatch.setattr(failpoints, "armed", fails)
    outcome = train(root, *TOY).succeeded()
    assert len(outcome.warnings) == 4
    assert_same_end(whole, last(root), BEST)


class Recurring(failpoints.Failpoint):
    """A failpoint that fails at several hits."""

    def __init__(self, name: str, hits: set[int]) -> None:
        super().__init__(name, action="enospc")
        self.selected = hits

    def hit(self) -> None:
        self.at = self.hits + 1 if self.hits + 1 in self.selected else 0
        super().hit()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    """Write a file that leaves only `leave` bytes free; return its path."""
    filler = place / "filler"
    room = os.statvfs(place)
    filler.write_bytes(b"x" * (room.f_bavail * room.f_bsize - leave))
    return filler


@pytest.mark.parametrize("leave", [60_000, 200_000])
def test_a_real_full_disk_ends_the_run_and_keeps_its_checkpoints(
    leave: int, whole: RunFolder, small_disk: Path
) -> None:
    root = small_disk / "runs"
    filler = fill(small_disk, leave)
    outcome = train(root, *TOY)
    outcome.refused(74, "No space left on device")
    folder = last(root)
    filler.unlink()
    resume(root).succeeded()
    assert_same_end(whole, folder, BEST)
    assert leftovers(folder) == []


def test_a_replay_on_disk_reserves_its_space_before_the_first_row(small_disk: Path) -> None:
    """In a sparse file the first row without space would end the process by SIGBUS."""
    run = ["CartPole-v1:dqn", "algorithm.buffer_on_disk=true", "algorithm.hidden.hidden_sizes=[8]"]
    refused = train(small_disk / "runs", *run, "--max-timesteps", "500")
    refused.refused(74, "no file for a replay of", "No space left on device")


def test_sinks_on_a_full_disk_cost_a_warning(whole: RunFolder, small_disk: Path, tmp_path: Path) -> None:
    root, sinks = tmp_path / "runs", {"tensorboard": "logging.tensorboard=true"}
    if find_spec("wandb") is not None and find_spec("wandb.sdk") is not None:
        sinks["wandb"] = "logging.wandb=offline"
    assert call(["train", *TOY, *sinks.values()], root, "run:task@9")[0] == -signal.SIGKILL
    folder = last(root)
    for sink in sinks:
        shutil.rmtree(folder.path / sink, ignore_errors=True)  # W&B may have had no time to begin
        (small_disk / sink).mkdir()
        (folder.path / sink).symlink_to(small_disk / sink)
    fill(small_disk, 0)
    warnings = resume(root).succeeded().warnings
    assert len(warnings) == len(sinks)
    assert "no more TensorBoard events until the run is resumed: No space left on device" in warnings[0]
    assert_same_end(whole, folder)


def test_a_removed_run_folder_ends_the_run_without_claiming_a_checkpoint(tmp_path: Path) -> None:
    def remove(event: Event) -> None:
        if isinstance(event, Row):
            shutil.rmtree(tmp_path, ignore_errors=True)

    changes: dict[str, Any] = {"training.max_timesteps": 20_000}
    with pytest.raises(StorageError, match="the folder is gone"):
        lab_train("toy/identity:ppo", runs_dir=tmp_path, on_event=remove, **changes)
