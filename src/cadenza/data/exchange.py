"""Stores of other packages in place of an algorithm's own (`training.buffers`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from cadenza.config import plugins, registry
from cadenza.errors import ConfigError, foreign_code, nearest
from cadenza.types import Store


class StoreMaker:
    """Makes the stores of a workflow (`Context.store`): those of other packages where the config names some."""

    def __init__(self, buffers: Mapping[str, Any]) -> None:
        self._buffers = buffers
        self._made: set[str] = set()

    def __call__(self, name: str, default: Callable[..., Store], *arguments: Any, **settings: Any) -> Store:
        """Make the store of this name with these arguments; one of a user also takes those beside its id."""
        if name not in self._buffers:
            return default(*arguments, **settings)
        id, extras = plugins.split_entry(self._buffers[name], f"training.buffers.{name}")
        where, make = f"training.buffers.{name}: '{id}'", plugins.load("buffer", id)
        with foreign_code(f"{where} cannot be made with the arguments of the store it replaces"):
            store: Store = make(*arguments, **settings, **extras)
        registry.require_methods(store, Store, where)
        self._made.add(name)
        return store

    def check(self, algorithm: str, names: Collection[str]) -> None:
        """Refuse names in the config that are none of the workflow's stores, and stores that it makes by itself."""
        for name in self._buffers:
            if name not in names:
                hint = f"{nearest(name, names)} (known: {', '.join(names)})"
                raise ConfigError(f"training.buffers.{name}: {algorithm} has no such store{hint}")
            if name not in self._made:
                raise ConfigError(f"training.buffers.{name}: {algorithm} does not make it with context.store(…)")
