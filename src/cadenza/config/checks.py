"""Checks that the settings of several algorithms share."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from cadenza.config.networks import HeadConfig, OwnPart, TorsoConfig
from cadenza.config.schedules import Schedule
from cadenza.config.setting import Bounds
from cadenza.errors import ConfigError, UnusedError
from cadenza.types import EnvSpec

Needs = tuple[str, ...]


def check_bounds(bounds: Bounds | None, value: Any, key: str) -> None:
    """Refuse a number outside the bounds of its setting; texts, null and booleans have none.

    In a list every number is checked. A schedule may begin or end at an open end of the range, but not do both.
    """
    if bounds is None:
        return
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            check_bounds(bounds, item, f"{key}[{index}]")
    elif isinstance(value, Schedule):
        first, last = ends(value)
        for name, number in (("start_value", first), ("end_value", last)):
            part = f"{key}.{name}" if value.schedule == "linear" else f"{key} ({value.schedule})"
            _refuse_outside(bounds, number, part, with_ends=first != last)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _refuse_outside(bounds, value, key)


def _refuse_outside(bounds: Bounds, value: float, key: str, with_ends: bool = False) -> None:
    if not bounds.holds(value, with_ends):
        text = f"{value:g}" if isinstance(value, float) else value
        raise ConfigError(f"{key}={text}: must be {bounds}")


def ends(value: float | Schedule) -> tuple[float, float]:
    """Return the first and the last value of a number that may be a schedule."""
    return value.ends if isinstance(value, Schedule) else (value, value)


def check_divisor(value: float | Schedule, key: str) -> None:
    """Refuse a schedule that begins or ends at 0, as those of other settings above 0 may."""
    if isinstance(value, Schedule) and min(ends(value)) <= 0:
        raise ConfigError(f"{key}: a schedule of it must not reach 0, as it is divided by; take a small number")


def refuse_unused(config: Any, where: str) -> None:
    """Refuse settings that have no effect: those whose `needs` are not met, unless they are at their defaults.

    `config` are the settings of an algorithm, to which the keys in `needs` refer; `where` is their dotted key.
    """
    refusals: dict[str, str] = {}
    for key, value, usual, needs in _leaves(config):
        unmet = next((need for need in needs if not _is_met(config, need)), None)
        if unmet is not None and value != usual:
            words = unmet.replace("|", " or ")
            refusals[f"{where}.{key}"] = f"{where}.{key}={value}: does nothing without {words}"
    if refusals:
        raise UnusedError(next(iter(refusals.values())), refusals)


def _leaves(
    config: Any, base: Any = None, prefix: str = "", needs: Needs = ()
) -> Iterator[tuple[str, Any, Any, Needs]]:
    """Yield key, value, default and needs of each setting; a block hands its own needs down, and its own defaults."""
    for field in fields(config):
        value, usual = getattr(config, field.name), default(field) if base is None else getattr(base, field.name)
        key, both = f"{prefix}{field.name}", (*needs, *field.metadata.get("needs", ()))
        if is_dataclass(value) and type(value) is type(usual) and not isinstance(value, Schedule):
            yield from _leaves(value, usual, f"{key}.", both)
        else:
            yield key, value, usual, both


def _is_met(config: Any, need: str) -> bool:
    """Return whether settings meet a need: `key=value`, `key=one|other`, or `key` alone, which must not be empty.

    `yours` is the value of a part of the user's.
    """
    key, equals, values = need.partition("=")
    value = operator.attrgetter(key)(config)
    return ("yours" if isinstance(value, OwnPart) else value) in values.split("|") if equals else bool(value)


def default(field: Field[Any]) -> Any:
    """Return the default of a dataclass field; MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def check_single_transitions(config: Any, env: EnvSpec) -> None:
    """Refuse an environment where one step and its reward are not enough to learn from."""
    if env.turns and sum(len(group.agents) for group in env.groups.values()) > 1:
        why = f"{env.id} is played in turns, and the reward of an action comes while others act"
        raise ConfigError(f"{config.name} learns from single transitions; {why}: use ppo, ippo, mappo or happo")


def check_one_agent(config: Any, env: EnvSpec) -> None:
    """Refuse an environment of several agents."""
    agents = sum(len(group.agents) for group in env.groups.values())
    if agents > 1:
        raise ConfigError(f"{config.name} models the world of one agent; {env.id} has {agents}")


def check_actions(config: Any, env: EnvSpec, discrete: bool = True) -> None:
    """Refuse actions other than Box of bounded floats and, where `discrete` is true, Discrete."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    for name, group in env.groups.items():
        where, action = f"{env.id} (group {name})", group.action
        if isinstance(action, Discrete):
            if not discrete:
                raise ConfigError(f"{config.name} plans continuous actions; those of {env.id} are discrete")
        elif not isinstance(action, Box) or not np.issubdtype(action.dtype, np.floating):
            kinds = "Discrete actions and Box actions of floats" if discrete else "Box actions of floats"
            raise ConfigError(f"{config.name} takes {kinds}; {where} has {action}")
        elif not _is_bounded(action):
            raise ConfigError(f"{config.name}: the actions of {where} need a lower and an upper bound each")


def _is_bounded(space: Any) -> bool:
    import numpy as np

    width = space.high.astype(np.float64) - space.low
    return bool(((width > 0) & (width < 1e30)).all())


def check_discrete_actions(config: Any, env: EnvSpec) -> None:
    """Refuse actions other than Discrete."""
    from gymnasium.spaces import Discrete

    for name, group in env.groups.items():
        if not isinstance(group.action, Discrete):
            kind = type(group.action).__name__
            raise ConfigError(f"{config.name} takes Discrete actions; {env.id} (group {name}) has {kind}")


def check_encoder(config: Any) -> None:
    """Refuse normalised observations before an encoder of the user's."""
    if config.torso.encoder != "auto" and config.normalize_obs:
        raise ConfigError("algorithm.normalize_obs: an encoder of yours gets observations as they are")


def refuse_memory(torso: TorsoConfig, why_no_memory: str, why_shared: str) -> None:
    """Refuse a torso with a memory, and separate torsos, each for the reason given."""
    if torso.memory.type != "none":
        raise ConfigError(f"algorithm.torso.memory: {why_no_memory}")
    if not torso.shared:
        raise ConfigError(f"algorithm.torso.shared=false: {why_shared}")


def check_actor_critic(config: Any, env: EnvSpec) -> None:
    """Refuse action spaces without a head, and settings that the spaces do not allow."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    for name, group in env.groups.items():
        where, action = f"{env.id} (group {name})", group.action
        if config.head.name != "auto":
            continue
        if not isinstance(action, Box | Discrete | MultiBinary | MultiDiscrete):
            spaces = "Discrete, MultiDiscrete, MultiBinary and Box actions"
            raise ConfigError(f"{config.name} takes {spaces}; {where} has {type(action).__name__}")
        if isinstance(action, Box) and not np.issubdtype(action.dtype, np.floating):
            raise ConfigError(f"{config.name} takes Box actions of floats; those of {where} are {action.dtype}")
        if isinstance(action, Box) and config.head.squash and not _is_bounded(action):
            raise ConfigError(f"algorithm.head.squash: the actions of {where} need a lower and an upper bound each")
    continuous = any(isinstance(group.action, Box) for group in env.groups.values())
    if config.head.name == "auto" and config.head != HeadConfig() and not continuous:
        raise ConfigError(f"algorithm.head is about continuous actions, and {env.id} has none")
    check_encoder(config)
