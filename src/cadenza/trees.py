"""Nested dicts of arrays: the only three things ever done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cadenza.types import Tree


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply to each leaf (and the leaves at the same place in the others); same nesting out."""
    if isinstance(tree, dict):
        return {key: map_tree(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    return function(tree, *others)


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """`(dotted path, leaf)` pairs in insertion order; a bare leaf has the path ''."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def write(arrays: Tree, where: Any, values: Tree) -> None:
    """Put values into the places `where` of arrays with the same nesting."""
    for key, value in values.items():
        if isinstance(value, dict):
            write(arrays[key], where, value)
        else:
            arrays[key][where] = value
