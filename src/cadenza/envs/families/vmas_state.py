"""What a VMAS simulator holds, found by walking through its objects: tensors and numbers by the path to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

LEAVES = (torch.Tensor, bool, int, float)
KINDS = ("vmas.", "torch.distributions.")  # modules of objects that are walked through; a scenario's has no name


def snapshot(scenario: Any) -> dict[str, Any]:
    """Tensors, numbers, which entities are referred to, and which places hold the same tensor as another."""
    found: dict[str, dict[str, Any]] = {"tensors": {}, "numbers": {}, "entities": {}, "shared": {}}
    first: dict[int, str] = {}
    for path, value in _everything(scenario):
        if isinstance(value, str):
            found["entities"][path] = value
        elif not isinstance(value, torch.Tensor):
            found["numbers"][path] = value
        elif id(value) in first:  # writing into one writes into both
            found["shared"][path] = first[id(value)]
        else:
            first[id(value)] = path
            found["tensors"][path] = value.detach().clone(memory_format=torch.contiguous_format)
    return found


def restore(scenario: Any, state: dict[str, Any]) -> None:
    """Put everything where it was found, in a simulator made from the same settings."""
    entities = {entity.name: entity for entity in scenario.world.entities}
    tensors = {path: torch.as_tensor(value).clone() for path, value in state["tensors"].items()}
    shared = {path: tensors[original] for path, original in state["shared"].items()}
    references = {path: entities[name] for path, name in state["entities"].items()}
    for path, value in {**references, **state["numbers"], **tensors, **shared}.items():
        *way, last = path.split("/")
        place: Any = {"": scenario, **entities}
        for key in way:
            place = _part(place, key, entities)
        if isinstance(place, list):
            place[int(last)] = value
        else:
            (place if isinstance(place, dict) else vars(place))[_key(place, last, entities)] = value


def _everything(scenario: Any) -> Iterator[tuple[str, Any]]:
    """From the scenario and each entity on; entities that are met on the way are only named."""
    named = {id(entity): entity.name for entity in scenario.world.entities}
    seen: set[int] = set()
    yield from _walk(scenario, "", named, seen)
    for entity in scenario.world.entities:
        yield from _walk(entity, entity.name, named, seen)


def _walk(thing: Any, path: str, named: dict[int, str], seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Depth first; each object once, each tensor, number and reference wherever it is."""
    seen.add(id(thing))
    parts: Any = vars(thing).items() if hasattr(thing, "__dict__") else ()
    if isinstance(thing, list):
        parts = enumerate(thing)
    elif isinstance(thing, dict):
        keys = {key: named.get(id(key), key) for key in thing}
        parts = ((keys[key], part) for key, part in thing.items() if isinstance(keys[key], str))
    for key, part in list(parts):
        where = f"{path}/{key}"
        if id(part) in named:
            yield where, named[id(part)]
        elif isinstance(part, LEAVES):
            yield where, part
        elif id(part) not in seen and _has_parts(part):
            yield from _walk(part, where, named, seen)


def _has_parts(thing: Any) -> bool:
    if isinstance(thing, list | dict):
        return True
    module = type(thing).__module__
    return hasattr(thing, "__dict__") and not isinstance(thing, type) and (not module or module.startswith(KINDS))


def _part(place: Any, key: str, entities: dict[str, Any]) -> Any:
    if isinstance(place, list):
        return place[int(key)]
    parts = place if isinstance(place, dict) else vars(place)
    return parts.setdefault(_key(place, key, entities), {})  # what a simulator makes at its first step are dicts


def _key(place: Any, key: str, entities: dict[str, Any]) -> Any:
    """Dicts may be keyed by entities."""
    by_entity = isinstance(place, dict) and key not in place and key in entities
    return entities[key] if by_entity else key
