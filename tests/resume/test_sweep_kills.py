"""A sweep on real processes that is killed, interrupted and resumed equals an undisturbed one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from cadenza.lab.sweeps.journal import Journal
from cadenza.lab.sweeps.sweep_file import read
from cadenza.lab.sweeps.sweep_plan import plan
from cadenza.tools.verify import compare
from harness.command import cadenza
from harness.files import safe
from harness.processes import PATIENCE
from harness.sweeping import BUDGET, TINY, folders, outcomes, run

MIDWAY = "run:task@3:stop"  # where runs stand still, so that there is time to do something to them


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "tried.yaml"
    space = {**TINY, "algorithm.learning_rate": [0.001, 0.1]}
    content = {"base": "CartPole-v1:ppo", "sweep": space, "max_timesteps": BUDGET, "parallel_jobs": 2}
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., psutil.Popen]]:
    """Start sweeps; kill what is left of them after a failed test."""
    started: list[psutil.Popen] = []

    def start(file: Path, root: Path, *more: str) -> psutil.Popen:
        command = [sys.executable, "-m", "cadenza", "sweep", str(file), "--runs-dir", str(root), *more]
        environ = {**os.environ, "CADENZA_FAILPOINT": MIDWAY}
        started.append(psutil.Popen(command, stderr=subprocess.PIPE, text=True, env=environ))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in (*process.children(), process):
                one.kill()


def standing_still(process: psutil.Popen, count: int) -> list[psutil.Process]:
    """Return the sweep's runs as soon as `count` of them have stopped midway."""

    def stopped() -> list[psutil.Process]:
        return [child for child in process.children() if child.status() == psutil.STATUS_STOPPED]

    until(lambda: len(stopped()) == count, process)
    return stopped()


def until(holds: Callable[[], bool], process: psutil.Popen) -> None:
    for _ in range(int(PATIENCE / 0.02)):
        if holds():
            return
        assert process.poll() is None, process.stderr.read()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(0.02)
    raise AssertionError("waited in vain")


def test_killed_and_interrupted_sweeps_end_like_an_undisturbed_one(
    tmp_path: Path, sweep_file: Path, start: Callable[..., psutil.Popen]
) -> None:
    root, made = tmp_path / "runs", plan(read(sweep_file))

    killed = start(sweep_file, root)
    one, other = standing_still(killed, 2)
    killed.kill()
    one.kill()
    other.resume()  # it finds its sweep gone, saves and stops
    psutil.wait_procs([killed, one, other], PATIENCE)
    states = sorted(row["status"] for row in json.loads(cadenza("list", "--json", "--runs-dir", root).out)["runs"])
    assert states == ["crashed", "interrupted"]

    interrupted = start(sweep_file, root, "--jobs", "1")
    (child,) = standing_still(interrupted, 1)
    interrupted.send_signal(signal.SIGINT)
    until(lambda: not signals_pending(interrupted), interrupted)
    child.resume()
    assert interrupted.wait(PATIENCE) == 130
    assert "0 of 2 trials done, nothing is lost; continue with: cadenza sweep" in interrupted.stderr.read()

    outcome = cadenza("sweep", sweep_file, "--runs-dir", root, "--json").succeeded()
    result = json.loads(outcome.out.splitlines()[-1])
    assert result["status"] == "finished"
    journal = Journal(safe(root / "sweeps" / made.id / "journal.jsonl"))
    journal.close()
    whole = run(made, tmp_path / "whole")
    assert outcomes(list(journal.trials.values())) == outcomes(whole)
    for ours, theirs in zip(
        folders(list(journal.trials.values()), root), folders(whole, tmp_path / "whole"), strict=True
    ):
        assert compare(ours, theirs) is None
    listed = json.loads(cadenza("list", "--json", "--runs-dir", root).out)["runs"]
    assert sorted(row["run"] for row in listed) == sorted(run for trial in result["trials"] for run in trial["runs"])
    assert {row["status"] for row in listed} == {"finished"}


def signals_pending(process: psutil.Popen) -> bool:
    """Return whether a signal is still pending; False where this cannot be determined."""
    status = Path(f"/proc/{process.pid}/status")
    pending = [line for line in status.read_text().splitlines() if line.startswith("ShdPnd")] if status.exists() else []
    return any(int(line.split()[1], 16) for line in pending)
