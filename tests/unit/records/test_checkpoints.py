"""Checkpoints under damage: every change of a file is noticed, and the previous checkpoint is used."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.base import failpoints
from cadenza.data.segments import LARGEST_SEGMENT, verify_file
from cadenza.errors import CheckpointError, NotFoundError
from cadenza.records import codec
from cadenza.records.checkpoint import Checkpoints
from harness.files import safe


def state(value: float = 1.0) -> dict[str, Any]:
    net = torch.nn.Linear(4, 3)
    for parameter in net.parameters():
        torch.nn.init.constant_(parameter, value)
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1), fused=True)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {
        "workflow": {"networks": net.state_dict(), "optimizers": optimizer.state_dict()},
        "environment": {"lengths": np.arange(5), "empty": np.zeros((0, 3), np.float32), "flags": np.ones(2, bool)},
        "clock": {"env_steps": 12, "seconds": 0.1, "nothing": None, "big": 2**100, "text": "naïve"},
        "types": {
            "half": torch.ones(3, dtype=torch.bfloat16),
            "scalar": torch.tensor(2.0),
            "view": torch.ones(4, 4).T[1:],
        },
        "arrays": {"scalar": np.array(3.0), "view": np.arange(12).reshape(3, 4).T[::2]},
        "odd": {1: "int key", "tuple": (1, [2, (3,)]), "$tensor": "a name that looks like a mark"},
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return type(a) is type(b) and a == b


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoints:
    checkpoints = Checkpoints(safe(tmp_path / "checkpoints"), "hash", keep=2)
    checkpoints.save(state(1.0), 100, 10)
    checkpoints.save(state(2.0), 200, 20)
    return checkpoints


def newest(checkpoints: Checkpoints) -> tuple[str, list[str]]:
    warnings: list[str] = []
    checkpoint = checkpoints.newest(warnings.append)
    assert checkpoint is not None
    return checkpoint[0], warnings


OLD, NEW = "step-000000000100-000000000010", "step-000000000200-000000000020"


def test_states_survive_a_round_trip(saved: Checkpoints) -> None:
    assert same(state(2.0), saved.load(NEW))


def test_values_without_a_safe_encoding_are_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        codec.pack({"part": {"thing": object()}})
    with pytest.raises(TypeError, match="<U4"):
        codec.pack({"part": {"thing": np.array(["text"])}})


def test_200_truncations_are_detected(saved: Checkpoints) -> None:
    files = sorted((saved.folder.path / NEW).iterdir())
    rng = random.Random(0)
    for _ in range(200):
        file = rng.choice(files)
        content = file.read_bytes()
        file.write_bytes(content[: rng.randrange(len(content))])
        with pytest.raises(CheckpointError):
            saved.load(NEW)
        file.write_bytes(content)
    assert same(saved.load(NEW), state(2.0))


def test_1000_bit_flips_are_detected(saved: Checkpoints) -> None:
    files = sorted((saved.folder.path / NEW).iterdir())
    rng = random.Random(1)
    for _ in range(1000):
        file = rng.choice(files)
        content = bytearray(file.read_bytes())
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        whole = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(CheckpointError):
            saved.load(NEW)
        file.write_bytes(whole)
    assert same(saved.load(NEW), state(2.0))


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(saved: Checkpoints) -> None:
    victim = saved.folder.path / NEW / "workflow.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1] + b"\0")
    name, warnings = newest(saved)
    assert name == OLD
    assert "workflow.safetensors" in warnings[0]
    assert "sha256" in warnings[0]
    assert (saved.folder.path / f"rejected-{NEW}").is_dir()
    saved.save(state(3.0), 200, 20)  # its place is free again
    assert newest(saved) == (NEW, [])


@pytest.mark.parametrize("file", ["MANIFEST.json", "state.json", "workflow.safetensors"])
def test_a_missing_file_falls_back_to_the_previous_checkpoint(saved: Checkpoints, file: str) -> None:
    (saved.folder.path / NEW / file).unlink()
    assert newest(saved)[0] == OLD


def test_files_of_another_checkpoint_are_noticed(saved: Checkpoints) -> None:
    shutil.copy(saved.folder.path / OLD / "workflow.safetensors", saved.folder.path / NEW / "workflow.safetensors")
    with pytest.raises(CheckpointError, match="sha256"):
        saved.load(NEW)
    shutil.rmtree(saved.folder.path / NEW)
    shutil.copytree(saved.folder.path / OLD, saved.folder.path / NEW)
    with pytest.raises(CheckpointError, match="another checkpoint"):
        saved.load(NEW)


def test_a_checkpoint_of_another_run_is_rejected(saved: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match="saved under config"):
        Checkpoints(saved.folder, "other").load(NEW)


def test_a_manifest_cannot_reach_outside(saved: Checkpoints) -> None:
    from cadenza.records.checkpoint import manifest_digest

    (saved.folder.path / "secret").write_bytes(b"x")
    path = saved.folder.path / NEW / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../secret"] = {"sha256": "0" * 64, "size": 1}
    manifest["digest"] = manifest_digest(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="no name of a file in"):
        saved.load(NEW)


def test_no_valid_checkpoint_is_an_error_and_no_checkpoint_is_not(saved: Checkpoints, tmp_path: Path) -> None:
    for name in (OLD, NEW):
        (saved.folder.path / name / "state.json").write_text("{}")
    for _ in range(2):  # asking again must not find an empty folder and start from scratch
        with pytest.raises(CheckpointError, match="none of 2"):
            saved.newest(lambda _: None)
    assert saved.names() == [OLD, NEW]
    assert Checkpoints(safe(tmp_path / "nothing"), "hash").newest(lambda _: None) is None


def test_one_part_can_be_read_alone(saved: Checkpoints) -> None:
    (saved.folder.path / NEW / "environment.safetensors").unlink()  # not needed, so not missed
    part = saved.load(NEW, "workflow")
    assert list(part) == ["workflow"]
    assert same(part["workflow"], state(2.0)["workflow"])


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(safe(tmp_path), "hash", keep=2)
    for step in range(1, 6):
        checkpoints.save(state(), step, step, best=step == 2)
    assert [int(name[5:17]) for name in checkpoints.names()] == [2, 4, 5]
    assert checkpoints.resolve("best").startswith("step-000000000002")
    assert checkpoints.resolve("last") == checkpoints.resolve("5") == checkpoints.names()[-1]
    with pytest.raises(NotFoundError, match="there are: best, last, 2, 4, 5"):
        checkpoints.resolve("3")


@pytest.mark.parametrize("point", ["ckpt:before_fsync", "ckpt:after_write", "ckpt:before_rename"])
@pytest.mark.parametrize("action", ["enospc", "eio"])
def test_a_disk_error_leaves_the_last_checkpoint_intact(
    saved: Checkpoints, monkeypatch: pytest.MonkeyPatch, point: str, action: str
) -> None:
    monkeypatch.setattr(failpoints, "armed", failpoints.parse(f"{point}@1+:{action}"))
    with pytest.raises(OSError) as caught:
        saved.save(state(3.0), 300, 30)
    assert caught.value.errno == (errno.ENOSPC if action == "enospc" else errno.EIO)
    monkeypatch.setattr(failpoints, "armed", None)
    assert newest(saved) == (NEW, [])
    assert not list(saved.folder.path.glob(".staging*"))


def test_saving_the_same_position_again_replaces_it(saved: Checkpoints) -> None:
    saved.save(state(5.0), 200, 20)
    assert same(saved.load(NEW), state(5.0))
    # a process killed between the two renames leaves only the old one, under its hidden name
    (saved.folder.path / NEW).rename(saved.folder.path / f".old-{NEW}")
    assert newest(saved) == (NEW, [])


@pytest.mark.parametrize("room", [100, 0])
def test_file_that_does_not_fit_into_memory_is_refused_before_it_is_read(
    room: int, saved: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cadenza.records.checkpoint.LARGE", 10)
    monkeypatch.setattr("cadenza.records.checkpoint.available_memory", lambda: None)
    saved.load(NEW)  # nobody knows how much there is
    monkeypatch.setattr("cadenza.records.checkpoint.available_memory", lambda: room)
    with pytest.raises(CheckpointError, match="which do not fit into memory"):
        saved.load(NEW)


def test_segment_of_holes_is_refused_before_it_is_hashed(tmp_path: Path) -> None:
    path = safe(tmp_path / "rows.safetensors")
    path.append(b"x")
    os.truncate(path.path, LARGEST_SEGMENT + 1)
    with pytest.raises(CheckpointError, match="which no segment has"):
        verify_file(path, "0" * 64)
