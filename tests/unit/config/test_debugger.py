from __future__ import annotations

import bdb
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.debugger import attached, with_one_environment
from cadenza.config.load import load
from cadenza.config.registry import register_algorithm
from cadenza.config.setting import setting
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.records.folder import find
from cadenza.types import EnvSpec
from harness.command import SMALL, resume
from harness.memory import Memory, MemoryConfig


def test_no_debugger_is_detected_by_default_or_under_coverage() -> None:
    before = sys.gettrace()
    assert attached() is None
    sys.settrace(lambda frame, event, argument: None)  # what a coverage tool does
    try:
        assert attached() is None
    finally:
        sys.settrace(before)


def test_a_program_started_by_a_debugger_is_detected_without_tracing() -> None:
    answers = []

    class Silent(bdb.Bdb):
        def user_line(self, frame: Any) -> None:
            self.set_continue()

    Silent().runcall(lambda: answers.append(attached()))
    assert answers == ["pdb"]
    assert attached() is None


def test_debugpy_counts_when_someone_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Debugpy:
        connected = False

        @classmethod
        def is_client_connected(cls) -> Any:
            return cls.connected

    monkeypatch.setitem(sys.modules, "debugpy", Debugpy)
    assert attached() is None
    Debugpy.connected = True
    assert attached() == "debugpy"


def test_one_environment_collects_as_much_as_all_of_them() -> None:
    config = load("CartPole-v1:ppo", ["environment.vectorize=workers"])
    one = with_one_environment(config, check(config))
    assert (one.environment.num_envs, one.evaluation.num_envs, one.environment.vectorize) == (1, 1, "in_process")
    assert one.algorithm.n_steps == config.algorithm.n_steps * config.environment.num_envs
    assert one.algorithm.batch_size == config.algorithm.batch_size


@pytest.mark.parametrize("length", ["null", "8"])
def test_sequences_for_a_memory_keep_their_length_in_one_environment(length: str) -> None:
    memory = ["algorithm.torso.memory.type=lstm", f"algorithm.torso.memory.sequence_length={length}"]
    sizes = ["algorithm.n_steps=32", "algorithm.batch_size=64", "environment.num_envs=8"]
    config = load("Pendulum-v1:ppo", [*memory, *sizes])
    one = with_one_environment(config, check(config)).algorithm
    assert (one.n_steps, one.sequence_length) == (256, config.algorithm.sequence_length)
    assert one.minibatch(1) == config.algorithm.minibatch(8)


def test_returns_of_several_steps_and_memories_of_whole_episodes_are_unchanged_in_one_environment() -> None:
    rainbow, memory = load("CartPole-v1:rainbow"), ["algorithm.torso.memory.type=lstm"]
    reinforce = load("CartPole-v1:reinforce", memory)
    for config in (rainbow, reinforce):
        assert config.environment.num_envs > 1
        assert with_one_environment(config, check(config)).algorithm == config.algorithm


def test_an_algorithm_that_refuses_longer_rollouts_keeps_its_settings(forgotten: None) -> None:
    @dataclass(frozen=True)
    class Particular(MemoryConfig):
        n_steps: int = setting(4, "always four", "vec_steps")
        n_step: int = setting(3, "steps of a return, not of a rollout", "steps")

        def check(self, env: EnvSpec, num_envs: int) -> None:
            if self.n_steps != 4:
                raise ConfigError("algorithm.n_steps: must be 4")

    register_algorithm("particular", config=Particular)(Memory)
    config = load("toy/identity:particular")
    one = with_one_environment(config, check(config))
    assert (one.algorithm, one.environment.num_envs) == (config.algorithm, 1)


def test_a_run_under_pdb_prints_a_note_and_resumes_unchanged(tmp_path: Path) -> None:
    command = ["-m", "cadenza", "train", "CartPole-v1:ppo", *SMALL[:-1], "512", "--quiet", "--runs-dir", str(tmp_path)]
    pdb = [sys.executable, "-m", "pdb", "-c", "continue", "-c", "quit", *command]
    process = subprocess.run(pdb, input="", capture_output=True, text=True)
    assert "warning: pdb is attached: one environment in this process" in process.stderr, (
        process.stdout + process.stderr
    )
    folder = find(tmp_path, "@last")
    assert folder.read_status()["env_steps"] == 512
    assert json.loads((folder.path / "decisions.json").read_text())["debugger"]["value"] == "pdb"
    resume(tmp_path, "@last", "--max-timesteps", "640").succeeded()
    assert folder.read_config(False).environment.num_envs == 1
    assert folder.read_status()["env_steps"] == 640
