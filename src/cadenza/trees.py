"""Functions of nested dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cadenza.types import Tree


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Return a tree with the nesting of `tree`: at each leaf, `function` of the leaves there in `tree` and `others`."""
    if isinstance(tree, dict):
        return {key: map_tree(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    return function(tree, *others)


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, leaf) pairs in insertion order; a bare leaf has the path ''."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def take(arrays: Tree, index: Any) -> Tree:
    """Return copies of the rows `index` of every array."""
    if isinstance(arrays, dict):
        return {key: take(value, index) for key, value in arrays.items()}
    return arrays.take(index, axis=0)


def write(arrays: Tree, index: Any, values: Tree) -> None:
    """Write values to the rows `index` of arrays with the same nesting; arrays that have no values stay as they are."""
    for key, value in values.items():
        if isinstance(value, dict):
            write(arrays[key], index, value)
        else:
            arrays[key][index] = value
