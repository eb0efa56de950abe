"""Signals at any moment: the run stops at a boundary, prints a message, and resumes exactly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cadenza.engine.signals import Signals
from cadenza.records.folder import RunFolder
from harness.command import assert_same_end, last
from harness.processes import call, start

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129, signal.SIGUSR1: 75}
# children inherit it, so a run started by these tests could not be hung up
IGNORED = pytest.mark.skipif(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="SIGHUP is ignored, as by nohup")
HANGUP = pytest.param(signal.SIGHUP, marks=IGNORED)
STEPS = 8192
LONG = [
    "toy/identity:ppo",
    "algorithm.n_steps=32",
    "algorithm.n_epochs=4",
    "checkpoint.every_steps=2048",
    "evaluation.every_steps=4096",
    "evaluation.episodes=4",
    "--max-timesteps",
    str(STEPS),
]
WORKERS = [*LONG, "environment.vectorize=workers", "environment.workers=2"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The undisturbed long run; environments in workers give the same result."""
    root = tmp_path_factory.mktemp("undisturbed") / "runs"
    assert call(["train", *LONG], root) == (0, "")
    return last(root)


def arguments(root: Path, fresh: list[str]) -> list[str]:
    return ["resume", "@last"] if (root / "@last").exists() else ["train", *fresh]


@pytest.mark.parametrize(
    "number", [HANGUP if number is signal.SIGHUP else number for number in CODES], ids=lambda number: number.name
)
def test_a_run_interrupted_many_times_equals_an_undisturbed_one(
    number: signal.Signals, undisturbed: RunFolder, tmp_path: Path
) -> None:
    root, rng = tmp_path / "runs", random.Random(int(number))
    for turn in range(3):
        command = start(arguments(root, LONG), root).until_locked()
        command.process.join(rng.uniform(0, 0.2))  # let it get somewhere
        command.send(number)
        code = command.wait()
        if last(root).read_status()["status"] == "finished":
            assert code == 0, command.errors
            assert turn > 0, "it was over before it was interrupted: give it more steps"
            break
        assert code == CODES[number], command.errors
        assert last(root).read_status()["status"] == "interrupted"
        assert last(root).read_status()["message"] == number.name
        assert number.name in command.errors
        assert "Traceback" not in command.errors
    else:
        assert call(["resume", "@last"], root) == (0, "")
    assert_same_end(undisturbed, last(root))


@pytest.mark.parametrize("number", [signal.SIGINT, HANGUP], ids=lambda number: number.name)
def test_workers_do_not_outlive_an_interrupted_run(
    number: signal.Signals, undisturbed: RunFolder, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    command = start(["train", *WORKERS], root).until_training(2048)
    children = command.children()
    assert len(children) == 2
    os.killpg(command.pid, number)  # as a terminal does
    assert command.wait() == CODES[number]
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert last(root).read_status()["status"] == "interrupted"
    assert call(["resume", "@last"], root) == (0, "")
    assert_same_end(undisturbed, last(root))


def test_workers_leave_the_groups_signals_to_their_parent(undisturbed: RunFolder, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    command = start(["train", *WORKERS], root, "run:task@3:stop").until_stopped()
    for child in command.children():
        for number in CODES:
            child.send_signal(number)
    command.send(signal.SIGCONT)
    assert command.wait() == 0, command.errors
    assert_same_end(undisturbed, last(root))


def test_a_second_ctrl_c_exits_at_once(undisturbed: RunFolder, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    command = start(["train", *WORKERS], root, "ckpt:before_rename@3+:stop").until_training(1).until_stopped()
    children = command.children()
    command.send(signal.SIGINT)
    command.send(signal.SIGCONT)
    command.until(lambda: "saving at the next boundary" in command.errors)
    command.until_stopped()  # in the middle of that save
    command.send(signal.SIGINT)
    command.send(signal.SIGCONT)
    assert command.wait() == 130
    assert "left at once" in command.errors
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert call(["resume", "@last"], root) == (0, "")
    assert_same_end(undisturbed, last(root))


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.requested is None
            assert signals.ignored == ["SIGHUP"]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_under_nohup_says_that_sighup_is_ignored(tmp_path: Path) -> None:
    command = f"trap '' HUP; exec {sys.executable} -m cadenza train {' '.join([*LONG, '--max-timesteps', '256'])}"
    ended = subprocess.run(["sh", "-c", f"{command} --runs-dir {tmp_path}"], capture_output=True, text=True, check=True)
    assert "SIGHUP is ignored (nohup): the run goes on when the terminal closes" in ended.stderr


def test_a_signal_before_the_first_step_is_handled(undisturbed: RunFolder, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    command = start(["train", *LONG], root, "ckpt:after_write@1:stop").until_stopped()
    command.send(signal.SIGTERM)
    command.send(signal.SIGCONT)
    assert command.wait() == 143
    assert last(root).read_status()["status"] == "interrupted"
    assert last(root).read_status()["env_steps"] == 0
    assert call(["resume", "@last"], root) == (0, "")
    assert_same_end(undisturbed, last(root))


def test_an_interrupted_verify_reports_no_result(undisturbed: RunFolder, tmp_path: Path) -> None:
    command = start(["verify", str(undisturbed.path)], tmp_path / "runs", "run:task@3:stop").until_stopped()
    command.send(signal.SIGINT)
    command.send(signal.SIGCONT)
    assert command.wait() == 130
    assert "Traceback" not in command.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, HANGUP], ids=lambda number: number.name)
def test_several_seeds_stop_together(number: signal.Signals, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    line = [sys.executable, "-m", "cadenza", "train", *LONG, "--max-timesteps", "4000000", "--seed", "1,2"]
    with subprocess.Popen([*line, "--runs-dir", str(root), "--quiet"], stderr=subprocess.PIPE, text=True) as process:
        while not list(root.glob("*/checkpoints/step-*")):
            assert process.poll() is None
            psutil.wait_procs([psutil.Process(process.pid)], timeout=0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        errors = process.communicate(timeout=30)[1]
    assert process.returncode == CODES[number]
    assert "Traceback" not in errors
    assert psutil.wait_procs(children, timeout=10)[1] == []
    runs = [path for path in root.iterdir() if path.is_dir()]
    assert len(runs) == 1, "the second seed did not begin"
    assert RunFolder(runs[0]).read_status()["status"] == "interrupted"
