"""Trees of a file with one value replaced by a wrong one, or with one key removed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

MISSING = object()  # the key is removed
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 1e308, float("nan"), 10**40),
    *("", "x" * 10000, "\x1b[31m\n", "$x_{$"),
    *([], {}, {"a": [None]}, [1, "x"]),
    MISSING,
)

Place = tuple[str | int, ...]


def places(tree: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every value in a tree of dicts and lists, sections before what is in them."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield (*place, key)
        yield from places(value, (*place, key))


def mutated(tree: Any, place: Place, value: Any) -> Any:
    """Return a copy of the tree with the value at this place, or without the place where it is MISSING."""
    result = copy.deepcopy(tree)
    parent = result
    for key in place[:-1]:
        parent = parent[key]
    if value is MISSING:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return result


def encoded(tree: Any) -> str:
    """Return JSON, with NaN as Python writes it; YAML reads it as well."""
    return json.dumps(tree)


def described(place: Place, value: Any) -> str:
    """Describe the change in a few words."""
    text = "removed" if value is MISSING else repr(value)
    return f"{'.'.join(map(str, place))} = {text[:40]}"
