"""Names of actions where an environment has some, such as FIRE, left or gas; elsewhere actions go by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import ClipAction, RescaleAction, StickyAction

from cadenza.envs.wrappers import RescaledActions
from cadenza.types import GroupSpec

ACROSS = ("left", "right")
# By Gymnasium's ids without their versions: the choices, or the numbers of which an action is made.
CHOICES: dict[str, tuple[str, ...]] = {
    "CartPole": ACROSS,
    "MountainCar": ("left", "nothing", "right"),
    "Acrobot": ("torque -1", "torque 0", "torque +1"),
    "LunarLander": ("nothing", "left engine", "main engine", "right engine"),
    "CarRacing": ("nothing", "right", "left", "gas", "brake"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "Blackjack": ("stick", "hit"),
}
NUMBERS: dict[str, tuple[str, ...]] = {
    "Pendulum": ("torque",),
    "MountainCarContinuous": ("force",),
    "LunarLanderContinuous": ("main engine", "side engines"),
    "LunarLander": ("main engine", "side engines"),
    "BipedalWalker": ("hip 1", "knee 1", "hip 2", "knee 2"),
    "BipedalWalkerHardcore": ("hip 1", "knee 1", "hip 2", "knee 2"),
    "CarRacing": ("steering", "gas", "brake"),
}
KEEPS_NAMES = (RescaledActions, RescaleAction, ClipAction, StickyAction)  # wrappers that change only the amount


def gymnasium_names(id: str, space: spaces.Space[Any]) -> tuple[str, ...]:
    """Return the action names of an environment that Gymnasium has registered; empty where the table has none."""
    table = CHOICES if isinstance(space, spaces.Discrete) else NUMBERS
    return table.get(id.rpartition("-v")[0], ())


def names_for(env: gymnasium.Env[Any, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return `names`, or those the environment has itself; none where a wrapper may change what actions mean."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        changes = isinstance(layer, gymnasium.ActionWrapper) and not isinstance(layer, KEEPS_NAMES)
        if changes or type(layer).step.__module__.partition(".")[0] not in ("gymnasium", "cadenza"):
            return ()
        layer = layer.env
    try:
        names = tuple(names) or _meanings(layer) or _actuators(layer)
    except Exception:  # a user's environment: missing names are no reason to fail
        return ()
    return names if len(names) == _count(env.action_space) else ()


def _meanings(env: Any) -> tuple[str, ...]:
    """Return the names from `get_action_meanings`, a method that Atari's environments introduced."""
    meanings = getattr(env, "get_action_meanings", None)
    return tuple(map(str, meanings())) if callable(meanings) else ()


def _actuators(env: Any) -> tuple[str, ...]:
    """Return the names of a MuJoCo model's motors, which are the numbers of the action; empty where one has none."""
    model: Any = getattr(env, "model", None)
    if not hasattr(model, "actuator") or not hasattr(model, "nu"):
        return ()
    names = tuple(str(model.actuator(index).name) for index in range(model.nu))
    return names if all(names) else ()


def _count(space: spaces.Space[Any]) -> int:
    """Count what a name stands for: the choices of a discrete action, or the numbers of a continuous one."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return 0 if isinstance(space, spaces.MultiDiscrete) else int(np.prod(space.shape or (1,)))


def name_of(group: GroupSpec, choice: int) -> str:
    """Return the name of a discrete choice, or its number where it has none."""
    place = choice - int(getattr(group.action, "start", 0))
    return group.action_names[place] if 0 <= place < len(group.action_names) else str(choice)
