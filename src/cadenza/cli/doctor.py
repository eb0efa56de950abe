"""`cadenza doctor`."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cadenza.cli.output import Json, RunsDir, print_json, print_table, say
from cadenza.errors import install

LOW_DISK = 1 << 30  # free bytes below which a warning is due
DEVELOPMENT = "dev"  # an extra that adds nothing for users


def doctor(runs_dir: RunsDir = None, json: Json = False) -> None:
    """Show what is installed, and what a missing extra disables.

    It also checks whether runs can be written.

    Example: cadenza doctor
    """
    from cadenza.records.folder import runs_root

    extras = _extras()
    facts = {
        "python": {"version": sys.version.split()[0], "path": sys.executable},
        "packages": _packages(),
        "torch": _torch(),
        "linear algebra": _linear_algebra(),
        "families": _families(extras),
        "extras": extras,
        "runs": _storage(runs_root(runs_dir)),
        "terminal": _terminal(),
    }
    problems = _problems(facts)
    if json:
        print_json(facts | {"problems": problems})
        return
    _print(facts, problems)


def _packages() -> dict[str, str | None]:
    from cadenza.records.manifest import versions

    return {name: version for name, version in versions().items() if name != "python"}


def _torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError as problem:
        return {"error": str(problem)}
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"threads": torch.get_num_threads(), "cuda": torch.version.cuda, "devices": names}


def _linear_algebra() -> str:
    """Return which kernels NumPy computes with, and what keeps it from faster ones."""
    from cadenza.base import blas

    try:
        kernels = blas.loaded() or "unknown"
    except ImportError:
        return "-"
    return f"{kernels} kernels{blas.remark()}"


def _extras() -> dict[str, dict[str, Any]]:
    """Return for each extra whether its packages are installed, and how to install it."""
    from cadenza.records.manifest import package_version

    needed: dict[str, list[str]] = {}
    try:
        lines = requires("cadenza") or []
    except PackageNotFoundError:
        return {}
    for line in lines:
        marker = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        name = re.match(r"[A-Za-z0-9._-]+", line)
        if marker and name and marker[1] != DEVELOPMENT:
            needed.setdefault(marker[1], []).append(name[0])
    states = {}
    for extra, packages in needed.items():
        missing = [package for package in packages if package_version(package) is None]
        states[extra] = {"installed": not missing, "missing": missing, "install": install(extra)}
    return states


def _families(extras: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    from cadenza.config.families import FAMILIES

    rows = []
    for family in FAMILIES.values():
        extra = extras.get(family.extra or "", {})
        installed = family.extra is None or bool(extra.get("installed"))
        if family.requires:  # as when an environment is made; the package's list of extras may be older
            installed = all(find_spec(package) for package in family.requires)
        command = None if installed else family.by_hand or install(family.extra)
        rows.append({"name": family.name, "summary": family.summary, "installed": installed, "install": command})
    return rows


def _storage(root: Path) -> dict[str, Any]:
    """Return whether runs can be written, by writing a temporary file, and how much disk is free."""
    place = root.absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            writable = True
    except OSError:
        writable = False
    return {"dir": str(root.absolute()), "writable": writable, "free_bytes": shutil.disk_usage(place).free}


def _terminal() -> dict[str, Any]:
    columns, lines = shutil.get_terminal_size()
    encoding, term = getattr(sys.stderr, "encoding", None), os.environ.get("TERM")
    return {"interactive": sys.stderr.isatty(), "columns": columns, "lines": lines, "encoding": encoding, "term": term}


def _problems(facts: dict[str, Any]) -> list[str]:
    problems = [f"{name} is not installed" for name, version in facts["packages"].items() if version is None]
    if "error" in facts["torch"]:
        problems.append(f"torch cannot be imported: {facts['torch']['error']}")
    if not facts["runs"]["writable"]:
        problems.append(
            f"cannot write to {facts['runs']['dir']}: choose another folder with --runs-dir or CADENZA_RUNS"
        )
    if facts["runs"]["free_bytes"] < LOW_DISK:
        problems.append(f"less than 1 GiB is free for {facts['runs']['dir']}")
    return problems


def _print(facts: dict[str, Any], problems: list[str]) -> None:
    from cadenza.base.formatting import size

    torch, runs, terminal = facts["torch"], facts["runs"], facts["terminal"]
    devices = ", ".join(torch.get("devices", [])) or "no CUDA device, the CPU is used"
    access = "writable" if runs["writable"] else "NOT writable"
    rows = [
        ("python", facts["python"]["version"]),
        *((name, version or "not installed") for name, version in facts["packages"].items()),
        ("threads", str(torch.get("threads", "-"))),
        ("linear algebra", facts["linear algebra"]),
        ("device", devices),
        ("runs", f"{runs['dir']} ({access}, {size(runs['free_bytes'])} free)"),
        ("terminal", _terminal_text(terminal)),
    ]
    print_table(("", ""), rows)
    families = [(family["name"], family["summary"], family["install"] or "installed") for family in facts["families"]]
    print_table(("environments", "what", "state"), families)
    if facts["extras"]:
        states = ((name, extra["installed"], extra["install"]) for name, extra in facts["extras"].items())
        print_table(("extra", "state"), [(name, "installed" if there else install) for name, there, install in states])
    for problem in problems:
        say(f"problem: {problem}")
    if not problems:
        say("everything that the core needs is installed")


def _terminal_text(terminal: dict[str, Any]) -> str:
    kind = "live table" if terminal["interactive"] else "plain lines (stderr is not a terminal)"
    return f"{kind}, {terminal['columns']} columns, {terminal['encoding']}"
