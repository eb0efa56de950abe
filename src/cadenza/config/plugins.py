"""Parts of other packages: by import path `package.module:name`, by entry point, or registered by a decorator.

A decorator's name is known in a process that has imported its module; `plugins: [my_pkg]` in a config imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cadenza.base.parsing import ParseError, yaml_data
from cadenza.config import registry
from cadenza.config.registry import Part, entries
from cadenza.errors import ConfigError, nearest

KINDS = (
    *("buffer", "command", "decoder", "dynamics", "estimator", "head"),
    *("network", "optimizer", "planner", "schedule", "sink"),
)

_registered: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}


def names(kind: str) -> list[str]:
    """Return the names of a kind that decorators and entry points make known."""
    return sorted({*_registered[kind], *entries(kind)})


def check_name(kind: str, name: str, key: str, builtin: Iterable[str] = ()) -> None:
    """Refuse a name that is no import path, no registered name and not `builtin`; nothing is imported."""
    if name in builtin or ":" in name or name in names(kind):
        return
    choices = [*builtin, *names(kind)]
    listed = f"{'one of ' if len(choices) > 1 else ''}{', '.join(choices)}, or " if choices else ""
    raise ConfigError(f"{key}={name!r}: must be {listed}an import path `package.module:name`{nearest(name, choices)}")


def split_entry(entry: Any, key: str) -> tuple[str, dict[str, Any]]:
    """Return id and arguments of `{id: Name, its arguments}`, for which `Name` is short."""
    arguments = dict(entry) if isinstance(entry, Mapping) else {"id": entry}
    id = arguments.pop("id", None)
    if not isinstance(id, str) or not id:
        raise ConfigError(f"{key}={entry!r}: must be a name, or a mapping with an id, e.g. {{id: my:Part}}")
    return id, arguments


def load(kind: str, name: str) -> Any:
    """Return what an import path or a name of that kind stands for; it must be callable."""
    if ":" in name:
        plugin = registry.load_own(name)
    elif name in _registered[kind]:
        plugin = _registered[kind][name]
    else:
        plugin = registry.load_entry(entries(kind)[name])
    if not callable(plugin):
        raise ConfigError(
            f"'{name}' names a value of type {type(plugin).__name__}: a {kind} must be a class or a function"
        )
    return plugin


def _registrar(kind: str, what: str) -> Callable[[str], Callable[[Part], Part]]:
    """Return the function that registers a part of this kind under a name."""

    def register(name: str) -> Callable[[Part], Part]:
        return registry.register_part(_registered[kind], name, f"{kind} '{name}': must be a name without ':'")

    register.__name__ = register.__qualname__ = f"register_{kind}"
    register.__doc__ = f'Register {what} under a name: `@register_{kind}("mine")`.'
    return register


register_buffer = _registrar("buffer", "a store for `training.buffers`")
register_decoder = _registrar("decoder", "a decoder of world models for `algorithm.decoder`")
register_dynamics = _registrar("dynamics", "a dynamics model for `algorithm.dynamics`")
register_estimator = _registrar("estimator", "an estimator for `algorithm.advantage` and `algorithm.returns`")
register_head = _registrar("head", "an action head for `algorithm.head`")
register_network = _registrar("network", "a network for `algorithm.torso.encoder` and other places that take one")
register_optimizer = _registrar("optimizer", "an optimizer with torch's interface for `algorithm.optimizer.name`")
register_planner = _registrar("planner", "a search for actions for `algorithm.planner`")
register_schedule = _registrar("schedule", "a rule for numbers that change over a run: `rule(now, horizon)`")
register_sink = _registrar("sink", "a listener of runs for `logging.sinks`")


def import_plugins(modules: Any) -> None:
    """Import the modules that `plugins` in a config lists; those in the current folder are found, too."""
    for module in modules if isinstance(modules, list | tuple) else ():  # else making the config refuses it
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(f"plugins: {module!r} must be the name of a module, as my_package.parts")
        try:
            registry.load_own(module)
        except ConfigError as problem:
            raise ConfigError(f"plugins: {problem}") from problem.__cause__


def plugins_of(overrides: Iterable[str]) -> list[Any] | None:
    """Return the modules that overrides `plugins=[my_pkg]` list; None without such an override."""
    texts = [text for text in overrides if text.lstrip("+").startswith("plugins=")]
    if not texts:
        return None
    try:
        values = [yaml_data(text.partition("=")[2]) for text in texts]
    except ParseError as problem:
        raise ConfigError(f"{texts[-1]!r} cannot be read ({problem.reason}): write plugins=[my_package]") from None
    return [module for value in values if isinstance(value, list) for module in value]
