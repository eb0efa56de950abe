"""Conversion of plain nested data to frozen settings dataclasses, and back. Errors name the dotted key."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cadenza.base.text import printable
from cadenza.config import registry
from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.checks import check_bounds, default, refuse_unused
from cadenza.config.networks import takes_arguments
from cadenza.config.plugins import import_plugins
from cadenza.config.schedules import Schedule
from cadenza.config.schema import RunConfig
from cadenza.errors import ConfigError, NotFoundError, UnknownKeyError, UnusedError, nearest

T = TypeVar("T")

# YAML 1.1 reads 1e-4 as text, because it has no dot.
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
EXACT_FLOAT = 2**53
LARGEST = 2**63  # what the index and the checkpoints can hold
TARGET = "_target_"  # Hydra's key for the import path of a part, beside which its arguments stand
LISTED = ("environment.wrappers", "logging.sinks", "training.buffers")  # settings that hold `{id: Name, its arguments}`


class _UnknownNameError(Exception):
    """An unknown dotted key, its value, and the keys beside it; `build` finds the nearest valid one."""

    def __init__(self, key: str, value: Any, siblings: Iterable[str] = ()) -> None:
        super().__init__(key)
        self.key, self.value, self.siblings = key, value, tuple(siblings)


def build(cls: type[T], data: Any, where: str = "") -> T:
    """Return the dataclass made from plain data; `where` is its dotted key, for messages."""
    try:
        settings: T = _convert(cls, data, where)
    except _UnknownNameError as unknown:
        keys = list(dict.fromkeys([*(name for name, _, _ in walk(cls, where, data)), *unknown.siblings]))
        key = _translatable(unknown.key, unknown.value, keys)
        raise UnknownKeyError(key, suggest(key, keys)) from None
    return settings


def _translatable(key: str, value: Any, keys: list[str]) -> str:
    """Return the first key below an unknown block (`network.actor.hidden_dims`) that has a translation, or `key`."""
    from cadenza.config.foreign_names import translate

    inner = next(iter(value.items()), None) if isinstance(value, Mapping) else None
    below = key if inner is None else _translatable(printable(f"{key}.{inner[0]}"), inner[1], keys)
    return below if translate(below, keys) is not None else key


def to_dict(config: Any) -> Any:
    """Return plain data (dicts, lists, numbers, text) that `build` turns into an equal config."""
    if is_dataclass(config) and not isinstance(config, type):
        values = {field: getattr(config, field.name) for field in fields(config)}
        return {field.name: to_dict(value) for field, value in values.items() if not _is_left_out(field, value)}
    if isinstance(config, Mapping):
        return {key: to_dict(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_dict(value) for value in config]
    return config


def _is_left_out(field: Field[Any], value: Any) -> bool:
    if not field.metadata.get("sparse"):
        return False
    return bool(value == default(field))


def config_hash(config: RunConfig) -> str:
    """Return a hash that is equal for configs with equal effects: without name, tags and sources of values."""
    ignored = ("name", "tags", "from_environment")
    settings = {key: value for key, value in to_dict(config).items() if key not in ignored}
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def from_hydra(data: Any, where: str = "") -> Any:
    """Return settings in which each `{_target_: package.module.Class, its arguments}` is a path and its arguments.

    An algorithm becomes its name and settings, an environment an id with `kwargs`, and a wrapper, sink or buffer
    `{id: path, its arguments}`. Elsewhere `_target_` and `kwargs` remain, for the settings that take a part
    (`convert`). `_partial_` has no effect: the algorithm completes every part. `where` is the dotted key of `data`.
    """
    if isinstance(data, list | tuple):
        return [from_hydra(item, f"{where}[{index}]") for index, item in enumerate(data)]
    if not isinstance(data, Mapping):
        return data
    if TARGET not in data:
        prefix = f"{where}." if where else ""
        return {key: from_hydra(item, f"{prefix}{key}") for key, item in data.items()}
    path, arguments = target_path(data[TARGET], where), {key: item for key, item in data.items() if key != TARGET}
    arguments.pop("_partial_", None)
    unknown = [key for key in arguments if str(key).startswith("_") and str(key).endswith("_")]
    if unknown or TARGET in str(arguments):
        what = f"{unknown[0]} is not" if unknown else "a _target_ inside the arguments of another is not"
        raise ConfigError(f"{where}: {what} understood; a part takes named arguments that are plain values")
    if where == "algorithm":
        return {"name": path, **arguments}
    if where.startswith(LISTED):
        return {"id": path, **arguments}
    arguments = arguments if isinstance(arguments.get("kwargs"), Mapping) else {"kwargs": arguments}
    return {"id" if where == "environment" else TARGET: path, **arguments}


def target_path(target: Any, where: str) -> str:
    """Return `package.module:Class` for `package.module.Class`; other texts as they are."""
    if not isinstance(target, str):
        raise ConfigError(f"{where}.{TARGET}={target!r}: must be text, package.module.Class")
    parts = target.split(".")
    if ":" in target or len(parts) == 1:
        return target
    at = next((index for index, part in enumerate(parts) if index and part[:1].isupper()), len(parts) - 1)
    return f"{'.'.join(parts[:at])}:{'.'.join(parts[at:])}"


def walk(cls: Any, where: str = "", data: Any = None, base: Any = None) -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield `(dotted key, type, field)` of each setting and those below it; `data` names the algorithm.

    The defaults of the fields are those of `base`, or of the class.
    """
    if not isinstance(cls, type) or not is_dataclass(cls):
        return
    hints = _hints(cls)
    if cls is RunConfig and isinstance(data, Mapping) and _name_in(data) in registry.ALGORITHMS:
        hints = {**hints, "algorithm": _algorithm(data)}
    for field in fields(cls):
        if base is not None:
            field = copy(field)
            field.default, field.default_factory = getattr(base, field.name), MISSING
        key = f"{where}.{field.name}" if where else field.name
        yield key, hints[field.name], field
        below = [option for option in _options(hints[field.name]) if option is not type(None)]
        if len(below) == 1:  # settings, or settings or null; not a number or a schedule
            usual = default(field)
            yield from walk(below[0], key, base=usual if type(usual) is below[0] else None)


def suggest(key: str, keys: list[str]) -> str:
    """Return `; did you mean 'x'?` for a key with the same end or reading, else for a similar sibling or end."""
    from cadenza.config.foreign_names import translate

    parent, _, leaf = key.rpartition(".")
    if leaf in ("resume", "resume_path", "resume_from"):
        return ": `cadenza resume RUN` continues a run"
    if leaf == "enabled" and parent in keys:
        return f"; did you mean '{parent}'?"
    if (translated := translate(key, keys)) is not None and translated != key:
        return f"; did you mean '{translated}'?"
    flat = key.replace(".", "_")
    same = [
        name for name in keys if name != key and (name.rpartition(".")[2] == leaf or name.replace(".", "_") == flat)
    ]
    if same:
        return f"; did you mean '{same[0]}'?"
    siblings = {name.rpartition(".")[2]: name for name in keys if name.rpartition(".")[0] == parent}
    anywhere = {name.rpartition(".")[2]: name for name in reversed(keys)}
    for leaves, cutoff in ((siblings, 0.6), (anywhere, 0.75), (siblings, 0.4)):
        close = get_close_matches(leaf.lower(), leaves, n=1, cutoff=cutoff)
        if close:
            return f"; did you mean '{leaves[close[0]]}'?"
    return nearest(key, keys)


def is_choice(hint: Any) -> bool:
    """Return whether a text of this type can only be one of a few words."""
    kinds = [option for option in _options(hint) if option not in (int, float, bool, type(None))]
    return all(get_origin(kind) is Literal for kind in kinds)


def describe(hint: Any) -> str:
    """Return a type in plain words."""
    options = [option for option in _options(hint) if option is not int or float not in _options(hint)]
    if len(options) > 1:
        return " or ".join(describe(option) for option in sorted(options, key=lambda option: option is type(None)))
    hint = options[0]
    if get_origin(hint) is Literal:
        choices = ", ".join(str(choice) for choice in get_args(hint))
        return choices if len(get_args(hint)) == 1 else f"one of {choices}"
    if get_origin(hint) is tuple:
        return f"a list of {_PLURALS.get(get_args(hint)[0], 'settings')}"
    if get_origin(hint) in _MAPPINGS:
        return "a mapping of names to values"
    if is_dataclass(hint):
        return str(getattr(hint, "plain", "")) or f"settings ({', '.join(field.name for field in fields(hint))})"
    return _WORDS.get(hint, "any value")


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_TYPES = "int, float, bool, str, Literal, tuple[int, ...], Mapping[str, int], a dataclass, or a choice of these"
_PLURALS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "words"}
_MAPPINGS = (Mapping, dict, get_origin(Mapping[str, Any]))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of a class's settings; those that it names in `scheduled` may be schedules, too."""
    names = getattr(cls, "scheduled", "").split()
    return {name: hint | Schedule if name in names else hint for name, hint in get_type_hints(cls).items()}


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _convert(hint: Any, value: Any, where: str) -> Any:
    options = _options(hint)
    if len(options) > 1:
        return _convert_union(hint, options, value, where)
    if is_dataclass(hint):
        return _convert_dataclass(hint, value, where)
    if get_origin(hint) is Literal:
        return _convert_choice(hint, value, where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise _refusal(hint, value, where)
        if Ellipsis not in get_args(hint) and len(value) != len(get_args(hint)):
            raise ConfigError(f"{where}={_show(value)}: must be a list of {len(get_args(hint))}, not {len(value)}")
        kinds = get_args(hint)[:1] * len(value) if Ellipsis in get_args(hint) else get_args(hint)
        parts = enumerate(zip(kinds, value, strict=True))
        return tuple(_convert(kind, item, f"{where}[{index}]") for index, (kind, item) in parts)
    if get_origin(hint) in _MAPPINGS:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _refusal(hint, value, where)
        return {key: _convert(get_args(hint)[1], item, f"{where}.{printable(key)}") for key, item in value.items()}
    if hint is Any:
        return _plain(value, where)
    return _convert_scalar(hint, value, where)


def _convert_union(hint: Any, options: tuple[Any, ...], value: Any, where: str) -> Any:
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if isinstance(value, str) and value in words:
        return value
    for option in options:
        if type(value) is option:
            return _convert(option, value, where)
        if is_dataclass(option) and isinstance(_expand(option, value, where), Mapping):
            return _convert(option, value, where)  # its message is more exact than the union's
        if isinstance(value, list | tuple) and get_origin(option) is tuple:
            return _convert(option, value, where)
    for option in options:
        if not is_dataclass(option):
            try:
                return _convert(option, value, where)
            except ConfigError:
                continue
    if isinstance(value, Mapping) and value and not any(map(is_dataclass, options)):
        raise _UnknownNameError(printable(f"{where}.{next(iter(value))}"), next(iter(value.values())))
    raise _refusal(hint, value, where, nearest(value, words) if isinstance(value, str) else "")


def _convert_dataclass(cls: Any, value: Any, where: str, base: Any = None) -> Any:
    """Return the dataclass made from a mapping; what it leaves out comes from `base`, or from the class's defaults."""
    value = _expand(cls, value, where)
    if not isinstance(value, Mapping):
        raise _refusal(cls, value, where)
    if cls is RunConfig:
        value = from_hydra(value)
        if "plugins" in value:
            import_plugins(value["plugins"])
    prefix, settings = f"{where}." if where else "", {field.name: field for field in fields(cls) if field.init}
    hints = {**_hints(cls), "algorithm": _algorithm(value)} if cls is RunConfig else _hints(cls)
    for name in value:
        if name not in settings:
            if takes_arguments(value.get(getattr(cls, "part_key", None))) and not nearest(name, settings):
                argument = printable(f"{prefix}kwargs.{name}")
                raise UnknownKeyError(printable(f"{prefix}{name}"), f"; did you mean '{argument}'?")
            raise _UnknownNameError(printable(f"{prefix}{name}"), value[name], (f"{prefix}{one}" for one in settings))
    values = {}
    for name, field in settings.items():
        hint, usual = hints[name], default(field) if base is None else getattr(base, name)
        if name not in value and usual is MISSING:
            raise ConfigError(f"{prefix}{name} is missing: {describe(hint)}")
        item = value[name] if name in value else to_dict(usual)  # a default must fit its type, too, to be read back
        if is_dataclass(hint) and type(usual) is hint:
            item = _expand(hint, item, f"{prefix}{name}")
            values[name] = _convert_dataclass(hint, item, f"{prefix}{name}", _defaults(usual, item))
        else:
            values[name] = _convert(hint, item, f"{prefix}{name}")
        check_bounds(field.metadata.get("bounds"), values[name], f"{prefix}{name}")
    try:
        built = cls(**values)
        if isinstance(built, AlgorithmSettings):
            refuse_unused(built, where)
    except ConfigError as problem:
        raise _with_place(problem, where, settings) from None
    return built


def _defaults(usual: Any, item: Any) -> Any:
    """Return the block that stands for what `item` leaves out: its default, unless that knows a better one."""
    exchange = getattr(usual, "defaults_for", None)
    return usual if exchange is None or not isinstance(item, Mapping) else exchange(item)


def _expand(cls: Any, value: Any, where: str) -> Any:
    """Return the data that a short form stands for, where the dataclass has one (`parse`, or the name of a part).

    A `_target_`, in the block or in its setting `part_key`, becomes the value of that setting. Keys beside it that are
    no settings of the block are its arguments.
    """
    key = getattr(cls, "part_key", None)
    if key and isinstance(value, Mapping):
        inner = value.get(key)
        if isinstance(inner, Mapping) and TARGET in inner:
            value = {**value, **inner}
        if TARGET in value:
            settings = {field.name for field in fields(cls)}
            arguments = {name: item for name, item in value.items() if name not in (*settings, TARGET)}
            kwargs = value.get("kwargs", {})
            value = {name: item for name, item in value.items() if name in settings} | {key: value[TARGET]}
            if arguments and isinstance(kwargs, Mapping):
                value["kwargs"] = {**kwargs, **arguments}
    if not hasattr(cls, "parse"):
        return {key: value} if key and isinstance(value, str) and takes_arguments(value) else value
    try:
        return cls.parse(value)
    except ConfigError as problem:
        raise _with_place(problem, where, ()) from None


def _with_place(problem: ConfigError, where: str, names: Any) -> ConfigError:
    """Return the error with its dotted key, unless the message names it already."""
    message = str(problem)
    if not where or f"{where}." in message or message.startswith(where):
        return problem
    starts_with_key = re.split(r"\W", message, maxsplit=1)[0] in names
    placed = f"{where}.{message}" if starts_with_key else f"{where}: {message}"
    if isinstance(problem, UnusedError):
        return UnusedError(placed, [f"{where}.{key}" for key in problem.keys])
    return ConfigError(placed)


def _convert_choice(hint: Any, value: Any, where: str) -> Any:
    for choice in get_args(hint):
        if type(choice) is type(value) and choice == value:
            return choice
    raise _refusal(hint, value, where, nearest(value, map(str, get_args(hint))) if isinstance(value, str) else "")


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint in (int, float) and isinstance(value, str) and EXPONENT.fullmatch(value):
        value = float(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and abs(value) >= LARGEST and isinstance(value, int):  # first: a float may not hold it
        raise ConfigError(f"{where}={_show(value)}: too large")
    if number and not math.isfinite(value):
        raise ConfigError(f"{where}={value}: must be finite")
    if hint is float and number:
        return float(value)
    if hint is int and number and value == int(value) and (isinstance(value, int) or abs(value) <= EXACT_FLOAT):
        return int(value)
    if hint is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # name=7
    if hint not in _WORDS and hint not in (list, dict):
        named = hint.__name__ if isinstance(hint, type) else hint
        raise ConfigError(f"{where}: the type of a setting cannot be {named} (it can be {_TYPES})")
    if type(value) is hint:
        return _plain(value, where)
    raise _refusal(hint, value, where)


def _plain(value: Any, where: str) -> Any:
    """Return data of no fixed type; refuse values that JSON cannot hold."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return _convert_scalar(type(value), value, where)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{where}.{printable(key)}") for key, item in value.items()}
    raise ConfigError(
        f"{where}={_show(value)}: must be text, a number, true, false, null, a list or a mapping of names"
    )


def _name_in(data: Mapping[str, Any]) -> Any:
    settings = data.get("algorithm")
    name = settings.get("name") if isinstance(settings, Mapping) else None
    return name if isinstance(name, str) else None


def _algorithm(data: Mapping[str, Any]) -> Any:
    """Return the settings class of the algorithm that `algorithm.name` names."""
    settings, name = data.get("algorithm"), _name_in(data)
    names = ", ".join(sorted(registry.ALGORITHMS))
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(
            f"algorithm={_show(settings)}: must be settings with a name, e.g. {{name: ppo}} (known: {names})"
        )
    if not name:
        value = f"={_show(settings['name'])}" if settings and "name" in settings else " is missing"
        raise ConfigError(f"algorithm.name{value}: must name an algorithm (known: {names})")
    try:
        return registry.settings_class(name)
    except NotFoundError as problem:
        raise ConfigError(f"algorithm.name={_show(name)}: {problem}") from None


def _refusal(hint: Any, value: Any, where: str, tail: str = "") -> ConfigError:
    return ConfigError(f"{where or 'config'}={_show(value)}: must be {describe(hint)}{tail}")


def _show(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
