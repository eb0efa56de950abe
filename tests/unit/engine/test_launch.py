from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cadenza.config.convert import build
from cadenza.engine.launch import note_outlook
from cadenza.workflows.ppo_config import PPOConfig


def test_a_resumed_run_names_the_present_values_of_its_schedules() -> None:
    settings = {"learning_rate": "operator:truediv", "clip_range": "lin_0.2"}
    lines: list[str] = []
    run: Any = SimpleNamespace(
        finished=False,
        now=30,
        decisions={"training.horizon": 20},
        config=SimpleNamespace(algorithm=build(PPOConfig, settings)),
        console=SimpleNamespace(note=lambda line, warning: lines.append(line)),
    )
    note_outlook(run)
    values = "algorithm.learning_rate (operator:truediv) at 1.5, algorithm.clip_range (lin_0.2) at 0"
    assert lines == [f"the schedules are over (training.horizon); from here on: {values}"]
