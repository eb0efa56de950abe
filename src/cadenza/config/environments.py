"""Names of environments: the ids of each family, the full id for a short one, and what a missing family needs."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from cadenza.config import registry
from cadenza.config.families import FAMILIES, Family
from cadenza.config.registry import FROM_PYTHON
from cadenza.errors import MissingExtraError, NotFoundError, install, nearest

VERSION = re.compile(r"(.+)[-_]v(\d+)$")


def families() -> dict[str, list[str]]:
    """Return family name -> ids, of the families whose packages are installed and of environments registered by id."""
    ids = {family.name: list(module.ids(family.name)) for family, module in _installed()}
    for id in registry.ENVIRONMENTS:
        ids.setdefault(id.partition("/")[0] if "/" in id else "own", []).append(id)
    return ids


def resolve(id: str) -> str:
    """Return the full id: `id` itself if it exists or is an import path, else its newest version.

    Refuse an unknown id with the nearest one, and an id whose packages are missing with the line that installs them.
    """
    if ":" in id:
        return id
    full = _full_id(id)
    if full is None:
        broken = registry.load_environments()  # only now: other packages may be slow to import
        full = _full_id(id)
        name = _match(id, list(broken)) or id.partition("/")[0]
        if full is None and name in broken:
            raise broken[name]
    if full is not None:
        return full
    for family, ids in _uninstalled():
        if family.name == id.split("/")[0] or id.startswith(family.prefix) or _match(id, ids) is not None:
            raise missing(family)
    if id.startswith(FROM_PYTHON):
        steps = f"cadenza.register_environment('{id}')(its factory), then cadenza.Run.find(…).resume()"
        raise NotFoundError(f"environment '{id}' was passed from Python and exists only there; resume there: {steps}")
    if id in registry.ORIGINS:
        raise NotFoundError(f"unknown environment '{id}'; {registry.ORIGINS[id]}")
    all_ids = [name for _, ids in (*families().items(), *_uninstalled()) for name in ids]
    without_family = [name for name in all_ids if name.endswith(f"/{id}")]
    near = nearest(without_family[0] if without_family else id, all_ids)
    hint = "" if near else "; one of your own is found by an entry point, or as package.module:factory"
    raise NotFoundError(f"unknown environment '{id}'{near} (`cadenza envs` lists them{hint})")


def _full_id(id: str) -> str | None:
    if id in registry.ENVIRONMENTS or _listing_family(id) is not None:
        return id
    match = _match(id, [name for ids in families().values() for name in ids])
    return match or (id if family_of(id) else None)


def _match(id: str, ids: list[str]) -> str | None:
    """Return `id` if it is among the ids, else its newest version, or None."""
    if id in ids:
        return id
    versions = [(int(match[2]), name) for name in ids if (match := VERSION.match(name)) and match[1] == id]
    return max(versions)[1] if versions else None


def family_of(id: str) -> tuple[Family, Any] | None:
    """Return the family of a full id and the family's module, or None for a user's own environment."""
    if id in registry.ENVIRONMENTS:
        return None
    return _listing_family(id) or next(
        (entry for entry in _installed() if getattr(entry[1], "composed", _never)(id)), None
    )


def _listing_family(id: str) -> tuple[Family, Any] | None:
    """Return the family that lists the id and its module; the modules of the families after it are not imported."""
    return next(((family, module) for family, module in _installed() if id in module.ids(family.name)), None)


def _never(id: str) -> bool:
    return False


def unlisted(filter: str = "") -> dict[str, MissingExtraError]:
    """Return the families without their packages whose name or ids match the filter, each with its error."""
    pattern = filter.lower()
    return {
        family.name: missing(family)
        for family, ids in _uninstalled()
        if any(pattern in name.lower() for name in (family.name, family.prefix, *ids))
    }


def missing(family: Family) -> MissingExtraError:
    """Return the error for a family whose packages are not installed, with how to install them."""
    how = family.by_hand or f"an extra: {install(family.extra)}"
    return MissingExtraError(f"{family.name} environments need {how}")


def _installed() -> Iterator[tuple[Family, Any]]:
    for family in FAMILIES.values():
        module = _module(family)
        if module is not None:
            yield family, module


def _uninstalled() -> Iterator[tuple[Family, list[str]]]:
    """Yield the families without their packages, each with the ids that can be listed nevertheless."""
    for family in FAMILIES.values():
        if _module(family) is None:
            yield family, importlib.import_module(family.module).ids(family.name) if family.requires else []


def _module(family: Family) -> Any | None:
    """Return the family's module, or None where its packages are missing; a core family must import, or it raises."""
    if any(importlib.util.find_spec(package) is None for package in family.requires):
        return None
    try:
        return importlib.import_module(family.module)
    except ImportError:
        if family.extra is None:
            raise
        return None
