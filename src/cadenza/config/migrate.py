"""Migration of stored configs from older schema versions."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from cadenza.config.schema import SCHEMA_VERSION
from cadenza.errors import ConfigError


def migrate(data: dict[str, Any]) -> dict[str, Any]:
    """Return a stored config in the current layout; one without a version is of version 0."""
    version = data.get("schema_version", 0)
    if type(version) is not int or version < 0:
        raise ConfigError(f"schema_version={version!r}: must be a whole number from 0 to {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"schema_version={version}: written by a newer cadenza; this one reads versions up to {SCHEMA_VERSION}"
        )
    data = deepcopy(data)
    for step in range(version, SCHEMA_VERSION):
        data = UPGRADES[step](data)
    return {**data, "schema_version": SCHEMA_VERSION}


def _budget_into_blocks(data: dict[str, Any]) -> dict[str, Any]:
    """Migrate 0 to 1: move budget and distances from the top level into blocks."""
    moves = {
        "max_timesteps": ("training", "max_timesteps"),
        "max_updates": ("training", "max_updates"),
        "eval_every_steps": ("evaluation", "every_steps"),
        "checkpoint_every_steps": ("checkpoint", "every_steps"),
    }
    for old, (block, new) in moves.items():
        if old not in data:
            continue
        settings = data.setdefault(block, {})
        if not isinstance(settings, dict) or new in settings:
            raise ConfigError(f"{old} cannot move to {block}.{new}, which has a value of its own; remove one of them")
        settings[new] = data.pop(old)
    return data


def _network_settings_into_blocks(data: dict[str, Any]) -> dict[str, Any]:
    """Migrate 1 to 2: move PPO's adam_eps and log_std_init into blocks, and replace normalize_obs=none by false."""
    algorithm = data.get("algorithm")
    if not isinstance(algorithm, dict):
        return data
    for old, block, new in (("adam_eps", "optimizer", "eps"), ("log_std_init", "head", "log_std_init")):
        if old in algorithm:
            settings = algorithm.setdefault(block, {})
            if not isinstance(settings, dict) or new in settings:
                where = f"algorithm.{old} cannot move to algorithm.{block}.{new}"
                raise ConfigError(f"{where}, which has a value of its own; remove one of them")
            settings[new] = algorithm.pop(old)
    if algorithm.get("normalize_obs") == "none":
        algorithm["normalize_obs"] = False
    return data


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    0: _budget_into_blocks,
    1: _network_settings_into_blocks,
}
