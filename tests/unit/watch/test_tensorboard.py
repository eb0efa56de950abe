"""TensorBoard events: the rows of metrics.jsonl, each once, also after kills and resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cadenza
from cadenza.engine.events import Ended, Row, Started
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import read
from cadenza.watch.tensorboard import TensorBoard
from harness.command import TOY, last, train
from harness.processes import call

SINK = [*TOY, "logging.tensorboard=true"]


def scalars(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars of a run in TensorBoard: (step, value) by tag."""
    accumulator = EventAccumulator(str(folder.path / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def assert_same_as_metrics(folder: RunFolder) -> None:
    rows, tags = read(folder.metrics), scalars(folder)
    assert {"eval/return_mean", "collect/return_mean", "train/policy_loss", "updates"} <= set(tags)
    for tag, points in tags.items():
        expected = [(row["env_steps"], pytest.approx(row[tag], rel=1e-6)) for row in rows if row.get(tag) is not None]
        assert points == expected, tag


def test_every_row_becomes_an_event(tmp_path: Path) -> None:
    train(tmp_path, *SINK).succeeded()
    assert_same_as_metrics(last(tmp_path))
    assert not (tmp_path / "tensorboard").exists()
    train(tmp_path, *TOY).succeeded()
    assert not (last(tmp_path).path / "tensorboard").exists()  # only when asked for


def test_a_killed_and_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    rare = [*SINK, "checkpoint.every_steps=1024", "evaluation.every_steps=4096"]  # rows follow the checkpoint
    assert call(["train", *rare], tmp_path, "run:task@26")[0] == -signal.SIGKILL
    before = [step for step, _ in scalars(last(tmp_path))["updates"]]
    assert before[-1] > 1024
    assert call(["resume", "@last"], tmp_path) == (0, "")
    assert_same_as_metrics(last(tmp_path))
    assert len(list((last(tmp_path).path / "tensorboard").glob("events.*"))) == 1


def test_the_step_of_a_run_in_updates_is_its_update(tmp_path: Path) -> None:
    train(tmp_path, *SINK[:-3], SINK[-1], "--max-updates", "16").succeeded()
    rows = read(last(tmp_path).metrics)
    assert [step for step, _ in scalars(last(tmp_path))["env_steps"]] == [row["updates"] for row in rows]


def test_without_tensorboard_a_run_is_refused_before_its_folder_is_created(tmp_path: Path) -> None:
    (tmp_path / "tensorboard.py").write_text("raise ImportError('not installed')")
    command = [sys.executable, "-m", "cadenza", "train", *SINK, "--runs-dir", str(tmp_path / "runs")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    hint = "pip install 'cadenza[tensorboard]'"
    assert (process.returncode, process.stderr) == (69, f"error: logging.tensorboard=true needs an extra: {hint}\n")
    assert not (tmp_path / "runs").exists()


def test_a_disk_error_ends_the_events_with_a_warning(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"training.max_timesteps": 1024}
    run = cadenza.train("toy/identity:ppo", runs_dir=tmp_path, **changes)
    (run.folder.path / "tensorboard").write_text("in the way")
    warnings: list[str] = []
    sink = TensorBoard(warnings.append)
    sink(Started(run.folder, run.folder.read_config(), "env_steps", 0, stop=lambda: None))
    sink(Row(run.metrics[-1]))
    sink(Ended("finished", ""))
    assert warnings == ["no more TensorBoard events until the run is resumed: File exists"]


def test_rows_and_a_manifest_of_a_stranger_become_events(tmp_path: Path, make_run: Any) -> None:
    folder: RunFolder = make_run("CartPole-v1")
    folder.write_manifest(folder.read_manifest() | {"created": "<b>yesterday\x1b[2J"})
    folder.metrics.path.write_text(json.dumps({"env_steps": 4, "cycles": 1, "odd": 10**200, "eval/x": 1.5}) + "\n")
    warnings: list[str] = []
    board = TensorBoard(warnings.append)
    board(Started(folder, folder.read_config(), "updates", 0, print))
    assert warnings == []
    assert scalars(folder)["eval/x"] == [(0, 1.5)]
