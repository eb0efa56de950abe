"""A diffusion policy learns from images what an expert does, with continuous and discrete actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.load import load
from cadenza.engine.launch import check
from cadenza.lab.session import train
from cadenza.tools.demonstrate import demonstrate
from cadenza.tools.export import EpisodeSelection

SMALL = [
    "algorithm.buffer_size=4000",
    "algorithm.batch_size=64",
    "algorithm.learning_rate=0.002",
    "algorithm.learning_rate_warmup=50",
    "algorithm.ema_max=0.97",
    "algorithm.unet.widths=[32]",
    "algorithm.torso.cnn.features=64",
    "evaluation.episodes=64",
    "evaluation.num_envs=64",
    "runtime.threads=1",
]
# every picture of toy/dot follows from the one before; those of toy/image from nothing
DOT = ["algorithm.horizon=4", "algorithm.executed=2", "algorithm.torso.cnn.layers=[[8,8,4],[16,4,2]]"]
IMAGE = ["algorithm.horizon=2", "algorithm.executed=1"]
# task: updates, settings, who knows, who does not
TASKS = {
    "toy/dot": (500, DOT, "to_the_middle", "any_push"),
    "toy/image": (400, IMAGE, "bright_column", "any_number"),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_policy_is_learned_from_images(task: str, tmp_path: Path) -> None:
    updates, settings, expert, chance = TASKS[task]
    config, data = load(f"{task}:diffusion_policy"), tmp_path / "data"
    solved = check(config).return_threshold
    assert solved is not None
    assert demonstrate(config, f"harness.experts:{expert}", data, EpisodeSelection(100))["return_min"] >= solved
    random = demonstrate(config, f"harness.experts:{chance}", tmp_path / "random", EpisodeSelection(100))["return_mean"]
    assert random < 0.5 * solved
    overrides = [f"training.dataset={data}", f"training.max_updates={updates}"]
    result = train(
        load(f"{task}:diffusion_policy", [*SMALL, *settings, *overrides]), tmp_path / "runs", ["test"], quiet=True
    )
    assert result.summary()["eval/return_mean"] >= solved
