from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.errors import LockedError
from cadenza.records.lock import RunLock, holder, is_held

HOLD = """
import sys
from pathlib import Path
from cadenza.errors import LockedError
from cadenza.records.lock import RunLock
sys.stdin.readline()
try:
    with RunLock(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
except LockedError as refused:
    print(refused, flush=True)
    sys.exit(refused.exit_code)
"""


def start(run: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds the lock of tmp_path."""
    process = start(tmp_path)
    tell(process)
    assert answer(process) == "held"
    yield process
    process.kill()
    process.communicate()


def test_of_fifty_processes_one_gets_the_lock(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(50)]
    for process in processes:
        tell(process)
    answers = [answer(process) for process in processes]
    assert answers.count("held") == 1
    winner = processes[answers.index("held")]
    assert all(f"process {winner.pid} on " in text for text in answers if text != "held")
    tell(winner)
    for process in processes:
        process.communicate()
    assert sorted(process.returncode for process in processes) == [0] + [LockedError.exit_code] * 49


def test_the_lock_is_released_when_its_holder_is_killed(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    assert is_held(tmp_path)
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert not is_held(tmp_path)
    with RunLock(tmp_path):
        assert holder(tmp_path)["pid"] == os.getpid()


def test_a_refusal_is_quick_and_names_pid_host_and_time(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    with pytest.raises(LockedError) as refused:
        RunLock(tmp_path).acquire()
    assert time.monotonic() - began < 1
    who = holder(tmp_path)
    assert set(who) == {"pid", "host", "boot_id", "started"}
    for part in (str(other.pid), who["host"], who["started"], tmp_path.name):
        assert part in str(refused.value)


def test_checking_a_lock_does_not_take_it(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    before = (tmp_path / "lock").read_bytes()
    assert all(is_held(tmp_path) for _ in range(100))
    assert (tmp_path / "lock").read_bytes() == before
    tell(other)
    other.wait()
    assert not is_held(tmp_path)


def test_concurrent_checks_of_a_lock_do_not_see_each_other(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with RunLock(tmp_path):
        pass
    with open(tmp_path / "lock") as viewer:
        fcntl.flock(viewer, fcntl.LOCK_SH)
        assert not is_held(tmp_path)


def test_a_run_without_a_lock_file_is_free(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_in_the_process_is_refused_until_the_release(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire()
    with pytest.raises(LockedError):
        RunLock(tmp_path).acquire()
    lock.release()
    lock.release()
    with RunLock(tmp_path):
        pass


def test_a_shorter_identity_replaces_a_longer_one_completely(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("x" * 1000)
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


FORK = """
import os, sys
from pathlib import Path
from cadenza.records.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
if os.fork() == 0:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        child = int(answer(parent))
        assert is_held(tmp_path)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        os.kill(child, 0)
        assert not is_held(tmp_path)


def test_programs_started_by_the_holder_do_not_keep_the_lock(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as program:
        file = lock._file
        assert file is not None
        assert is_held(tmp_path)
        os.close(file)  # as when the holder dies
        assert not is_held(tmp_path)
        lock._file = None
        assert program.poll() is None
