"""The keys by which a person moves an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from cadenza.envs.action_names import name_of
from cadenza.errors import ConfigError
from cadenza.types import Environment, GroupSpec

PAUSES = {"space"}
ENDS = {"q", "escape"}
LETTERS = {"w": "up", "a": "left", "s": "down", "d": "right", " ": "space"}
# Pairs of keys for the numbers of an action, in order; the first of a pair is for the lower end.
AXIS_KEYS = (("left", "right"), ("down", "up"), ("a", "d"), ("s", "w"), ("j", "l"), ("k", "i"))
# By the beginning of an environment's id: the action of each key, and that without a key (None: the last one again).
KEYS_BY_ENVIRONMENT: Mapping[str, tuple[Mapping[str, int], int | None]] = {
    "CartPole-": ({"left": 0, "right": 1}, None),
    "MountainCar-": ({"left": 0, "right": 2}, 1),
    "Acrobot-": ({"left": 0, "right": 2}, 1),
    "LunarLander-": ({"left": 1, "up": 2, "right": 3}, 0),
    "FrozenLake": ({"left": 0, "down": 1, "right": 2, "up": 3}, None),
    "CliffWalking-": ({"up": 0, "right": 1, "down": 2, "left": 3}, None),
    "Taxi-": ({"down": 0, "up": 1, "right": 2, "left": 3, "p": 4, "d": 5}, None),
    "Blackjack-": ({"s": 0, "h": 1}, None),
    "mpe/": ({"left": 1, "right": 2, "down": 3, "up": 4}, 0),
}


class Keys(Protocol):
    """A source of pressed keys: a window or a terminal."""

    def pressed(self, wait: bool = False) -> frozenset[str]:
        """Return the names of the keys that are down; with `wait`, wait for one."""


@dataclass(frozen=True)
class Keymap:
    """The mapping from keys to the action of one agent."""

    choose: Callable[[frozenset[str]], Any]  # None: none of these keys has a meaning
    rest: Any  # the action without a key; None: the last action again
    legend: str
    start: int = 0  # the lowest discrete action


def keymap(env: Environment, group: GroupSpec) -> Keymap:
    """Return the keys for an environment; one whose actions cannot be chosen by keys is refused.

    Discrete actions have the keys listed here by its id, else those it defines itself, else digits.
    Vectors of numbers have arrows and letters.
    """
    space = group.action
    if isinstance(space, spaces.Discrete):
        return discrete_keymap(env, group, space)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] <= len(AXIS_KEYS):
        return continuous_keymap(env, space)
    raise ConfigError(f"{env.spec.id}: a person cannot choose {space} by keys")


def discrete_keymap(env: Environment, group: GroupSpec, space: spaces.Discrete) -> Keymap:
    """Return the keys for discrete actions; digits choose an action by its number."""
    start, count = int(space.start), int(space.n)
    listed = next((entry for id, entry in KEYS_BY_ENVIRONMENT.items() if env.spec.id.startswith(id)), None)
    env_keys = getattr(getattr(getattr(env, "env", None), "unwrapped", None), "get_keys_to_action", None)
    rest: int | None = None
    if listed is not None:
        actions = {frozenset([key]): action for key, action in listed[0].items()}
        rest = listed[1]
    elif env_keys is not None:
        actions = {}
        for env_names, action in env_keys().items():
            if (keys := translate(env_names)) is not None:
                actions[keys] = int(action)
        rest = actions.pop(frozenset(), 0)
    else:
        actions = {frozenset(["left"]): start, frozenset(["right"]): start + 1} if count == 2 else {}
    actions = {keys: action for keys, action in actions.items() if space.contains(action)}  # some agents have fewer
    actions |= {frozenset([str(digit)]): start + digit for digit in range(min(count, 10))}
    combinations = sorted(actions.items(), key=lambda item: -len(item[0]))  # the largest first

    def choose(keys: frozenset[str]) -> int | None:
        return next((action for combination, action in combinations if combination <= keys), None)

    letters = ", ".join(
        legend_entry(keys, name_of(group, action))
        for keys, action in actions.items()
        if not all(key.isdigit() for key in keys)
    )
    digits = ", ".join(f"{digit} {name}" for digit, name in enumerate(group.action_names[:10]))
    return Keymap(choose, rest, letters or digits or f"0 to {min(count, 10) - 1} choose an action", start)


def legend_entry(keys: frozenset[str], action: str) -> str:
    """Return keys and action, as in `up FIRE`, or the key alone if its name is that of the action."""
    combination = "+".join(sorted(keys))
    return combination if combination == action else f"{combination} {action}"


def translate(env_names: Any) -> frozenset[str] | None:
    """Translate an environment's names of keys (letters or their codes) to ours; None if one is not recognised."""
    parts = [env_names] if isinstance(env_names, str | int) else list(env_names)
    letters: list[Any] = [chr(part) if isinstance(part, int) and part < 128 else part for part in parts]
    if not all(isinstance(letter, str) and len(letter) == 1 for letter in letters):
        return None
    return frozenset(LETTERS.get(letter, letter) for letter in letters if letter not in "\x00e")  # e: ALE's no-op


def continuous_keymap(env: Environment, space: spaces.Box) -> Keymap:
    """Return the keys for a vector of numbers: each key moves one number from the middle to one of its ends."""
    low, high = (np.where(np.isfinite(end), end, sign) for end, sign in ((space.low, -1.0), (space.high, 1.0)))
    rest = np.clip(np.zeros(space.shape), low, high)
    targets: dict[str, tuple[int, float]] = {}  # by key: the index of the number, and its value
    if env.spec.id.startswith("CarRacing"):
        targets = {"left": (0, -1.0), "right": (0, 1.0), "up": (1, 0.5), "down": (2, 0.8)}  # steer, gas, brake
    else:
        for index, (lower, higher) in zip(range(space.shape[0]), AXIS_KEYS, strict=False):
            targets |= {lower: (index, float(low[index])), higher: (index, float(high[index]))}

    def choose(keys: frozenset[str]) -> Any:
        action = rest.copy()
        for key in sorted(keys & targets.keys()):
            index, value = targets[key]
            action[index] += value - rest[index]
        return np.clip(action, low, high).astype(space.dtype)

    legend = ", ".join(f"{key} {value:+g}" for key, (_, value) in targets.items())
    return Keymap(choose, rest.astype(space.dtype), legend)
