"""The state of a VMAS simulator, collected by walking through its objects: tensors and numbers by their path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

LEAVES = (torch.Tensor, bool, int, float)
KINDS = ("vmas.", "torch.distributions.")  # modules whose objects are walked through; a scenario's module has no name


def snapshot(scenario: Any) -> dict[str, Any]:
    """Return the tensors, numbers and references to entities by path, and the paths that share another's tensor."""
    state: dict[str, dict[str, Any]] = {"tensors": {}, "numbers": {}, "entities": {}, "shared": {}}
    first: dict[int, str] = {}
    for path, value in _everything(scenario):
        if isinstance(value, str):
            state["entities"][path] = value
        elif not isinstance(value, torch.Tensor):
            state["numbers"][path] = value
        elif id(value) in first:  # writing into one writes into both
            state["shared"][path] = first[id(value)]
        else:
            first[id(value)] = path
            state["tensors"][path] = value.detach().clone(memory_format=torch.contiguous_format)
    return state


def restore(scenario: Any, state: dict[str, Any]) -> None:
    """Put a snapshot back into a simulator made from the same settings."""
    entities = {entity.name: entity for entity in scenario.world.entities}
    tensors = {path: torch.as_tensor(value).clone() for path, value in state["tensors"].items()}
    shared = {path: tensors[original] for path, original in state["shared"].items()}
    references = {path: entities[name] for path, name in state["entities"].items()}
    for path, value in {**references, **state["numbers"], **tensors, **shared}.items():
        *keys, last = path.split("/")
        place: Any = {"": scenario, **entities}
        for key in keys:
            place = _part(place, key, entities)
        if isinstance(place, list):
            place[int(last)] = value
        else:
            (place if isinstance(place, dict) else vars(place))[_key(place, last, entities)] = value


def _everything(scenario: Any) -> Iterator[tuple[str, Any]]:
    """Yield `(path, value)` of everything under the scenario and each entity; references to entities yield names."""
    entity_names = {id(entity): entity.name for entity in scenario.world.entities}
    visited: set[int] = set()
    yield from _walk(scenario, "", entity_names, visited)
    for entity in scenario.world.entities:
        yield from _walk(entity, entity.name, entity_names, visited)


def _walk(thing: Any, path: str, entity_names: dict[int, str], visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Walk depth first: through each object once, to each tensor, number and reference at every place."""
    visited.add(id(thing))
    parts: Any = vars(thing).items() if hasattr(thing, "__dict__") else ()
    if isinstance(thing, list):
        parts = enumerate(thing)
    elif isinstance(thing, dict):
        keys = {key: entity_names.get(id(key), key) for key in thing}
        parts = ((keys[key], part) for key, part in thing.items() if isinstance(keys[key], str))
    for key, part in list(parts):
        where = f"{path}/{key}"
        if id(part) in entity_names:
            yield where, entity_names[id(part)]
        elif isinstance(part, LEAVES):
            yield where, part
        elif id(part) not in visited and _has_parts(part):
            yield from _walk(part, where, entity_names, visited)


def _has_parts(thing: Any) -> bool:
    if isinstance(thing, list | dict):
        return True
    module = type(thing).__module__
    return hasattr(thing, "__dict__") and not isinstance(thing, type) and (not module or module.startswith(KINDS))


def _part(place: Any, key: str, entities: dict[str, Any]) -> Any:
    if isinstance(place, list):
        return place[int(key)]
    parts = place if isinstance(place, dict) else vars(place)
    return parts.setdefault(_key(place, key, entities), {})  # a simulator creates some dicts only at its first step


def _key(place: Any, key: str, entities: dict[str, Any]) -> Any:
    """Return the entity of that name where a dict is keyed by entities, else the key itself."""
    by_entity = isinstance(place, dict) and key not in place and key in entities
    return entities[key] if by_entity else key
