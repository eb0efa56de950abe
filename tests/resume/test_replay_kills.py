"""Runs with replay that are killed many times: rows, priorities and cursors equal those of an undisturbed run."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from cadenza.data.replay import whole as all_rows
from cadenza.data.ring_steps import LAST
from cadenza.records.checkpoint import Checkpoints
from cadenza.records.folder import RunFolder, find
from cadenza.tools.verify import compare, first_state_difference, flat
from harness.command import episode_records, last, train
from harness.killing import SAVING, SEALING, digests, kill_and_resume, rotated
from harness.processes import call
from harness.replay_runs import RUNS

KILLS, TASKS = 8, 64


@pytest.mark.parametrize("subject", RUNS)
def test_kills_leave_no_trace_in_replay(subject: str, tmp_path: Path) -> None:
    command = [*RUNS[subject], "--max-timesteps", "2500"]
    train(tmp_path / "whole", *command).succeeded()
    whole = last(tmp_path / "whole")
    number = list(RUNS).index(subject)
    named = rotated(list(dict.fromkeys(SAVING + SEALING)), number * (KILLS // 2))
    killed, moments = kill_and_resume(command, tmp_path / "killed", KILLS, random.Random(number), named, tasks=TASKS)
    assert len(moments) == KILLS, f"the run ended after {moments}: give it more steps"
    assert compare(whole, killed) is None
    assert digests(whole) == digests(killed)
    assert episode_records(whole) == episode_records(killed)


def keeping(subject: str) -> list[str]:
    return [*RUNS[subject], "checkpoint.keep=1000", "--max-timesteps", "1500"]


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """Return the run of a subject with all of its checkpoints; it is made by the first call."""

    @cache
    def run_of(subject: str) -> RunFolder:
        root = tmp_path_factory.mktemp("alone") / "runs"
        assert call(["train", *keeping(subject)], root)[0] == 0
        return find(root, "@last")

    return run_of


@pytest.mark.parametrize("subject", RUNS)
@pytest.mark.parametrize("failpoint", ["run:task@150", "replay:sealed@6"])
def test_rows_collected_after_the_checkpoint_are_gone_after_a_kill(
    subject: str, failpoint: str, left_alone: Callable[[str], RunFolder], tmp_path: Path
) -> None:
    """Rows collected between the checkpoint and the kill, in memory or in segments, must be gone after the resume."""
    assert call(["train", *keeping(subject)], tmp_path / "killed", failpoint)[0] == -signal.SIGKILL
    alone, killed = left_alone(subject), find(tmp_path / "killed", "@last")
    checkpoints = Checkpoints.from_run(killed)
    unnamed = len(list(killed.replay.path.glob("*/*.safetensors")))
    newest = checkpoints.newest(pytest.fail)
    assert newest is not None
    name, state = newest
    left = unnamed - len(list(killed.replay.path.glob("*/*.safetensors")))
    assert (left > 0) == failpoint.startswith("replay:")  # segments from the future, and they are gone
    there = all_rows(state["store.replay"], killed.replay / "replay")
    then = all_rows(Checkpoints.from_run(alone).load(name)["store.replay"], alone.replay / "replay")
    assert first_state_difference(dict(flat(there)), dict(flat(then)), ()) is None
    transitions = there["tail"]["rows"]["flags"] & LAST == 0
    assert 0 < int(name.split("-")[1]) == transitions.sum() - len(there["head"])  # the open rows are no transitions
    assert call(["resume", "@last"], tmp_path / "killed")[0] == 0
    assert compare(alone, killed) is None
    assert digests(alone) == digests(killed)
