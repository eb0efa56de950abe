"""Filters and orders over runs: any column, metric or config key, with wildcards and comparisons."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from cadenza.base.json_text import dumps
from cadenza.base.parsing import ParseError, json_object
from cadenza.errors import ConfigError, NotFoundError, nearest
from cadenza.records.metrics import resolve
from cadenza.records.run_summary import COLUMNS, Row

Filters = Mapping[str, Any] | Sequence[str]
FILTER = re.compile(r"\s*([^=<>!]+?)\s*(!=|>=|<=|==?|<|>)\s*((?![=<>!]).*?)\s*", re.DOTALL)
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
BY_PREFIX = ("git", "config_hash")  # as people quote them
SHORT = 4  # characters of such a prefix, at least
ALIASES = {"tag": "tags"}
NOTHING: tuple[Any, ...] = (None, "", [])


@dataclass
class Entry:
    """A run as queries see it. Settings and metrics, most of the text, are parsed only by queries that need them."""

    row: Row
    version: int  # of two descriptions of one run the higher is the newer
    parse_settings: Callable[[], Row] = field(repr=False)
    parse_measured: Callable[[], Row] = field(repr=False)

    @cached_property
    def settings(self) -> Row:
        return self.parse_settings()

    @cached_property
    def measured(self) -> Row:
        return self.parse_measured()

    def source(self, name: str) -> Row:
        """Return the dict to look up a name that is no column: metrics have a slash, settings do not."""
        return self.measured if "/" in name else self.settings

    def value(self, name: str) -> Any:
        if name == "tags":
            return [*self.row["tags"], *self.row["auto_tags"]]
        return self.row[name] if name in self.row else self.source(name).get(name)


def parsed(text: str) -> Row:
    """Parse a text of the index; return nothing for one that cadenza did not write."""
    try:
        return json_object(text)
    except ParseError:
        return {}


@dataclass(frozen=True)
class Filter:
    """A comparison of one value of a run with a target: a text or number, a collection of these, or a function."""

    key: str
    operator: str
    target: Any

    def accepts(self, value: Any) -> bool:
        """Return whether the value passes."""
        if callable(self.target):
            return bool(self.target(value))
        if isinstance(self.target, list | tuple | set):
            return any(_equal(self.key, value, _text(item)) for item in self.target)
        target = _text(self.target)
        if self.operator in ORDERS:
            return _ordered(ORDERS[self.operator], value, target)
        return _equal(self.key, value, target) != (self.operator == "!=")


def select(entries: list[Entry], filters: Filters, sort: str | None, limit: int | None) -> list[Row]:
    """Return the rows of the runs that match every filter, best first."""
    conditions = [(condition, column(condition.key, entries)) for condition in parse(filters)]
    by = column(sort or "created", entries)
    for condition, name in conditions:
        entries = [entry for entry in entries if condition.accepts(entry.value(name))]
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}: must be at least 1")
    ranked = _ranked(entries, by)[:limit]
    return [entry.row if by in entry.row else entry.row | {by: entry.value(by)} for entry in ranked]


def parse(filters: Filters) -> list[Filter]:
    """Parse `key=value` texts, or a mapping to values, `">400"`-like texts, lists of alternatives and functions."""
    if isinstance(filters, Mapping):
        return [_from_python(key, value) for key, value in filters.items()]
    return [_from_text(text) for text in filters]


def _from_text(text: str) -> Filter:
    match = FILTER.fullmatch(text)
    if match is None:
        raise ConfigError(f"filter '{text}': write key=value, e.g. environment=CartPole-v1, or key>number")
    key, sign, target = match.groups()
    return Filter(ALIASES.get(key, key), "=" if sign == "==" else sign, target)


def _from_python(key: str, value: Any) -> Filter:
    if isinstance(value, str) and value[:1] in ("<", ">", "!", "=") and FILTER.fullmatch(f"{key}{value}"):
        return _from_text(f"{key}{value}")
    return Filter(ALIASES.get(key, key), "=", value)


def column(key: str, entries: Sequence[Entry]) -> str:
    """Return the full name of a column, a metric or a dotted config key; refuse one that no run has."""
    key = ALIASES.get(key, key)
    if key in COLUMNS or not entries:
        return key
    if any(key in entry.row or key in entry.source(key) for entry in entries):
        return key
    names = {name for entry in entries for part in (entry.row, entry.settings, entry.measured) for name in part}
    try:
        return resolve(key, names)
    except NotFoundError:
        hint = f"{nearest(key, names)} (columns: {', '.join(COLUMNS)}; or a config key, or a metric)"
        raise ConfigError(f"unknown column '{key}'{hint}") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _equal(key: str, value: Any, target: str) -> bool:
    """Compare as text (with * and ? wildcards) or as number; a list by any of its items; hashes by their beginning."""
    if isinstance(value, list):
        same = dumps(value).replace(" ", "") == target.replace(" ", "")
        return same or any(_equal(key, item, target) for item in value)
    if value is None or isinstance(value, bool):
        return target.lower() == dumps(value)
    if isinstance(value, int | float):
        return _number(target) == value
    if key in BY_PREFIX and len(target) >= SHORT and str(value).startswith(target):
        return True
    return str(value) == target or fnmatchcase(str(value), target)


def _ordered(order: Callable[[Any, Any], bool], value: Any, target: str) -> bool:
    """Compare numbers as numbers, times and names as text; a run without the value is on neither side."""
    if isinstance(value, str):
        return order(value, target)
    number = _number(target)
    if number is None or value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return order(value, number)


def _number(text: str) -> float | None:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return None


def _ranked(entries: Iterable[Entry], key: str) -> list[Entry]:
    """Sort numbers from the highest, times from the latest, names by alphabet; runs without the value come last."""
    valued = [(entry.value(key), entry) for entry in entries]
    present = [(value, entry) for value, entry in valued if value not in NOTHING]
    numeric = all(isinstance(value, int | float) for value, _ in present)
    falling = numeric or key == "created"

    def rank(pair: tuple[Any, Entry]) -> tuple[Any, str]:
        return (pair[0] if numeric else str(pair[0]), pair[1].row["run"])

    ordered = [entry for _, entry in sorted(present, key=rank, reverse=falling)]
    return ordered + [entry for value, entry in valued if value in NOTHING]
