"""Training where the calls of POSIX are missing, as on Windows: harness/without_posix.py removes them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cadenza.engine import signals
from harness.command import SMALL, TOY, assert_same_end, last, resume, train
from harness.faulty_environment import FAULTY
from harness.without_posix import environment

SCRIPT = """
import sys
from pathlib import Path
from cadenza.cli.main import run
from cadenza.errors import LockedError
from cadenza.records.folder import find
from cadenza.records.lock import RunLock, is_held
from cadenza.watch import alerts

root, (workers, faulty) = sys.argv[1], {lines}
rooted = ["--runs-dir", root]

assert run(["train", *workers, *rooted, "--quiet"]) == 0
assert run(["resume", "@last", "--max-timesteps", "2048", *rooted, "--quiet"]) == 0
assert run(["list", *rooted]) == 0

folder = find(Path(root), "@last").path
with RunLock(folder):
    assert is_held(folder)
    try:
        RunLock(folder).acquire()
    except LockedError as refused:
        assert "is in use by process" in str(refused)
    else:
        raise AssertionError("locked twice")
assert not is_held(folder)

alerts.DELIVERY_SECONDS = 0.05
try:
    alerts.run_command("sleep 10", "", {{}})
except TimeoutError:
    pass

for way in ("in_process", "workers"):
    assert run(["train", *faulty, f"environment.vectorize={{way}}", "--runs-dir", f"{{root}}/faulty", "--quiet"]) == 70
"""


def test_without_posix_runs_are_the_same_and_hangs_are_noticed(tmp_path: Path) -> None:
    root, usual = tmp_path / "runs", tmp_path / "usual"
    workers = [*TOY[:-1], "1024", "environment.vectorize=workers", "environment.workers=2"]
    faulty = [f"{FAULTY}:ppo", *SMALL, "environment.kwargs={hang_at: 40}"]
    faulty += ["environment.timeout_seconds=0.4", "evaluation.every_steps=null"]
    script = SCRIPT.format(lines=(workers, faulty))
    command = [sys.executable, "-c", script, str(root)]
    done = subprocess.run(command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert all(" took longer than 0.4 s, at step 40 of episode 0" in line for line in errors)
    assert not [path for path in Path(tempfile.gettempdir()).glob("cadenza-envs-*") if path.is_file()]
    train(usual, *workers).succeeded()
    resume(usual, "@last", "--max-timesteps", "2048").succeeded()
    assert_same_end(last(usual), last(root))


def test_a_signal_is_not_passed_on_where_children_share_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    class Child:
        send_signal = sent.append

    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        signals.pass_to(Child(), 2)  # type: ignore[arg-type]
    assert sent == []
    signals.pass_to(Child(), 2)  # type: ignore[arg-type]
    assert sent == [2]
