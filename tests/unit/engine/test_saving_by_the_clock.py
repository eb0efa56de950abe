"""Checkpoints by time: a slow run loses minutes at most, and its results are the same."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cadenza
from cadenza.engine.events import Event, Row, Saved
from cadenza.errors import ConfigError
from cadenza.tools.verify import compare

ROLLOUTS = {"algorithm.n_steps": 16, "algorithm.n_epochs": 1, "algorithm.batch_size": 32}
APART = {
    "checkpoint.every_steps": 0,
    "environment.num_envs": 4,
    "evaluation.every_steps": 0,
    "evaluation.episodes": 2,
    "logging.every_steps": 64,
    "training.max_timesteps": 512,
}


class Slow:
    """A listener on whose clock a row of metrics takes six minutes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.saved: list[int] = []
        monkeypatch.setattr("cadenza.engine.orchestrator.time", SimpleNamespace(monotonic=lambda: self.seconds))

    def __call__(self, event: Event) -> None:
        if isinstance(event, Row):
            self.seconds += 360
        if isinstance(event, Saved):
            self.saved.append(int(event.checkpoint.name.split("-")[1]))


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_checkpoint_is_saved_after_ten_minutes(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(name: str, listener: Slow | None = None, **settings: Any) -> cadenza.Run:
        combined = {**APART, **(ROLLOUTS if algorithm == "ppo" else {}), **settings}
        return cadenza.train(f"toy/identity:{algorithm}", runs_dir=tmp_path / name, on_event=listener or (), **combined)

    machine = Slow(monkeypatch)
    slow = train("slow", machine)
    between = machine.saved[1:-1]
    assert machine.saved == [0, *between, 512]
    assert all(2 * 64 <= later - earlier <= 3 * 64 for earlier, later in pairwise([0, *between]))
    assert len(between) >= 2
    never = Slow(monkeypatch)
    train("never", never, **{"checkpoint.every_minutes": 0})
    assert never.saved == [0, 512]
    monkeypatch.undo()
    assert compare(slow.folder, train("quick").folder) is None


def test_minutes_cannot_be_negative(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"checkpoint.every_minutes": -1}
    with pytest.raises(ConfigError, match=r"checkpoint\.every_minutes=-1: must be at least 0"):
        cadenza.train("toy/identity:ppo", runs_dir=tmp_path, **changes)
