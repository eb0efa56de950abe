"""A small run of DQN on a toy environment, and its replay as a dataset."""

from __future__ import annotations

from pathlib import Path

from harness.command import cadenza, train

SMALL_DQN = [
    "environment.num_envs=4",
    "algorithm.buffer_size=4000",
    "algorithm.warmup_steps=400",
    "algorithm.batch_size=32",
    "algorithm.gamma=0.5",
    "algorithm.learning_rate=0.003",
    "algorithm.hidden.hidden_sizes=[16]",
    "evaluation.every_steps=0",
    "evaluation.episodes=8",
]
OFFLINE = "{name: offline, type: offline, buffer: replay, hooks: [{name: update, times: 20}], duration_updates: %d}"
ONLINE = "{name: online, buffer: replay, hooks: [{name: collect, steps: 4}, {name: update, ratio: 0.25}]}"


def phases(*texts: str) -> str:
    return f"training.phases=[{', '.join(texts)}]"


def replay_of_a_run(root: Path, spec: str, *overrides: object, steps: int = 1500) -> Path:
    """Train a run and export its replay; return the dataset's folder."""
    train(root / "runs", spec, *overrides, "--max-timesteps", steps).succeeded()
    out = root / "dataset"
    cadenza("export", "@last", "--runs-dir", root / "runs", "--format", "dataset", "--out", out).succeeded()
    return out
