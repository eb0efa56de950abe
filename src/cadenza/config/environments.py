"""Names of environments: ids by family, the full id for a short one, and what a missing family needs."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from cadenza.config import registry
from cadenza.config.registry import FAMILIES, FROM_PYTHON, Family
from cadenza.errors import MissingExtraError, NotFoundError, install, nearest

VERSION = re.compile(r"(.+)[-_]v(\d+)$")


def families() -> dict[str, list[str]]:
    """Family name -> ids, of the families whose packages are installed and of what was registered one by one."""
    found = {family.name: list(module.ids(family.name)) for family, module in _installed()}
    for id in registry.ENVIRONMENTS:
        found.setdefault(id.partition("/")[0] if "/" in id else "own", []).append(id)
    return found


def resolve(id: str) -> str:
    """The full id: exact, the newest version where none is given, or an import path `package.module:factory`."""
    if ":" in id:
        return id
    found = _known(id)
    if found is None:
        broken = registry.load_environments()  # only now: other packages' may be slow to import
        found = _known(id)
        meant = _among(id, list(broken)) or id.partition("/")[0]
        if found is None and meant in broken:
            raise broken[meant]
    if found is not None:
        return found
    for family, names in _uninstalled():
        if family.name == id.split("/")[0] or id.startswith(family.prefix) or _among(id, names) is not None:
            raise missing(family)
    if id.startswith(FROM_PYTHON):
        way = f"cadenza.register_environment('{id}')(its factory), then cadenza.Run.find(…).resume()"
        raise NotFoundError(f"environment '{id}' was given from Python and is known only there; go on there: {way}")
    known = [name for _, names in (*families().items(), *_uninstalled()) for name in names]
    whole = [name for name in known if name.endswith(f"/{id}")]  # its family left out
    near = nearest(whole[0] if whole else id, known)
    hint = "" if near else "; one of your own is found by an entry point, or as package.module:factory"
    raise NotFoundError(f"unknown environment '{id}'{near} (`cadenza envs` lists them{hint})")


def _known(id: str) -> str | None:
    found = _among(id, [name for names in families().values() for name in names])
    return found or (id if family_of(id) else None)


def _among(id: str, known: list[str]) -> str | None:
    if id in known:
        return id
    versions = [(int(match[2]), name) for name in known if (match := VERSION.match(name)) and match[1] == id]
    return max(versions)[1] if versions else None


def family_of(id: str) -> tuple[Family, Any] | None:
    """The family of a full id and its module; none for an environment of a user's own."""
    if id in registry.ENVIRONMENTS:
        return None
    installed = list(_installed())
    listed = next(((family, module) for family, module in installed if id in module.ids(family.name)), None)
    return listed or next((entry for entry in installed if getattr(entry[1], "composed", _never)(id)), None)


def _never(id: str) -> bool:
    return False


def unlisted(filter: str = "") -> dict[str, MissingExtraError]:
    """Families whose packages are not installed and whose name or ids match the filter, with what to say about it."""
    wanted = filter.lower()
    return {
        family.name: missing(family)
        for family, names in _uninstalled()
        if any(wanted in name.lower() for name in (family.name, family.prefix, *names))
    }


def missing(family: Family) -> MissingExtraError:
    how = family.by_hand or f"an extra: {install(family.extra)}"
    return MissingExtraError(f"{family.name} environments need {how}")


def _installed() -> Iterator[tuple[Family, Any]]:
    for family in FAMILIES.values():
        module = _module(family)
        if module is not None:
            yield family, module


def _uninstalled() -> Iterator[tuple[Family, list[str]]]:
    """Families without their packages, and the ids that are known nevertheless."""
    for family in FAMILIES.values():
        if _module(family) is None:
            yield family, importlib.import_module(family.module).ids(family.name) if family.requires else []


def _module(family: Family) -> Any | None:
    """The family's module, or none where its packages are missing; a broken core family is a bug and shows."""
    if any(importlib.util.find_spec(package) is None for package in family.requires):
        return None
    try:
        return importlib.import_module(family.module)
    except ImportError:
        if family.extra is None:
            raise
        return None
