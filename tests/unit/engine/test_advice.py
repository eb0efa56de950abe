from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.load import load
from cadenza.engine.advice import refuse_several_processes, threads_note
from harness.command import last, resume, train

QUICK = ["CartPole-v1:ppo", "training.max_timesteps=256", "evaluation.at_end=false", "evaluation.every_steps=0"]


def test_a_run_that_uses_fewer_threads_than_configured_says_so(tmp_path: Path) -> None:
    outcome = train(tmp_path, *QUICK, "runtime.threads=2").succeeded()
    assert not outcome.warnings
    config = load("CartPole-v1:ppo", ["runtime.threads=2"])
    note = "runtime.threads=2: 1 is used, the products of this run are too small to gain from more"
    assert threads_note(config, last(tmp_path).read_decisions()) == note
    assert threads_note(config, {"runtime.threads": 2}) is None
    assert threads_note(load("CartPole-v1:ppo"), {"runtime.threads": 1}) is None


def test_one_of_several_torchrun_processes_is_refused_and_makes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, *QUICK).succeeded()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    train(tmp_path, *QUICK).refused(2, "torchrun started 2 processes", "--jobs")
    resume(tmp_path, "@last", "--max-timesteps", 512).refused(2, "torchrun started 2 processes")
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_a_single_torchrun_process_and_foreign_variables_are_accepted() -> None:
    refuse_several_processes({"WORLD_SIZE": "1", "RANK": "0"})
    refuse_several_processes({"WORLD_SIZE": "2"})
    refuse_several_processes({"WORLD_SIZE": "two", "RANK": "0"})
