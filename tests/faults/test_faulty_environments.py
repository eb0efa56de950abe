"""Environments that raise, return invalid values, hang or die, and diverging losses, in real runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.records.checkpoint import Checkpoints
from cadenza.records.codec import first_not_finite
from cadenza.records.folder import RunFolder
from harness.command import SMALL, last, resume, train
from harness.faulty_environment import FAULTY
from harness.worker_processes import worker_processes

BAD_ENV, BAD_EPISODE = 5, 24  # at about half of the run
SEED = EpisodeSeeds(0, TRAIN)(BAD_ENV, BAD_EPISODE)
FAULTS = {
    "raise_at": "raised ValueError: asked to fail",
    "nan_at": "returned NaN or infinity (observation agent)",
    "reward_nan_at": "returned NaN or infinity (reward of agent)",
    "hang_at": "took longer than 1 s",
    "exit_at": "ended its worker process with exit code 3",
}
CASES = [
    (way, fault)
    for way in ("in_process", "workers")
    for fault in FAULTS
    if (way, fault) != ("in_process", "exit_at")  # nobody is left to tell
]


def newest(folder: RunFolder) -> tuple[str, dict[str, Any]]:
    warnings: list[str] = []
    checkpoint = Checkpoints(folder.checkpoints, folder.read_manifest()["config_hash"]).newest(warnings.append)
    assert checkpoint is not None
    assert warnings == []
    return checkpoint


@pytest.mark.parametrize(("way", "fault"), CASES)
def test_a_fault_stops_the_run_and_names_its_place(way: str, fault: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    faulty = [
        f"{FAULTY}:ppo",
        *SMALL,
        "environment.max_episode_steps=8",
        f"environment.kwargs={{{fault}: 1, in_seed: {SEED}}}",
        f"environment.vectorize={way}",
        "environment.workers=2",
        f"environment.timeout_seconds={1 if fault == 'hang_at' else 60}",
        "--max-timesteps",
        "3072",
    ]
    message = train(root, *faulty).refused(70, f"environment {BAD_ENV} ({FAULTY}) ", FAULTS[fault])
    assert re.search(rf"at step 1 of episode {BAD_EPISODE} \(seed {SEED}, action agent \[\d\]\)$", message)
    folder = last(root)
    status = folder.read_status()
    assert status["status"] == "failed"
    assert f"error: {status['message']}" == message
    name, _ = newest(folder)
    assert int(name.split("-")[1]) > 0
    assert worker_processes() == []
    assert resume(root).refused(70) == message, "a deterministic fault comes back the same"
    assert newest(folder)[0] == name


@pytest.mark.parametrize("way", ["in_process", "workers"])
def test_sys_exit_in_an_environment_is_a_fault(way: str, tmp_path: Path) -> None:
    outcome = train(tmp_path, "harness.odd_spaces:Leaving:ppo", *SMALL, f"environment.vectorize={way}")
    outcome.refused(70, "raised SystemExit: 5, at step 1 of episode 0")


def test_an_environment_that_fails_when_made_leaves_no_run(tmp_path: Path) -> None:
    faulty = [f"{FAULTY}:ppo", *SMALL, "environment.kwargs={die_at_reset: 1}", "environment.vectorize=workers"]
    train(tmp_path / "runs", *faulty).refused(70, "environment 0 ", "exit code 3")
    assert not (tmp_path / "runs").exists()
    assert worker_processes() == []


@pytest.mark.parametrize("environment", ["toy/identity", "toy/identity_box"])
def test_a_loss_that_explodes_is_not_saved(environment: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    train(root, f"{environment}:ppo", *SMALL, "algorithm.learning_rate=1e30").refused(70, "cadenza debug")
    folder = last(root)
    assert folder.read_status()["status"] == "failed"
    assert first_not_finite(newest(folder)[1]["workflow"]) is None
    resume(root).refused(70, f"cadenza debug {folder.reference}")
