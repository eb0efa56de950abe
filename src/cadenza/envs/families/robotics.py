"""Gymnasium-Robotics' mazes, in which a ball or an ant has to reach a place; ids are `PointMaze_UMaze-v3`."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import gymnasium

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.families import mujoco
from cadenza.envs.families.gym import Gym

ROBOTS = {"PointMaze": "v3", "AntMaze": "v5"}
SIZES = ("Open", "Medium", "Large")
MAZES = ("UMaze", *(f"{size}{kind}" for size in SIZES for kind in ("", "_Diverse_G", "_Diverse_GR")))


def ids(family: str) -> list[str]:
    """Return the ids: each maze with a reward of 1 at the goal and 0 elsewhere, and with one that grows towards it."""
    return [
        f"{robot}_{maze}{reward}-{version}"
        for robot, version in ROBOTS.items()
        for reward in ("", "Dense")
        for maze in MAZES
    ]


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    mujoco.prepare(render)
    with contextlib.redirect_stderr(io.StringIO()):  # the import prints news about other environments
        import gymnasium_robotics

        gymnasium.register_envs(gymnasium_robotics)
    spec = gymnasium.spec(config.id)
    kwargs: dict[str, Any] = {**config.kwargs, **({"render_mode": "rgb_array"} if render else {})}
    env = gymnasium.make(config.id, max_episode_steps=-1, disable_env_checker=True, **kwargs).unwrapped
    Path(env.tmp_xml_file_path).unlink(missing_ok=True)  # type: ignore[attr-defined]  # it is read once and then left
    return Gym(env, config, spec.max_episode_steps)
