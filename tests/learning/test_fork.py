"""An obstacle with two ways around it: a diffusion policy passes on both sides, a regression on neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cadenza.config.load import load
from cadenza.tools.demonstrate import demonstrate
from cadenza.tools.export import EpisodeSelection, whole_episodes
from harness.lab import Lab

COUNT = 200
SMALL = [
    "training.max_updates=400",
    "evaluation.at_end=false",
    f"evaluation.num_envs={COUNT}",
    "algorithm.buffer_size=8000",
    "algorithm.horizon=8",
    "algorithm.executed=6",
    "algorithm.batch_size=64",
    "algorithm.learning_rate=0.003",
    "algorithm.learning_rate_warmup=50",
    "algorithm.ema_max=0.97",
    "runtime.threads=1",
]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demonstrations") / "forks"
    demonstrate(load("toy/fork:diffusion_policy"), "fork", out, EpisodeSelection(COUNT))
    return out


def passed(lab: Lab, forks: Path, baseline: str) -> list[float]:
    """Return the sideways distances of a trained policy in episodes in which it arrives; left is negative."""
    settings = [*SMALL, f"training.dataset={forks}", f"algorithm.baseline={baseline}"]
    settings += ["algorithm.unet.widths=[32]"] if baseline == "none" else []
    run = lab.start(load("toy/fork:diffusion_policy", settings))
    run.run()
    episodes = list(whole_episodes(run.workflow, run.config, EpisodeSelection(COUNT)))
    assert len(episodes) == COUNT
    across = [one["groups.agent.obs"][:, 0, 0] for one in episodes if one["groups.agent.reward"].sum() > 0]
    return [float(x[np.abs(x).argmax()]) for x in across]


def test_a_diffusion_policy_passes_the_obstacle_on_both_sides(lab: Lab, forks: Path) -> None:
    ways = passed(lab, forks, "none")
    assert len(ways) >= 0.7 * COUNT
    assert 0.25 <= np.mean(np.array(ways) < 0) <= 0.75


def test_a_regression_seldom_arrives(lab: Lab, forks: Path) -> None:
    assert len(passed(lab, forks, "cloning")) < 0.5 * COUNT
