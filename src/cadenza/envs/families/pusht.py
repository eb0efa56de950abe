"""PushT (Chi et al. 2023): push a block in the shape of a T onto its outline; the id is `gym_pusht/PushT-v0`."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.display import has_display
from cadenza.envs.families.gym import Gym, check_arguments

STEPS = 300


def ids(family: str) -> list[str]:
    return ["gym_pusht/PushT-v0"]


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    from gym_pusht.envs.pusht import PushTEnv

    as_before()
    check_arguments(PushTEnv, config.kwargs, config.id)
    env, limit = Pusher(PushTEnv(**config.kwargs)), config.max_episode_steps or STEPS
    return Gym(env, id=config.id, max_episode_steps=limit, clip_actions=config.clip_actions)


def as_before() -> None:
    """Let the environment find what pymunk 7 and NumPy 2.5 have no more: contacts, which it only counts, and rows."""
    import pymunk

    if not hasattr(pymunk.Space, "add_collision_handler"):
        pymunk.Space.add_collision_handler = lambda *_: SimpleNamespace()  # type: ignore[attr-defined]
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack


class Pusher(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Actions in double precision, as the environment computes with them: where the agent is to go, in pixels."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(np.asarray(action, np.float64))
        return obs, reward, bool(terminated), truncated, info
