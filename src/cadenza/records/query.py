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
FILTER = re.compile(r"\s*([^=<>!]+?)\s*(!=|>=|<=|==?|<|>)\s*(.*?)\s*", re.DOTALL)
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
    """A run as queries see it. Settings and metrics, most of the text, are read only by queries that need them."""

    row: Row
    version: int  # of two descriptions of one run the higher is the newer
    read_settings: Callable[[], Row] = field(repr=False)
    read_measured: Callable[[], Row] = field(repr=False)

    @cached_property
    def settings(self) -> Row:
        return self.read_settings()

    @cached_property
    def measured(self) -> Row:
        return self.read_measured()

    def beyond(self, name: str) -> Row:
        """Where a key that is no column belongs: metrics have a slash, settings have not."""
        return self.measured if "/" in name else self.settings

    def value(self, name: str) -> Any:
        if name == "tags":
            return [*self.row["tags"], *self.row["auto_tags"]]
        return self.row[name] if name in self.row else self.beyond(name).get(name)


def parsed(text: str) -> Row:
    """Return what the index keeps of a run as JSON; nothing where somebody else wrote it."""
    try:
        return json_object(text)
    except ParseError:
        return {}


class Settings:
    """Reads each text once: the seeds of one config share theirs."""

    def __init__(self) -> None:
        self._known: dict[str, Row] = {}

    def read(self, text: str) -> Row:
        if text not in self._known:
            self._known[text] = parsed(text)
        return self._known[text]


@dataclass(frozen=True)
class Filter:
    key: str
    operator: str
    wanted: Any

    def holds(self, value: Any) -> bool:
        if callable(self.wanted):
            return bool(self.wanted(value))
        if isinstance(self.wanted, list | tuple | set):
            return any(_equal(self.key, value, _text(item)) for item in self.wanted)
        wanted = _text(self.wanted)
        if self.operator in ORDERS:
            return _ordered(ORDERS[self.operator], value, wanted)
        return _equal(self.key, value, wanted) != (self.operator == "!=")


def select(entries: list[Entry], filters: Filters, sort: str | None, limit: int | None) -> list[Row]:
    """Rows of the runs that match every filter, best first."""
    wanted = [(one, column(one.key, entries)) for one in parse(filters)]
    by = column(sort or "created", entries)
    for one, name in wanted:
        entries = [entry for entry in entries if one.holds(entry.value(name))]
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}: must be at least 1")
    found = _ranked(entries, by)[:limit]
    return [entry.row if by in entry.row else entry.row | {by: entry.value(by)} for entry in found]


def parse(filters: Filters) -> list[Filter]:
    """`key=value` texts, or a mapping to values, `">400"`-like texts, lists of alternatives and functions."""
    if isinstance(filters, Mapping):
        return [_from_python(key, value) for key, value in filters.items()]
    return [_from_text(text) for text in filters]


def _from_text(text: str) -> Filter:
    found = FILTER.fullmatch(text)
    if found is None:
        raise ConfigError(f"filter '{text}': write key=value, e.g. environment=CartPole-v1, or key>number")
    key, sign, wanted = found.groups()
    return _checked(key, sign, wanted)


def _from_python(key: str, value: Any) -> Filter:
    found = FILTER.fullmatch(f"{key}{value}") if isinstance(value, str) and value[:1] in ("<", ">", "!", "=") else None
    return _checked(key, *found.groups()[1:]) if found else _checked(key, "=", value)


def _checked(key: str, sign: str, wanted: Any) -> Filter:
    return Filter(ALIASES.get(key, key), "=" if sign == "==" else sign, wanted)


def column(key: str, entries: Sequence[Entry]) -> str:
    """What a query calls a column, a metric in the status or a dotted config key; unknown in every run is a mistake."""
    key = ALIASES.get(key, key)
    if key in COLUMNS or not entries:
        return key
    if any(key in entry.row or key in entry.beyond(key) for entry in entries):
        return key
    known = {name for entry in entries for part in (entry.row, entry.settings, entry.measured) for name in part}
    try:
        return resolve(key, known)
    except NotFoundError:
        pass
    hint = f"{nearest(key, known)} (columns: {', '.join(COLUMNS)}; or a config key, or a metric)"
    raise ConfigError(f"unknown column '{key}'{hint}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _equal(key: str, value: Any, wanted: str) -> bool:
    """Equal as text (with * and ? wildcards) or as number; a list by any of its items; hashes by their beginning."""
    if isinstance(value, list):
        same = dumps(value).replace(" ", "") == wanted.replace(" ", "")
        return same or any(_equal(key, item, wanted) for item in value)
    if value is None or isinstance(value, bool):
        return wanted.lower() == dumps(value)
    if isinstance(value, int | float):
        number = _number(wanted)
        return number is not None and number == value
    if key in BY_PREFIX and len(wanted) >= SHORT and str(value).startswith(wanted):
        return True
    return str(value) == wanted or fnmatchcase(str(value), wanted)


def _ordered(order: Callable[[Any, Any], bool], value: Any, wanted: str) -> bool:
    """Numbers as numbers, times and names as text; a run without the value is on neither side."""
    if isinstance(value, str):
        return order(value, wanted)
    number = _number(wanted)
    if number is None or value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return order(value, number)


def _number(text: str) -> float | None:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return None


def _ranked(entries: Iterable[Entry], key: str) -> list[Entry]:
    """Highest number, latest time first; names in alphabetical order; runs without the value last."""
    valued = [(entry.value(key), entry) for entry in entries]
    present = [(value, entry) for value, entry in valued if value not in NOTHING]
    numeric = all(isinstance(value, int | float) for value, _ in present)
    falling = numeric or key == "created"

    def rank(pair: tuple[Any, Entry]) -> tuple[Any, str]:
        return (pair[0] if numeric else str(pair[0]), pair[1].row["run"])

    ordered = [entry for _, entry in sorted(present, key=rank, reverse=falling)]
    return ordered + [entry for value, entry in valued if value in NOTHING]
