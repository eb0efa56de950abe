"""Where the way forks, a diffusion takes either side and a regression neither: what demonstrations of both lead to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cadenza.config.load import load
from cadenza.envs.seeds import EVAL, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.orchestration.demonstrate import demonstrate
from cadenza.orchestration.export import Episodes
from cadenza.orchestration.playback import PLAYING
from cadenza.orchestration.seeding import Streams
from cadenza.types import Mode
from harness.lab import Lab

COUNT = 200
SMALL = [
    "training.max_updates=300",
    "evaluation.at_end=false",
    "algorithm.buffer_size=8000",
    "algorithm.horizon=8",
    "algorithm.batch_size=64",
    "algorithm.learning_rate=0.003",
    "algorithm.learning_rate_warmup=50",
    "algorithm.ema_max=0.97",
    "runtime.threads=1",
]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demonstrations") / "forks"
    demonstrate(load("toy/fork:diffusion_policy"), "fork", out, Episodes(COUNT))
    return out


def aside(lab: Lab, forks: Path, baseline: str) -> np.ndarray:
    """How far the first chunk of a trained policy leads to the side, from many beginnings; the experts: 4.6 or so."""
    settings = [*SMALL, f"training.dataset={forks}", f"algorithm.baseline={baseline}"]
    settings += ["algorithm.unet.widths=[32]"] if baseline == "none" else []
    run = lab.start(load("toy/fork:diffusion_policy", settings))
    run.run()
    env = make_vector(run.config.environment, EpisodeSeeds(0, EVAL), num_envs=COUNT)
    carry = run.workflow.act(env.current, run.workflow.initial_carry(COUNT), Mode(False, PLAYING, Streams(0))).carry
    env.close()
    return np.asarray(carry["groups"]["agent"]["chunk"][:, :, 0, 0].sum(1))


def test_a_diffusion_takes_both_ways(lab: Lab, forks: Path) -> None:
    ways = aside(lab, forks, "none")
    assert np.mean(np.abs(ways) > 2) > 0.8
    assert 0.25 < np.mean(ways[np.abs(ways) > 2] < 0) < 0.75


def test_a_regression_takes_neither(lab: Lab, forks: Path) -> None:
    assert np.abs(aside(lab, forks, "cloning")).max() < 2
