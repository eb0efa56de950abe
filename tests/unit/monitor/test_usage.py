"""What a run takes of its machine stands in its rows, outside what is compared; `top` shows it while it runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadenza.monitor import usage
from cadenza.records.lock import RunLock
from cadenza.records.metrics import compared, read
from cadenza.records.running import describe
from harness.command import TOY, cadenza, last, train


def test_rows_tell_time_by_part_and_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "SAMPLE_SECONDS", 0.0)
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


def test_processors_count_with_workers() -> None:
    spin = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.2: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) as worker:
        others = usage.workers()
        assert worker.pid in others
        deadline = time.monotonic() + 30
        while usage.cpu_seconds([worker.pid]) - time.process_time() < 0.15 and time.monotonic() < deadline:
            pass
        assert usage.cpu_seconds([worker.pid]) - time.process_time() >= 0.15
        assert usage.resident(worker.pid) > 1_000_000
        worker.communicate(b"\n")
    assert usage.resident(worker.pid) == 0


def test_top_shows_what_is_running_and_nothing_else(tmp_path: Path) -> None:
    train(tmp_path, *TOY, "logging.alerts.rules.mine={metric:train/kl,above:-1,times:1,severity:log}").succeeded()
    folder = last(tmp_path)
    assert "nothing is running" in cadenza("top", "--runs-dir", tmp_path).succeeded().err
    with RunLock(folder.path):
        shown = cadenza("top", "--once", "--runs-dir", tmp_path).succeeded().out
        (run,) = json.loads(cadenza("top", "--json", "--runs-dir", tmp_path).succeeded().out)["runs"]
    assert folder.id in shown
    assert "2,048 (100%)" in shown
    assert f"{folder.id}: mine at step 128: train/kl is" in shown
    assert (run["done"], run["budget"], run["left"], run["alerts"]) == (2048, 2048, 0, 1)
    assert run["latest_return"] == folder.read_status()["eval/return_mean"]
    assert run["speed"] > 0


def test_the_speed_of_a_phase_is_not_taken_for_that_of_another(tmp_path: Path) -> None:
    train(tmp_path, *TOY).succeeded()
    folder = last(tmp_path)
    before = describe(folder)
    assert before.speed
    row = json.loads(folder.metrics.read_text().splitlines()[-1])
    later = [row | {"phase": "dream", "time/seconds": row["time/seconds"] + seconds} for seconds in (10.0, 20.0)]
    with folder.metrics.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in later)
    now = describe(folder)
    assert (now.done, now.speed, now.left) == (before.done, 0.0, None)
