"""Checks that the settings of several algorithms share."""

from __future__ import annotations

from typing import Any

from cadenza.config.schedules import Schedule
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec


def positive(config: Any, *keys: str) -> None:
    """Refuse zero and less (at the start, for a schedule); null is fine."""
    for key in keys:
        value = getattr(config, key)
        number = value.start_value if isinstance(value, Schedule) else value
        if number is not None and number <= 0:
            raise ConfigError(f"algorithm.{key}={number:g}: must be above 0")


def in_unit_interval(config: Any, *keys: str) -> None:
    for key in keys:
        if not 0 <= getattr(config, key) <= 1:
            raise ConfigError(f"algorithm.{key}={getattr(config, key):g}: must lie between 0 and 1")


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
        if not isinstance(group.action, Box):
            if config.head.squash or config.head.std == "state":
                raise ConfigError(f"algorithm.head is about continuous actions, and {where} has none")
        elif config.head.squash and not np.isfinite([group.action.low, group.action.high]).all():
            raise ConfigError(f"algorithm.head.squash: the actions of {where} have no bounds")
    if config.torso.encoder != "auto" and config.normalize_obs:
        raise ConfigError("algorithm.normalize_obs: an encoder of one's own gets observations as they are")
