"""Checks that the settings of several algorithms share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from cadenza.config.networks import HeadConfig
from cadenza.config.schedules import Schedule
from cadenza.errors import ConfigError, UnusedError
from cadenza.types import EnvSpec


def positive(config: Any, *keys: str) -> None:
    """Refuse zero and less; a schedule may begin or end at zero, and null is fine."""
    for key in keys:
        value = getattr(config, key)
        if isinstance(value, Schedule):
            if min(ends(value)) < 0 or max(ends(value)) == 0:
                path = f"from {value.start_value:g} to {value.end_value:g}"
                raise ConfigError(f"algorithm.{key}: a schedule {path}, which must stay above 0 between its ends")
        elif value is not None and value <= 0:
            raise ConfigError(f"algorithm.{key}={value:g}: must be above 0")


def ends(value: float | Schedule) -> tuple[float, float]:
    """Where a number begins and ends."""
    return (value.start_value, value.end_value) if isinstance(value, Schedule) else (value, value)


def in_unit_interval(config: Any, *keys: str) -> None:
    for key in keys:
        if not 0 <= getattr(config, key) <= 1:
            raise ConfigError(f"algorithm.{key}={getattr(config, key):g}: must lie between 0 and 1")


def refuse_unused(config: Any, unused: Mapping[str, Iterable[str]]) -> None:
    """Refuse what would change nothing: keys (`model.bins`, say) without what they need, unless left as they are."""
    own = {field.name: field.default for field in fields(config)}
    found: dict[str, str] = {}
    for needed, keys in unused.items():
        for key in keys:
            block, _, name = key.rpartition(".")
            part = getattr(config, block) if block else config
            value, usual = getattr(part, name), getattr(type(part)(), name) if block else own[name]
            if value != usual:
                found[f"algorithm.{key}"] = f"algorithm.{key}={value}: does nothing without {needed}"
    if found:
        raise UnusedError(next(iter(found.values())), found)


def check_single_transitions(config: Any, env: EnvSpec) -> None:
    """Refuse what cannot be learned from one step and its reward."""
    if env.turns and sum(len(group.agents) for group in env.groups.values()) > 1:
        what = f"{env.id} is played in turns, and what an agent earns comes while others act"
        raise ConfigError(f"{config.name} learns from single transitions; {what}: use ppo, ippo, mappo or happo")


def check_replay_learner(config: Any, env: EnvSpec, num_envs: int) -> None:
    """The same, and a replay too small for its steps, and settings that would do nothing."""
    check_single_transitions(config, env)
    least = num_envs * (2 + config.n_step)
    if config.buffer_size < least:
        given = f"algorithm.buffer_size={config.buffer_size}"
        raise ConfigError(f"{given}: at least {least} for {num_envs} environments and n_step={config.n_step}")
    check_encoder(config)


def check_encoder(config: Any) -> None:
    if config.torso.encoder != "auto" and config.normalize_obs:
        raise ConfigError("algorithm.normalize_obs: an encoder of one's own gets observations as they are")


def check_actor_critic(config: Any, env: EnvSpec) -> None:
    """Refuse action spaces without a head, and settings that the spaces do not allow."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    known = Box | Discrete | MultiBinary | MultiDiscrete
    for name, group in env.groups.items():
        where = f"{env.id} (group {name})"
        if not isinstance(group.action, known):
            takes = "Discrete, MultiDiscrete, MultiBinary and Box actions"
            raise ConfigError(f"{config.name} takes {takes}; {where} has {type(group.action).__name__}")
        if isinstance(group.action, Box) and not np.issubdtype(group.action.dtype, np.floating):
            raise ConfigError(f"{config.name} takes Box actions of floats; those of {where} are {group.action.dtype}")
        if isinstance(group.action, Box) and config.head.squash:
            reach = group.action.high.astype(np.float64) - group.action.low
            if not ((reach > 0) & (reach < 1e30)).all():
                raise ConfigError(f"algorithm.head.squash: the actions of {where} need a lower and an upper bound each")
    if config.head != HeadConfig() and not any(isinstance(group.action, Box) for group in env.groups.values()):
        raise ConfigError(f"algorithm.head is about continuous actions, and {env.id} has none")
    check_encoder(config)
