"""Really kills real training processes, again and again, and asks whether anyone can tell afterwards.

A new algorithm is put through it in one line:

    assert_kills_leave_no_trace(["CartPole-v1:dqn", "training.max_timesteps=20000"], tmp_path)
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cadenza.orchestration.verify import bytes_of, compare, final_state, uninterrupted
from cadenza.records.folder import RunFolder, find
from cadenza.records.metrics import read

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
TRAINING_SECONDS = 0.4  # random kills fall within this time after the run took its lock


def assert_kills_leave_no_trace(command: list[str], root: Path, kills: int = 20, seed: int = 0) -> None:
    """Half of the kills at named moments of saving (some from outside, while it stands still there), half at any."""
    command = [*command, "checkpoint.every_steps=1024", "evaluation.every_steps=4096", "evaluation.episodes=4"]
    whole = uninterrupted(command, root / "whole")
    killed, moments = kill_and_resume(command, root / "killed", kills, random.Random(seed))
    assert len(moments) == kills, f"the run ended after {len(moments)} kills: give it more steps"
    assert compare(whole, killed) is None
    assert episode_records(whole) == episode_records(killed)


def kill_and_resume(
    command: list[str], root: Path, kills: int, rng: random.Random, named: Sequence[str] = SAVING
) -> tuple[RunFolder, list[str]]:
    """Train, kill, resume, kill … until enough; then let it finish. The run, and the moments of the kills."""
    moments: list[str] = []
    while len(moments) < kills and not finished(root):
        arguments = ["resume", "@last"] if (root / "@last").exists() else ["train", *command]
        failpoint, seconds = "", 0.0
        if len(moments) % 2:
            kind = rng.choice(["kill", "kill", "stop"])
            failpoint = f"{rng.choice(named)}@{rng.randint(1, 3)}:{kind}"
        else:
            seconds = rng.uniform(0, TRAINING_SECONDS)
        if run_until_dead(arguments, root, rng, failpoint, seconds):
            moments.append(failpoint or f"after {seconds:.3f} s")
    if not finished(root):
        subprocess.run(cadenza(["resume", "@last"], root), check=True, capture_output=True)
    return find(root, "@last"), moments


def run_until_dead(arguments: list[str], root: Path, rng: random.Random, failpoint: str, seconds: float) -> bool:
    """Start the process in a group of its own and see that all of it dies; False if it finished first.

    It is killed at the failpoint, else so many seconds after it took its lock.
    """
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
            process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        pass
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0


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


def digests(folder: RunFolder) -> dict[str, str]:
    """What a finished run that learned from replay ended with, in a hash for each kind of thing."""
    kinds = {
        "weights": lambda path: path.startswith("workflow.") and ".optimizers." not in f".{path}",
        "optimizer": lambda path: path.startswith("workflow.optimizers."),
        "replay": lambda path: path.startswith("store.") and ".priorities" not in path,
        "priorities": lambda path: path.startswith("store.") and ".priorities." in path,
    }
    state = final_state(folder)
    found = {}
    for kind, belongs in kinds.items():
        content, paths = hashlib.sha256(), sorted(filter(belongs, state))
        for path in paths:
            leaf = state[path]
            content.update(path.encode())
            content.update(bytes_of(leaf) if hasattr(leaf, "shape") else repr(leaf).encode())
        if paths:
            found[kind] = content.hexdigest()
    found["metrics"] = read(folder.metrics)[-1]["digest"]  # of all rows
    return found
