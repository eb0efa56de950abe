"""Kills of real training processes, and checks that the final result is the same.

A new algorithm is checked in one line:

    assert_kills_leave_no_trace(["CartPole-v1:dqn", "training.max_timesteps=20000"], tmp_path)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cadenza.records.folder import RunFolder, find
from cadenza.records.metrics import read
from cadenza.tools.verify import bytes_of, compare, final_state
from harness.command import episode_records, last, train
from harness.processes import holder, start

SAVING = (
    "ckpt:before_fsync",
    "ckpt:after_write",
    "ckpt:before_rename",
    "ckpt:after_rename",
    "ckpt:before_prune",
    "atomic:before_rename",
    "metrics:append",
)
SEALING = ("replay:sealed", "atomic:before_fsync", "atomic:before_rename", "atomic:after_rename")  # of replay segments
OFTEN = ["checkpoint.every_steps=1024", "evaluation.every_steps=4096", "evaluation.episodes=4"]
PAUSE = 0.05  # seconds; other kills are within this time after a process took its lock, or finished some tasks
TO_THE_END = 600.0
UntilDead = Callable[[list[str], Path, str, float], bool]


def assert_kills_leave_no_trace(command: list[str], root: Path, kills: int = 4, seed: int = 0) -> None:
    """Check a run with half of the kills at named moments of saving (some while it is stopped there), half at any."""
    command = [*command, *OFTEN]
    train(
        root / "whole", *command
    ).succeeded()  # in this process, where strings have other hashes than in the killed ones
    whole = last(root / "whole")
    named = rotated(SAVING, seed * (kills // 2))
    killed, moments = kill_and_resume(command, root / "killed", kills, random.Random(seed), named)
    assert len(moments) == kills, f"the run ended after {len(moments)} kills: give it more steps"
    assert compare(whole, killed) is None
    assert episode_records(whole) == episode_records(killed)


def rotated(moments: Sequence[str], by: int) -> list[str]:
    """Rotate the moments, so that several runs with a few kills each cover all of them."""
    return [moments[(by + index) % len(moments)] for index in range(len(moments))]


def forked(arguments: list[str], root: Path, failpoint: str, pause: float) -> bool:
    """Start a process in a group of its own and kill the group; return False if it finished first.

    It is killed by the failpoint, or `pause` seconds after it stopped there (or took its lock, without a failpoint).
    """
    command = start(arguments, root, failpoint)
    if failpoint:
        command.until_stopped()
    else:
        command.until_locked()
    if command.process.is_alive():
        command.send(signal.SIGCONT)
        command.process.join(pause)
    if command.process.is_alive():
        os.killpg(command.pid, signal.SIGKILL)
    code = command.wait()
    assert code in (0, -signal.SIGKILL), command.errors
    return code != 0


def fresh(arguments: list[str], root: Path, failpoint: str, pause: float) -> bool:
    """Do the same in a new interpreter with its own string hashes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cadenza", *arguments, "--runs-dir", str(root), "--quiet"],
        env=os.environ | {"CADENZA_FAILPOINT": failpoint, "PYTHONHASHSEED": "random"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    if failpoint:
        wait_for_end_or_stop(process)
    else:
        wait_for_lock(process, root)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=pause)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0


def kill_and_resume(
    command: list[str],
    root: Path,
    kills: int,
    rng: random.Random,
    named: Sequence[str],
    until_dead: UntilDead = forked,
    tasks: int = 8,
) -> tuple[RunFolder, list[str]]:
    """Train, kill and resume until there are enough kills, then finish; return the run and the moments of the kills.

    Every second kill is at a named moment, in order; the others are after a few tasks.
    """
    moments: list[str] = []
    while len(moments) < kills and not finished(root):
        arguments = ["resume", "@last"] if (root / "@last").exists() else ["train", *command]
        pause = 0.0
        if len(moments) % 2:
            kind = rng.choice(["kill", "kill", "stop"])
            failpoint = f"{named[len(moments) // 2 % len(named)]}@{rng.randint(1, 3)}:{kind}"
        else:
            after, pause = rng.randint(0, tasks), rng.uniform(0, PAUSE)
            failpoint = f"run:task@{after}:stop" if after else ""
        if until_dead(arguments, root, failpoint, pause):
            moments.append(f"{failpoint or 'lock'} + {pause:.3f} s" if pause else failpoint)
    if not finished(root):
        assert not until_dead(["resume", "@last"], root, "", TO_THE_END)
    return find(root, "@last"), moments


def wait_for_end_or_stop(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process ends or stops at a failpoint."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        process.returncode = os.waitstatus_to_exitcode(status)


def wait_for_lock(process: subprocess.Popen[bytes], root: Path) -> None:
    """Wait until the process holds the lock of its run, or ends."""
    while True:
        try:
            process.wait(timeout=0.02)
            return
        except subprocess.TimeoutExpired:
            if (root / "@last").exists() and holder(find(root, "@last")) == process.pid:
                return


def finished(root: Path) -> bool:
    return (root / "@last").exists() and find(root, "@last").read_status().get("status") == "finished"


def digests(folder: RunFolder) -> dict[str, str]:
    """Return hashes of the final state of a run with replay: weights, optimizer, replay, priorities, metrics."""
    kinds = {
        "weights": lambda path: path.startswith("workflow.") and ".optimizers." not in f".{path}",
        "optimizer": lambda path: path.startswith("workflow.optimizers."),
        "replay": lambda path: path.startswith("store.") and ".priorities" not in path,
        "priorities": lambda path: path.startswith("store.") and ".priorities." in path,
    }
    state = final_state(folder)
    result = {}
    for kind, belongs in kinds.items():
        content, paths = hashlib.sha256(), sorted(filter(belongs, state))
        for path in paths:
            leaf = state[path]
            content.update(path.encode())
            content.update(bytes_of(leaf) if hasattr(leaf, "shape") else repr(leaf).encode())
        if paths:
            result[kind] = content.hexdigest()
    result["metrics"] = read(folder.metrics)[-1]["digest"]  # of all rows
    return result
