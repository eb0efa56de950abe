"""Runs that learn from replay, killed again and again: rows, priorities and cursors are as if nothing had happened."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from cadenza.data.replay import whole as all_rows
from cadenza.data.walks import LAST
from cadenza.orchestration.checkpoint import Checkpoints
from cadenza.orchestration.verify import compare, first_state_difference, flat, uninterrupted
from cadenza.records.folder import find
from harness.killing import SAVING, SEALING, digests, episode_records, kill_and_resume
from harness.processes import call
from harness.replay_runs import RUNS

KILLS = 6


@pytest.mark.parametrize("subject", RUNS)
def test_kills_leave_no_trace_in_replay(subject: str, tmp_path: Path) -> None:
    command = [*RUNS[subject], "--max-timesteps", "4000"]
    whole = uninterrupted(command, tmp_path / "whole")
    named = (*SAVING, *SEALING)
    killed, moments = kill_and_resume(command, tmp_path / "killed", KILLS, random.Random(len(subject)), named)
    assert len(moments) == KILLS, f"the run ended after {moments}: give it more steps"
    assert compare(whole, killed) is None
    assert digests(whole) == digests(killed)
    assert episode_records(whole) == episode_records(killed)


@pytest.mark.parametrize("subject", RUNS)
@pytest.mark.parametrize("failpoint", ["run:task@150", "replay:sealed@6"])
def test_killed_after_a_checkpoint_nothing_collected_since_is_there(
    subject: str, failpoint: str, tmp_path: Path
) -> None:
    """The future-data case: what was collected between that checkpoint and the kill, in memory or in segments."""
    command = [*RUNS[subject], "checkpoint.keep=1000", "--max-timesteps", "1500"]
    assert call(["train", *command], tmp_path / "alone")[0] == 0
    assert call(["train", *command], tmp_path / "killed", failpoint)[0] == -signal.SIGKILL
    alone, killed = (find(tmp_path / name, "@last") for name in ("alone", "killed"))
    checkpoints = Checkpoints.of(killed)
    unnamed = len(list(killed.replay.glob("*/*.safetensors")))
    newest = checkpoints.newest(pytest.fail)
    assert newest is not None
    name, state = newest
    left = unnamed - len(list(killed.replay.glob("*/*.safetensors")))
    assert (left > 0) == failpoint.startswith("replay:")  # segments from the future, and they are gone
    there = all_rows(state["store.replay"], killed.replay / "replay")
    then = all_rows(Checkpoints.of(alone).load(name)["store.replay"], alone.replay / "replay")
    assert first_state_difference(dict(flat(there)), dict(flat(then)), ()) is None
    transitions = there["tail"]["rows"]["flags"] & LAST == 0
    assert 0 < int(name.split("-")[1]) == transitions.sum() - len(there["head"])  # the open rows are no transitions
    assert call(["resume", "@last"], tmp_path / "killed")[0] == 0
    assert compare(alone, killed) is None
    assert digests(alone) == digests(killed)
