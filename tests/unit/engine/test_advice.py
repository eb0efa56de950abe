from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.engine.advice import refuse_several_processes
from harness.command import cadenza, resume, train

QUICK = ["CartPole-v1:ppo", "training.max_timesteps=256", "evaluation.at_end=false", "evaluation.every_steps=0"]


def test_several_threads_are_warned_of_by_train_and_plan(tmp_path: Path) -> None:
    outcome = train(tmp_path, *QUICK, "runtime.threads=2").succeeded()
    assert any("runtime.threads=2" in line and "slower" in line for line in outcome.warnings)
    plan = json.loads(cadenza("plan", *QUICK, "runtime.threads=2", "--json").succeeded().out.splitlines()[-1])
    assert [line for line in plan["warnings"] if "runtime.threads=2" in line]
    assert not train(tmp_path, *QUICK, "runtime.threads=1").succeeded().warnings


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
