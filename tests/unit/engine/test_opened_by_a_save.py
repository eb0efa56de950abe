"""What a save opens: each walk from the run's folder costs it a good part of its time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import cadenza
from cadenza.engine.orchestrator import Orchestrator

SMALL: dict[str, Any] = {"training.max_timesteps": 1024, "checkpoint.every_steps": 512}


def test_a_save_opens_the_folder_of_the_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[list[Any]] = []
    save, real_open = Orchestrator.save, os.open

    def recorded(self: Orchestrator, insist: bool = False) -> None:
        paths: list[Any] = []
        opened.append(paths)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", lambda *all, **named: paths.append(all[0]) or real_open(*all, **named))
            save(self, insist)

    monkeypatch.setattr(Orchestrator, "save", recorded)
    run = cadenza.train("toy/identity:ppo", runs_dir=tmp_path, quiet=True, **SMALL)
    assert len(opened) >= 2
    assert [paths.count(tmp_path / run.id) for paths in opened] == [1] * len(opened)
