"""Really kills real training processes, again and again, and asks whether anyone can tell afterwards.

A new algorithm is put through it in one line:

    assert_kills_leave_no_trace(["CartPole-v1:dqn", "training.max_timesteps=20000"], tmp_path)
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from cadenza.orchestration.verify import compare, uninterrupted
from cadenza.records.folder import RunFolder, find

SAVING = (
    "ckpt:before_fsync",
    "ckpt:after_write",
    "ckpt:before_rename",
    "ckpt:after_rename",
    "ckpt:before_prune",
    "atomic:before_rename",
    "metrics:append",
)
TRAINING_SECONDS = 0.4  # random kills fall within this time after the run took its lock


def assert_kills_leave_no_trace(command: list[str], root: Path, kills: int = 20, seed: int = 0) -> None:
    """Half of the kills at named moments of saving (some from outside, while it stands still there), half at any."""
    command = [*command, "checkpoint.every_steps=1024", "evaluation.every_steps=4096", "evaluation.episodes=4"]
    whole = uninterrupted(command, root / "whole")
    killed, count = kill_and_resume(command, root / "killed", kills, random.Random(seed))
    assert count == kills, f"the run ended after {count} kills: give it more steps"
    assert compare(whole, killed) is None
    assert episode_records(whole) == episode_records(killed)


def kill_and_resume(command: list[str], root: Path, kills: int, rng: random.Random) -> tuple[RunFolder, int]:
    """Train, kill, resume, kill … until enough; then let it finish."""
    count = 0
    while count < kills and not finished(root):
        arguments = ["resume", "@last"] if (root / "@last").exists() else ["train", *command]
        if count % 2:
            kind = rng.choice(["kill", "kill", "stop"])
            count += run_until_dead(arguments, root, rng, f"{rng.choice(SAVING)}@{rng.randint(1, 3)}:{kind}")
        else:
            count += run_until_dead(arguments, root, rng, "")
    if not finished(root):
        subprocess.run(cadenza(["resume", "@last"], root), check=True, capture_output=True)
    return find(root, "@last"), count


def run_until_dead(arguments: list[str], root: Path, rng: random.Random, failpoint: str) -> int:
    """Start the process in a group of its own and see that all of it dies; 1 if killed, 0 if it finished first."""
    environment = os.environ | {"CADENZA_FAILPOINT": failpoint, "PYTHONHASHSEED": str(rng.randrange(1000))}
    process = subprocess.Popen(
        cadenza(arguments, root),
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        if failpoint:
            wait_for_end_or_stop(process)
        else:
            wait_for_lock(process, root)
            process.wait(timeout=rng.uniform(0, TRAINING_SECONDS))
    except subprocess.TimeoutExpired:
        pass
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return int(process.returncode != 0)


def wait_for_end_or_stop(process: subprocess.Popen[bytes]) -> None:
    """Until the process is gone or stands still at a failpoint."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.returncode = os.waitstatus_to_exitcode(status)


def wait_for_lock(process: subprocess.Popen[bytes], root: Path) -> None:
    """Until the process holds its run, or ends."""
    while True:
        try:
            process.wait(timeout=0.02)
            return
        except subprocess.TimeoutExpired:
            if (root / "@last").exists() and holder(find(root, "@last")) == process.pid:
                return


def holder(folder: RunFolder) -> int | None:
    try:
        return int(json.loads((folder.path / "lock").read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def finished(root: Path) -> bool:
    return (root / "@last").exists() and find(root, "@last").read_status().get("status") == "finished"


def cadenza(arguments: list[str], root: Path) -> list[str]:
    return [sys.executable, "-m", "cadenza", *arguments, "--runs-dir", str(root), "--quiet"]


def episode_records(folder: RunFolder) -> list[tuple[object, ...]]:
    """Every recorded training episode."""
    from cadenza.records.episodes import load

    return [
        (one.env, one.number, one.seed, one.length, *(actions.tobytes() for actions in one.actions.values()))
        for one in load(folder)
    ]
