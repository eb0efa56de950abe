"""Resource usage of a run in its rows, outside of comparisons; `top`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cadenza.base import resource_usage
from cadenza.config.load import load
from cadenza.records.folder import RunFolder, create
from cadenza.records.live_runs import Running, describe
from cadenza.records.lock import RunLock
from cadenza.records.metrics import compared, read
from harness.command import TOY, cadenza, last, train


def test_rows_contain_time_by_part_and_usage_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage, "SAMPLE_SECONDS", 0.0)
    train(tmp_path, *TOY).succeeded()
    rows = read(last(tmp_path).metrics)
    for row in rows:
        assert {"time/collect", "time/update", "time/steps_per_second"} <= row.keys()
        assert row["system/memory_gb"] > 0.05
        assert 0 <= row["system/memory_percent"] <= 100
        assert row["system/disk_free_gb"] > 0
        assert not any(key.startswith(("time/", "system/")) for key in compared(row))
    assert sum("time/evaluate" in row for row in rows) == 4
    parts = sum(row.get(f"time/{part}", 0.0) for row in rows for part in ("collect", "update", "evaluate", "save"))
    assert 0 < parts <= rows[-1]["time/seconds"]


def test_processor_time_includes_workers() -> None:
    spin = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.2: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) as worker:
        others = resource_usage.workers()
        assert worker.pid in others
        deadline = time.monotonic() + 30
        while resource_usage.cpu_seconds([worker.pid]) - time.process_time() < 0.15 and time.monotonic() < deadline:
            pass
        assert resource_usage.cpu_seconds([worker.pid]) - time.process_time() >= 0.15
        assert resource_usage.unshared_memory(worker.pid) > 1_000_000
        worker.communicate(b"\n")
    assert resource_usage.unshared_memory(worker.pid) == 0


def test_top_shows_running_runs_only(tmp_path: Path) -> None:
    train(tmp_path, *TOY, "logging.alerts.rules.mine={metric:train/kl,above:-1,times:1,severity:log}").succeeded()
    folder = last(tmp_path)
    assert "nothing is running" in cadenza("top", "--runs-dir", tmp_path).succeeded().err
    with RunLock(folder.path):
        output = cadenza("top", "--once", "--runs-dir", tmp_path).succeeded().out
        (run,) = json.loads(cadenza("top", "--json", "--runs-dir", tmp_path).succeeded().out)["runs"]
    assert folder.id in output
    assert "2,048 (100%)" in output
    assert f"{folder.id}: mine at step 128: train/kl is" in output
    assert (run["done"], run["budget"], run["left"], run["alerts"]) == (2048, 2048, 0, 1)
    assert run["latest_return"] == folder.read_status()["eval/return_mean"]
    assert run["speed"] > 0


Rows = list[tuple[int, int, int, str, float]]  # env_steps, updates, cycles, phase, seconds


def standing(tmp_path: Path, phase: dict[str, object] | None, rows: Rows) -> Running:
    """Make the folder of a run with a budget of 10,000 env_steps."""
    folder = create(tmp_path, load("toy/identity:ppo", ["training.max_timesteps=10000"]), ["test"])
    folder.update_status(**({} if phase is None else {"phase": phase}))
    names = ("env_steps", "updates", "cycles", "phase", "time/seconds")
    folder.metrics.path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return describe(folder)


ROLLOUTS: Rows = [(steps, 0, steps // 100, "rollouts", steps / 1000) for steps in (1000, 2000, 3000)]
VISION: Rows = [(4000, updates, 40 + updates, "vision", 4 + updates / 2) for updates in (10, 20)]


@pytest.mark.parametrize(
    ("phase", "rows", "expected"),
    [
        (("rollouts", False, "env_steps", 4000), ROLLOUTS, (1000, "env_steps", 1, "rollouts")),
        (("rollouts", False, "env_steps", 40_000), ROLLOUTS, (1000, "env_steps", 7, None)),  # the budget ends before
        (("rollouts", False, "cycles", 40), ROLLOUTS, (10, "cycles", 1, "rollouts")),
        (("rollouts", True, "cycles", 40), ROLLOUTS, (10, "cycles", 1, None)),  # the run ends with it
        (("rollouts", True, "", None), ROLLOUTS, (1000, "env_steps", 7, None)),
        (("vision", False, "updates", 100), ROLLOUTS, (None, "env_steps", None, None)),  # has just begun
        (("vision", False, "updates", 100), [*ROLLOUTS, *VISION], (2, "updates", 40, "vision")),
        (None, ROLLOUTS, (1000, "env_steps", 7, None)),  # as older versions left it
    ],
)
def test_remaining_time_is_that_to_the_earliest_end(
    phase: tuple[str, bool, str, int | None] | None, rows: Rows, expected: tuple[object, ...], tmp_path: Path
) -> None:
    progress = None if phase is None else dict(zip(("name", "last", "unit", "end"), phase, strict=True))
    run = standing(tmp_path, progress, rows)
    assert (run.speed, run.speed_unit, run.left, run.phase) == expected


def test_a_run_reports_the_end_of_a_phase_at_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = (
        "{name: warmup, actions: random, duration_steps: 64, hooks: [{name: collect, steps: 16}]}",
        "{name: pretrain, type: offline, duration_updates: 4, hooks: [update]}",
        "{name: more, duration_cycles: 2, hooks: [{name: collect, steps: 16}, update]}",
        "{name: train, hooks: [{name: collect, steps: 16}, update]}",
    )
    events = []
    update = RunFolder.update_status

    def watched(folder: RunFolder, **fields: Any) -> None:
        events.append(fields["phase"])
        update(folder, **fields)

    monkeypatch.setattr(RunFolder, "update_status", watched)
    settings = [f"training.phases=[{','.join(phases)}]", "evaluation.every_steps=null", "evaluation.at_end=false"]
    train(tmp_path, "toy/identity:dqn", *settings, "--max-timesteps", "128").succeeded()
    assert [phase for phase, before in zip(events, [None, *events], strict=False) if phase != before] == [
        {"name": "warmup", "last": False, "unit": "env_steps", "end": 64},
        {"name": "pretrain", "last": False, "unit": "updates", "end": 4},
        {"name": "more", "last": False, "unit": "cycles", "end": 4 + 4 + 2},
        {"name": "train", "last": True, "unit": "", "end": None},
    ]


def test_top_names_the_phase_that_ends(tmp_path: Path) -> None:
    phase = {"name": "vision", "last": False, "unit": "updates", "end": 100}
    run = standing(tmp_path, phase, [*ROLLOUTS, *VISION])
    with RunLock(Path(run.dir)):
        output = cadenza("top", "--once", "--runs-dir", tmp_path).succeeded().out
    assert "2 updates/s" in output
    assert "vision 0:00:40" in output
