"""The memory that `cadenza plan` predicts equals that of a real process with a full replay."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadenza.base import resource_usage
from cadenza.config.load import load
from cadenza.data.replay import ReplayStore
from cadenza.engine.launch import check
from cadenza.errors import ConfigError
from cadenza.tools import plan as planning

# Random actions of many environments fill it in seconds; then some updates. Rows of 31 bytes, priorities of 5 more.
ROWS, ENVS = 3_000_000, 256
SETTINGS = [
    f"environment.num_envs={ENVS}",
    f"algorithm.buffer_size={ROWS}",
    f"algorithm.warmup_steps={ROWS}",
    "algorithm.train_every=25600",
    "algorithm.update_ratio=0.001",
    "training.max_timesteps=4000000",
    "checkpoint.every_steps=0",
    "evaluation.every_steps=0",
    "logging.episodes=false",
]
DQN = ["CartPole-v1:dqn", "algorithm.priority_alpha=0.6", *SETTINGS]
PHASES = (  # SAC's own warm-up is one piece
    "training.phases=[{name: warmup, hooks: [{name: collect, steps: 25600}], actions: random, duration_steps: 3000000},"
    " {name: train, hooks: [{name: collect, steps: 25600}, {name: update, times: 25}]}]"
)
RUNS = {
    "on disk": [*DQN, "algorithm.buffer_on_disk=true"],
    "uniform": ["CartPole-v1:sac", PHASES, *SETTINGS],
}
TASKS = 126  # 118 of warm-up, one that collects, then some that learn


def resident(arguments: list[str], root: Path) -> int:
    """Return the resident memory of a real process that stops after these tasks."""
    command = [sys.executable, "-m", "cadenza", "train", *arguments, "--runs-dir", str(root), "--quiet"]
    environment = os.environ | {"CADENZA_FAILPOINT": f"run:task@{TASKS}:stop"}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        return int(psutil.Process(process.pid).memory_info().rss)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def planned(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "cadenza", "plan", *arguments, "--seconds", "0.5", "--json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    memory = json.loads(output)["memory"]
    assert isinstance(memory, dict)
    return memory


@pytest.mark.parametrize("run", RUNS)
def test_a_run_with_a_full_replay_uses_the_planned_memory(run: str, tmp_path: Path) -> None:
    memory = planned(RUNS[run])
    rows = ROWS // ENVS * ENVS * 31
    assert memory["mapped_bytes"] == (rows if run == "on disk" else 0)
    assert memory["stores_bytes"] >= (0 if run == "on disk" else rows)
    expected = memory["total_bytes"] + memory["mapped_bytes"]
    measured = resident(RUNS[run], tmp_path)
    assert measured == pytest.approx(expected, rel=0.05), (
        f"{measured / 1e6:.1f} MB held, {expected / 1e6:.1f} MB planned"
    )


QUICK = ["training.max_timesteps=1000", "environment.num_envs=3", "algorithm.buffer_size=20000"]


@pytest.mark.parametrize(
    ("spec", "settings", "masks"),
    [
        ("toy/masked:dqn", ["algorithm.priority_alpha=0.5"], {"agent": 4}),
        ("toy/image:dqn", ["environment.frame_stack=4"], {}),
        ("Pendulum-v1:sac", [], {}),
    ],
)
def test_the_bytes_of_a_replay_are_known_exactly(spec: str, settings: list[str], masks: dict[str, int]) -> None:
    config = load(spec, [*QUICK, *settings])
    stack = config.environment.frame_stack or 1
    exactly = ReplayStore.bytes_for(check(config), 3, 20_000, "dqn" in spec and not stack > 1, masks, stack=stack)
    memory = planning.plan(config, 0.1)["memory"]
    assert memory["stores"] == {"replay": exactly}


def test_a_replay_above_memory_is_refused_with_a_size_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [*QUICK, "algorithm.priority_alpha=0.5"]
    monkeypatch.setattr(resource_usage, "available_memory", lambda: 1_000_000)
    huge = "algorithm.buffer_size=1000000000000"  # more than could be allocated
    for size in ("algorithm.buffer_size=1000001", huge, "algorithm.buffer_size=40000"):
        with pytest.raises(ConfigError) as refused:
            planning.plan(load("CartPole-v1:dqn", [*settings, size]), 0.1)
        line = str(refused.value)
        words = r"store 'replay' needs .*: (algorithm\.buffer_size=\d+) \(not \d+\) would fit; .*buffer_on_disk=true .*"
        fits = re.fullmatch(words, line)
        assert fits is not None, line
    stores = planning.plan(load("CartPole-v1:dqn", [*settings, fits[1]]), 0.1)["memory"]["stores_bytes"]
    assert 990_000 < stores <= 1_000_000


def test_a_replay_on_disk_is_not_refused_for_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage, "available_memory", lambda: 300_000)
    config = load("CartPole-v1:dqn", [*QUICK, "algorithm.buffer_on_disk=true"])
    memory = planning.plan(config, 0.1)["memory"]
    assert (memory["stores_bytes"], memory["mapped_bytes"]) == (0, 19_998 * 31)
