"""PushT (Chi et al. 2023): a T-shaped block has to be pushed onto its outline; the id is `gym_pusht/PushT-v0`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments
from cadenza.envs.display import prepare_pygame
from cadenza.envs.families.gym import Gym

STEPS = 300


def ids(family: str) -> list[str]:
    return ["gym_pusht/PushT-v0"]


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    prepare_pygame()
    from gym_pusht.envs.pusht import PushTEnv

    restore_old_names()
    check_arguments(PushTEnv, config.kwargs, config.id)
    return Gym(Pusher(PushTEnv(**config.kwargs)), config, STEPS)


def restore_old_names() -> None:
    """Add names that PushT uses and newer packages removed: pymunk 7's collision handler and NumPy 2.5's row_stack."""
    import pymunk

    if not hasattr(pymunk.Space, "add_collision_handler"):
        pymunk.Space.add_collision_handler = lambda *_: SimpleNamespace()  # type: ignore[attr-defined]
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack


class Pusher(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that passes actions (the agent's target in pixels) in double precision, as the environment computes."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(np.asarray(action, np.float64))
        return obs, reward, bool(terminated), truncated, info
