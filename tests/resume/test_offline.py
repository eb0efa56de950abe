"""Runs that learn from a dataset before they collect: killed while offline and resumed without the dataset."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from cadenza.tools.verify import compare
from harness.command import cadenza, episode_records, last, train
from harness.datasets import OFFLINE, ONLINE, SMALL_DQN, phases, replay_of_a_run
from harness.processes import call

SMALL_SAC = [
    "environment.num_envs=2",
    "algorithm.buffer_size=2000",
    "algorithm.warmup_steps=200",
    "algorithm.batch_size=16",
    "algorithm.actor.hidden_sizes=[16]",
    "algorithm.critic.hidden_sizes=[16]",
    "evaluation.every_steps=0",
    "evaluation.episodes=4",
]
SUBJECTS = {
    "dqn, by priority, from a file": [
        "toy/identity:dqn",
        *SMALL_DQN,
        "algorithm.priority_alpha=0.6",
        "algorithm.buffer_on_disk=true",
    ],
    "sac": ["toy/identity_box:sac", *SMALL_SAC],
}


def kill(failpoint: str, root: Path, *arguments: str) -> None:
    """Resume, or run a command, until the process is killed at the failpoint."""
    code, errors = call(arguments or ["resume", "@last"], root, failpoint)
    assert code == -signal.SIGKILL, errors


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_kill_in_the_offline_phase_leaves_no_trace(subject: str, tmp_path: Path) -> None:
    spec = SUBJECTS[subject]
    dataset = replay_of_a_run(tmp_path / "source", *spec, steps=400)
    command = [
        *spec,
        f"training.dataset={dataset}",
        phases(OFFLINE % 200, ONLINE),
        "checkpoint.every_updates=60",
        "checkpoint.every_steps=40",
        "logging.every_updates=20",
        "logging.every_steps=20",
        "--max-timesteps",
        "120",
    ]
    train(tmp_path / "whole", *command).succeeded()
    whole = last(tmp_path / "whole")
    kill("run:task@30", tmp_path / "killed", "train", *command)  # only the first checkpoint is there
    shutil.move(dataset, tmp_path / "elsewhere")  # its rows are in the run
    kill("run:task@100", tmp_path / "killed")
    kill("ckpt:before_rename@3", tmp_path / "killed")
    kill("run:task@60", tmp_path / "killed")  # while online
    assert call(["resume", "@last"], tmp_path / "killed")[0] == 0
    killed = last(tmp_path / "killed")
    assert compare(whole, killed) is None
    assert episode_records(whole) == episode_records(killed)
    assert killed.read_status()["env_steps"] == 120
    shutil.move(tmp_path / "elsewhere", dataset)
    cadenza("verify", "@last", "--runs-dir", tmp_path / "killed").succeeded()


def test_a_run_is_not_repeated_with_another_dataset(tmp_path: Path) -> None:
    spec = ["toy/identity:dqn", *SMALL_DQN]
    dataset = replay_of_a_run(tmp_path / "source", *spec, steps=400)
    other = replay_of_a_run(tmp_path / "other", *spec, "--seed", "3", steps=400)
    train(tmp_path / "runs", *spec, f"training.dataset={dataset}", phases(OFFLINE % 40)).succeeded()
    shutil.rmtree(dataset)
    shutil.move(other, dataset)
    refused = cadenza("verify", "@last", "--runs-dir", tmp_path / "runs")
    refused.refused(2, "training.dataset", "not the dataset that the run began with")
