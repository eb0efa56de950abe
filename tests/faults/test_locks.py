"""One writer per run: a second one is refused at once, and the lock of a dead process is free."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from cadenza.records.folder import RunFolder
from harness.command import TOY, assert_same_end, cadenza, last, resume
from harness.processes import call, start

LONG = [*TOY, "--max-timesteps", "1000000"]


def test_a_run_in_use_is_refused_at_once(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    holder = start(["train", *LONG], root).until_training()
    began = time.monotonic()
    resume(root, "@last", "--max-timesteps", "1").refused(73, last(root).id, f"process {holder.pid} ")
    assert time.monotonic() - began < 1
    assert "running" in cadenza("show", "@last", "--runs-dir", root).succeeded().out
    cadenza("evaluate", "@last", "--episodes", "2", "--runs-dir", root).succeeded()
    holder.send(signal.SIGTERM)
    assert holder.wait() == 143


def test_the_lock_of_a_killed_process_is_free(whole: RunFolder, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    holder = start(["train", *TOY, "environment.vectorize=workers"], root).until_training()
    os.killpg(holder.pid, signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    assert (last(root).path / "lock").exists()
    assert "crashed" in cadenza("show", "@last", "--runs-dir", root).succeeded().out
    assert call(["resume", "@last"], root) == (0, "")
    assert_same_end(whole, last(root))


def test_workers_left_by_a_killed_parent_do_not_keep_the_lock(whole: RunFolder, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    holder = start(["train", *TOY, "environment.vectorize=workers"], root).until_training()
    holder.send(signal.SIGKILL)  # the parent alone
    holder.wait()
    resume(root).succeeded()
    assert_same_end(whole, last(root))
