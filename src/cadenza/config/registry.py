"""Names for algorithms and environment families. Entries are import paths, so that a look-up imports nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from cadenza.errors import ConfigError, NotFoundError, nearest


@dataclass(frozen=True)
class Algorithm:
    name: str
    summary: str
    config: str  # "module:Class" of its frozen settings, importable without torch
    workflow: str  # "module:Class"


@dataclass(frozen=True)
class Family:
    name: str
    summary: str
    module: str  # offers ids(family), make(config, render) -> Environment, and perhaps native(config)
    extra: str | None = None  # what to install: pip install 'cadenza[extra]'


ALGORITHMS: dict[str, Algorithm] = {
    entry.name: entry
    for entry in (
        Algorithm(
            "ppo",
            "Proximal Policy Optimization (Schulman et al. 2017)",
            "cadenza.workflows.ppo_config:PPOConfig",
            "cadenza.workflows.ppo:PPO",
        ),
    )
}

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("classic", "Gymnasium's classic control", "cadenza.envs.gym"),
        Family("toy_text", "Gymnasium's grid worlds and card games with discrete observations", "cadenza.envs.gym"),
        Family("toy", "tiny environments with known answers, for tests and first steps", "cadenza.envs.toy"),
    )
}


def load_object(path: str) -> Any:
    """The object behind an import path `package.module:name`."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"cannot import '{path}': {problem}") from problem


def algorithms() -> dict[str, Algorithm]:
    """All of them by name, those of other installed packages included.

    An entry point `cadenza.algorithms` names a module, or a workflow in it, that `@register_algorithm` makes known, or
    an `Algorithm`, which need not import torch to be listed.
    """
    for entry in entry_points(group="cadenza.algorithms"):
        if entry.name not in ALGORITHMS:
            found = entry.load()
            if isinstance(found, Algorithm):
                ALGORITHMS[entry.name] = found
            elif entry.name not in ALGORITHMS:
                raise ConfigError(f"entry point '{entry.value}' registers no algorithm called '{entry.name}'")
    return ALGORITHMS


def algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS and name not in algorithms():
        raise NotFoundError(
            f"unknown algorithm '{name}'{nearest(name, ALGORITHMS)} (known: {', '.join(sorted(ALGORITHMS))})"
        )
    return ALGORITHMS[name]


def register_algorithm(name: str, config: type, summary: str = "") -> Callable[[type], type]:
    """Decorator that makes a workflow of one's own known by name."""

    def register(workflow: type) -> type:
        def path(thing: type) -> str:
            return f"{thing.__module__}:{thing.__qualname__}"

        ALGORITHMS[name] = Algorithm(name, summary or (workflow.__doc__ or ""), path(config), path(workflow))
        return workflow

    return register
