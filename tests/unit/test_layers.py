"""Imports between the packages of cadenza point downwards only, lazy ones and those for type checkers too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import cadenza

ROOT = Path(cadenza.__file__).parent
ORDER = (
    "base",
    "config",
    "ops",
    "nets",
    "envs",
    "data",
    "workflows",
    "records",
    "engine",
    "watch",
    "lab",
    "tools",
    "cli",
)
BASE = (
    "errors",
    "trees",
    "types",
    "__version__",
)  # the vocabulary beside the packages; `api` and the rest are above all
EXCEPTIONS: set[tuple[str, str]] = set()  # importing module, imported module: at most three, and may only shrink
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in ROOT.rglob("*.py")
}


def layer(module: str) -> int:
    first = module.split(".")[0]
    return 0 if first in BASE else ORDER.index(first) if first in ORDER else len(ORDER)


def imports(path: Path) -> Iterator[str]:
    """Yield what a file imports of cadenza, however it is written: a module, or `__version__`."""
    package = ["cadenza", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "cadenza":
                inner = name.removeprefix("cadenza").removeprefix(".")
                yield inner if inner in MODULES or inner in BASE else inner.rpartition(".")[0]


def test_imports_point_downwards_only() -> None:
    edges = {(name, imported) for name, path in MODULES.items() for imported in imports(path)}
    assert {(name, imported) for name, imported in edges if layer(imported) > layer(name)} == EXCEPTIONS
    assert len(EXCEPTIONS) <= 3


def test_every_package_has_its_layer() -> None:
    packages = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert packages - {"conf", "skeletons"} == set(ORDER)
