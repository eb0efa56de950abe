"""Stores, sinks, optimizers, schedules and commands of other packages, by import path or by entry point."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cadenza.config import registry
from cadenza.errors import ConfigError, nearest

GROUPS = {kind: f"cadenza.{kind}s" for kind in ("command", "optimizer", "schedule", "sink", "store")}


@functools.cache  # a search takes milliseconds, and a schedule is looked up at every update
def entries(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of a kind by name; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=GROUPS[kind])}


def check_name(kind: str, name: str, key: str, builtin: Iterable[str] = ()) -> None:
    """Refuse a name that is no import path, no entry point and not `builtin`; nothing is imported."""
    if ":" in name or name in builtin or name in entries(kind):
        return
    names = [*builtin, *sorted(entries(kind))]
    listed = f"one of {', '.join(names)}, or " if names else ""
    raise ConfigError(f"{key}={name!r}: must be {listed}an import path `package.module:name`{nearest(name, names)}")


def load(kind: str, name: str) -> Any:
    """Return what an import path or an entry point of that kind names; it must be callable."""
    plugin = registry.load_own(name) if ":" in name else registry.load_entry(entries(kind)[name])
    if not callable(plugin):
        raise ConfigError(
            f"'{name}' names a value of type {type(plugin).__name__}: a {kind} must be a class or a function"
        )
    return plugin
