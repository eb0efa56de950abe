"""What actions are called where an environment says so: FIRE, left, gas. Others go by number."""

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
KEEPING = (RescaledActions, RescaleAction, ClipAction, StickyAction)  # they change how far, not which


def of_gymnasium(id: str, space: spaces.Space[Any]) -> tuple[str, ...]:
    """Of one that Gymnasium has registered."""
    table = CHOICES if isinstance(space, spaces.Discrete) else NUMBERS
    return table.get(id.rpartition("-v")[0], ())


def names_for(env: gymnasium.Env[Any, Any], given: Sequence[str]) -> tuple[str, ...]:
    """Those given, or what the environment says itself; none where a wrapper may have changed what actions mean."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        changes = isinstance(layer, gymnasium.ActionWrapper) and not isinstance(layer, KEEPING)
        if changes or type(layer).step.__module__.partition(".")[0] not in ("gymnasium", "cadenza"):
            return ()
        layer = layer.env
    try:
        names = tuple(given) or _said(layer) or _actuators(layer)
    except Exception:  # a stranger's: nothing shall fail for the want of names
        return ()
    return names if len(names) == _count(env.action_space) else ()


def _said(env: Any) -> tuple[str, ...]:
    """By a method of its own, as Atari's environments always have had it."""
    meanings = getattr(env, "get_action_meanings", None)
    return tuple(map(str, meanings())) if callable(meanings) else ()


def _actuators(env: Any) -> tuple[str, ...]:
    """The motors of a MuJoCo model, where each is a number of the action and has a name."""
    model: Any = getattr(env, "model", None)
    if not hasattr(model, "actuator") or not hasattr(model, "nu"):
        return ()
    names = tuple(str(model.actuator(index).name) for index in range(model.nu))
    return names if all(names) else ()


def _count(space: spaces.Space[Any]) -> int:
    """Of what is named: choices, or numbers."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return 0 if isinstance(space, spaces.MultiDiscrete) else int(np.prod(space.shape or (1,)))


def name_of(group: GroupSpec, choice: int) -> str:
    """What one of the choices is called."""
    place = choice - int(getattr(group.action, "start", 0))
    return group.action_names[place] if 0 <= place < len(group.action_names) else str(choice)
