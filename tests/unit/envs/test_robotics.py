"""Gymnasium-Robotics' mazes: ids and repeatable episodes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families import robotics
from cadenza.envs.families.gym import Gym
from cadenza.trees import leaves

package = pytest.importorskip("gymnasium_robotics", reason="the extra robotics is not installed")


def play(env: Gym, seed: int) -> list[bytes]:
    rng, frames = np.random.default_rng(seed), []
    env.reset(seed)
    for _ in range(20):
        action = rng.uniform(-1, 1, (1, 2)).astype(np.float32)
        frames += [leaf.tobytes() for _, leaf in leaves(env.step({"agent": action}).obs)]
    return frames


def test_a_used_maze_plays_the_same_episode_as_a_fresh_one() -> None:
    used, fresh = (catalog.make(EnvironmentConfig(id="PointMaze_Medium_Diverse_GR-v3")) for _ in range(2))
    assert isinstance(used, Gym)
    assert isinstance(fresh, Gym)
    play(used, 1)
    assert play(used, 2) == play(fresh, 2)
    assert used.spec.max_episode_steps == 600


def test_mazes_leave_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = catalog.make(EnvironmentConfig(id="AntMaze_UMaze-v5"))
    assert isinstance(env, Gym)
    env.reset(1)
    assert not list(tmp_path.iterdir())


def test_every_listed_maze_is_registered_by_the_package() -> None:
    import gymnasium

    gymnasium.register_envs(package)
    assert set(robotics.ids("robotics")) <= set(gymnasium.registry)
