"""What long commands say while they work."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from cadenza.cli import seeds
from cadenza.tools import verify


def test_lines_of_seeds_side_by_side_name_the_seed_and_progress_is_rare(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["CartPole-v1:ppo  seed 3", "env_steps 5 / 10", "env_steps 6 / 10", "warning: slow", "finished at step 10"]
    seeds.pass_on(3, io.StringIO("\n".join(lines) + "\n"))
    del lines[2]  # less than ten seconds after the one before
    assert capsys.readouterr().err.splitlines() == [f"seed 3: {line}" for line in lines]


def test_verify_names_each_kill_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "launch", lambda *arguments: True)
    monkeypatch.setattr(verify, "find", lambda root, run: root)
    lines: list[str] = []
    verify.interrupted(["toy/identity:ppo"], tmp_path, ("run:task@3", "run:task@4"), lines.append)
    assert lines == [
        "training, to be killed at run:task@3 (1 of 2) …",
        "resuming, to be killed at run:task@4 (2 of 2) …",
        "resuming to the end …",
    ]
