"""Checks of `environment.kwargs` and of wrappers' arguments, with messages that name the dotted key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cadenza.errors import ConfigError, nearest

WHERE = "environment.kwargs"


def check_arguments(
    creator: Callable[..., Any], kwargs: Mapping[str, Any], name: str, where: str = WHERE, positional: int = 0
) -> None:
    """Refuse keyword arguments that `creator` does not take; its first `positional` parameters are passed by position.

    `name` is what the user calls it, `where` the dotted key of the arguments.
    """
    parameters = inspect.signature(creator).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    takes = list(parameters)[positional:]
    for key in kwargs:
        if key not in takes:
            raise ConfigError(
                f"{where}.{key}: {name} takes no such argument{nearest(key, takes)} "
                f"(it takes: {', '.join(takes) or 'none'})"
            )


def refuse_reserved(kwargs: Mapping[str, Any], reserved: Iterable[str], reason: str) -> None:
    """Refuse arguments that cadenza sets itself."""
    for key in kwargs:
        if key in reserved:
            raise ConfigError(f"{WHERE}.{key}: {reason}")


def require_choice(key: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices."""
    names = tuple(choices)
    if value not in names:
        raise ConfigError(f"{WHERE}.{key}={value}: must be one of {', '.join(names)}{nearest(str(value), names)}")


def require_whole(key: str, value: Any, least: int) -> None:
    """Refuse a value that is not a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise ConfigError(f"{WHERE}.{key}={value}: must be a whole number, at least {least}")


def require_flag(key: str, value: Any) -> None:
    """Refuse a value that is neither true nor false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{WHERE}.{key}={value}: must be true or false")
