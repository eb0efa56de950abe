"""Composition without Hydra, whose import and work take longer than reading the files.

It knows what most commands consist of: a name of cadenza's own or a file of plain settings, and overrides that set
numbers, names and texts.
Everything else is composed by Hydra, and both ways give the same (`tests/unit/config/test_plain.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from typing import Any

from cadenza.base.parsing import yaml_data
from cadenza.config.schema import RunConfig
from cadenza.config.spec import CONF, ROOT, Base, Layer

GLOBAL = "_global_"
PACKAGE = re.compile(r"# @package (\S+)\n")
CHOICE = re.compile(r"\+?(experiment|algorithm)=(\S+)")
KEY = re.compile(r"[a-z]\w*", re.ASCII)
RESOLVED = re.compile(r"[$?]")  # interpolations, and `???` for what is missing
OVERRIDE = re.compile(
    r"([a-z]\w*(?:\.[a-z]\w*)*)="  # key
    r"(?:(0|-?[1-9]\d*)|(-?(?:0|[1-9]\d*)\.\d+)|'([^'\\$?]*)'|([A-Za-z]\w*(?:\.\w+)*))",
    re.ASCII,
)
LONGEST = 1000  # characters of an override: Python converts no number of 5,000 digits
WORDS = {"true": True, "false": False, "null": None}
NUMBERS = ("nan", "inf", *WORDS)  # in any case; those of `WORDS` are written in small letters here


def composed(base: Base, overrides: Sequence[str]) -> tuple[dict[str, Any], list[Layer]] | None:
    """Return the data and the layers of a spec with overrides, or None where that takes Hydra."""
    changes = [layer for text in overrides if (layer := _change(text)) is not None]
    choices = [match for text in base.choices if (match := CHOICE.fullmatch(text))]
    whole = len(changes) == len(overrides) and len(choices) == len(base.choices)
    are_settings = all(_is_plain(layer.data) and layer.data.keys() <= _settings() for layer in base.layers)
    if base.root != ROOT or base.folders or base.groups or base.files or not (whole and are_settings):
        return None
    by_group = {match[1]: match[2] for match in choices}
    layers = [*_layers("experiment", by_group["experiment"])] if "experiment" in by_group else []
    layers.append(Layer(f"cadenza/conf/{ROOT}.yaml", {}))
    if "algorithm" in by_group:
        layers += _layers("algorithm", by_group["algorithm"])
    if "experiment" in by_group:
        layers.append(Layer("the choice of experiment", {"experiment": by_group["experiment"]}))
    layers += [*base.layers, *changes]
    data: dict[str, Any] = {}
    return (data, layers) if all(_merge(data, layer.data) for layer in layers) else None


def _change(text: str) -> Layer | None:
    """Return the layer of an override that sets a plain value, or None."""
    match = OVERRIDE.fullmatch(text) if len(text) <= LONGEST else None
    if match is None or match[1] == "algorithm.name" or match[1].partition(".")[0] not in _settings():
        return None
    key, whole, decimal, quoted, word = match.groups()
    if "." not in key and files(CONF).joinpath(key).is_dir():  # the choice of a file
        return None
    value: Any = quoted
    if word is not None:
        if word.lower() in NUMBERS and word not in WORDS:
            return None
        value = WORDS.get(word, word)
    elif quoted is None:
        value = int(whole) if whole is not None else float(decimal)
    for part in reversed(key.split(".")):
        value = {part: value}
    return Layer(f"override {text}", value)


def _is_plain(value: Any) -> bool:
    """Return whether a value holds no interpolation, dotted key or other form that Hydra and OmegaConf resolve."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and KEY.fullmatch(key) and _is_plain(below) for key, below in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float) or (type(value) is str and not RESOLVED.search(value))


def _settings() -> set[str]:
    return {field.name for field in fields(RunConfig)}


def _layers(group: str, name: str) -> Iterator[Layer]:
    """Yield the settings of a file of cadenza's own after those of the files that its defaults list names."""
    text = files(CONF).joinpath(group, f"{name}.yaml").read_text(encoding="utf-8")
    data = yaml_data(text) or {}
    before = data.pop("defaults", ["_self_"])
    package = match[1] if (match := PACKAGE.match(text)) else group
    for key in reversed(package.split(".") if package != GLOBAL else ()):
        data = {key: data}
    for entry in before:
        if entry == "_self_":
            yield Layer(f"cadenza/conf/{group}/{name}.yaml", data)
        elif isinstance(entry, str):
            yield from _layers(group, entry)
        else:
            ((place, option),) = entry.items()
            yield from _layers(place.removeprefix("/"), str(option))


def _merge(data: dict[str, Any], other: Mapping[str, Any]) -> bool:
    """Merge settings into data; return False where they are parts of what is a value there, which Hydra refuses."""
    for key, value in other.items():
        if not isinstance(value, Mapping):
            data[key] = value
        elif not isinstance(below := data.setdefault(key, {}), dict) or not _merge(below, value):
            return False
    return True
