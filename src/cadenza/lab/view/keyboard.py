"""Keys and what they do: how a person moves an agent."""

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
# Pairs of keys, the lower end of a number first, for the numbers of an action in turn.
PUSHES = (("left", "right"), ("down", "up"), ("a", "d"), ("s", "w"), ("j", "l"), ("k", "i"))
# By the beginning of an environment's id: what the keys mean there, and what no key does (None: the last action again).
KNOWN: Mapping[str, tuple[Mapping[str, int], int | None]] = {
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
    """Where keys are pressed: a window or a terminal."""

    def pressed(self, wait: bool = False) -> frozenset[str]: ...


@dataclass(frozen=True)
class Keymap:
    """Keys to the action of one agent."""

    choose: Callable[[frozenset[str]], Any]  # None: none of these keys does anything
    rest: Any  # what is done without a key; None: the last action again
    legend: str
    start: int = 0  # the lowest action, of those that are numbered


def keymap(env: Environment, group: GroupSpec) -> Keymap:
    """The environment's own where it says one, else ours by its id, else digits (choices) or arrows (numbers)."""
    space = group.action
    if isinstance(space, spaces.Discrete):
        return discrete(env, group, space)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] <= len(PUSHES):
        return pushing(env, space)
    raise ConfigError(f"{env.spec.id}: a person cannot choose {space} by keys")


def discrete(env: Environment, group: GroupSpec, space: spaces.Discrete) -> Keymap:
    start, count = int(space.start), int(space.n)
    known = next((value for id, value in KNOWN.items() if env.spec.id.startswith(id)), None)
    own = getattr(getattr(getattr(env, "env", None), "unwrapped", None), "get_keys_to_action", None)
    rest: int | None = None
    if known is not None:
        actions = {frozenset([key]): action for key, action in known[0].items()}
        rest = known[1]
    elif own is not None:
        actions = {keys: int(action) for named, action in own().items() if (keys := translated(named)) is not None}
        rest = actions.pop(frozenset(), 0)
    else:
        actions = {frozenset(["left"]): start, frozenset(["right"]): start + 1} if count == 2 else {}
    actions = {keys: action for keys, action in actions.items() if space.contains(action)}  # some have fewer
    actions |= {frozenset([str(digit)]): start + digit for digit in range(min(count, 10))}
    by_size = sorted(actions.items(), key=lambda item: -len(item[0]))

    def choose(keys: frozenset[str]) -> int | None:
        return next((action for wanted, action in by_size if wanted <= keys), None)

    named = ", ".join(entry(keys, name_of(group, action)) for keys, action in actions.items() if not digits(keys))
    listed = ", ".join(f"{digit} {name}" for digit, name in enumerate(group.action_names[:10]))
    return Keymap(choose, rest, named or listed or f"0 to {min(count, 10) - 1} choose an action", start)


def entry(keys: frozenset[str], action: str) -> str:
    """Of the legend: `up FIRE`; a key that is called like what it does says enough."""
    pressed = "+".join(sorted(keys))
    return pressed if pressed == action else f"{pressed} {action}"


def digits(keys: frozenset[str]) -> bool:
    return all(key.isdigit() for key in keys)


def translated(named: Any) -> frozenset[str] | None:
    """An environment's way to name keys (letters, or numbers of letters) as ours; None for what we cannot tell."""
    parts = [named] if isinstance(named, str | int) else list(named)
    letters: list[Any] = [chr(part) if isinstance(part, int) and part < 128 else part for part in parts]
    if not all(isinstance(letter, str) and len(letter) == 1 for letter in letters):
        return None
    return frozenset(LETTERS.get(letter, letter) for letter in letters if letter not in "\x00e")  # e: ALE's no-op


def pushing(env: Environment, space: spaces.Box) -> Keymap:
    """Each key pushes a number of the action to one of its ends; without one it stays in the middle."""
    low, high = (np.where(np.isfinite(end), end, sign) for end, sign in ((space.low, -1.0), (space.high, 1.0)))
    rest = np.clip(np.zeros(space.shape), low, high)
    pushes: dict[str, tuple[int, float]] = {}
    if env.spec.id.startswith("CarRacing"):
        pushes = {"left": (0, -1.0), "right": (0, 1.0), "up": (1, 0.5), "down": (2, 0.8)}  # steer, gas, brake
    else:
        for place, (less, more) in zip(range(space.shape[0]), PUSHES, strict=False):
            pushes |= {less: (place, float(low[place])), more: (place, float(high[place]))}

    def choose(keys: frozenset[str]) -> Any:
        action = rest.copy()
        for key in sorted(keys & pushes.keys()):
            place, value = pushes[key]
            action[place] += value - rest[place]
        return np.clip(action, low, high).astype(space.dtype)

    return Keymap(choose, rest.astype(space.dtype), ", ".join(f"{key} {v:+g}" for key, (_, v) in pushes.items()))
