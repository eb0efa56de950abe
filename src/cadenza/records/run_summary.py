"""What the index knows of a run, read from its folder: facts to show, settings to search, and a stamp that changes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from cadenza.base.files import SafePath
from cadenza.errors import CheckpointError
from cadenza.records.folder import LONGEST_CONFIG, RunFolder
from cadenza.records.metric_rows import Rows
from cadenza.trees import leaves

Row = dict[str, Any]
Number = int | float

COLUMNS = (
    "run", "dir", "spec", "environment", "algorithm", "seed", "status", "env_steps", "return", "seconds",
    "created", "name", "tags", "auto_tags", "changes", "config_hash", "git", "host",
)  # fmt: skip
ALSO = ("best_return", "updates", "cleaned")  # of the status, besides metrics
UNREADABLE = "unreadable"
SETTING = re.compile(r"[\w.]+=.*", re.DOTALL)
SAID_ELSEWHERE = ("seed=", "name=", "tags=")


def stamp(run: str) -> str:
    """Changes whenever status.json is replaced, even within one tick of the clock."""
    try:
        status = os.stat(f"{run}/status.json", follow_symlinks=False)
    except OSError:
        return "none"
    return f"{status.st_mtime_ns}-{status.st_ino}-{status.st_size}"


def version(stamped: str) -> int:
    """When the run last said how it stands, by a stamp taken before it was read."""
    at, _, _ = stamped.partition("-")
    return int(at) if at.isdigit() else 0


def describe(path: Path, settings: Row | None = None) -> tuple[Row, Row, Row]:
    """COLUMNS and what status.json measures; every setting by its dotted key; every metric as it was last."""
    from cadenza.config.schema import variant

    folder = RunFolder(path)
    reason = unreadable(folder)
    settings = {} if reason else folder.settings() if settings is None else settings
    status, manifest = _lenient(folder.read_status), _lenient(folder.read_manifest)
    environment = _part(settings, "environment", "id") or manifest.get("environment")
    algorithm = _part(settings, "algorithm", "name") or manifest.get("algorithm")
    named = variant(str(environment), str(algorithm), _only(str, settings.get("experiment")))
    git, tags = _only(dict, manifest.get("git")) or {}, settings.get("tags")
    row = {
        "run": folder.id,
        "dir": str(path.absolute()),
        "spec": f"{environment}:{named}",
        "environment": environment,
        "algorithm": algorithm,
        "seed": settings.get("seed"),
        "status": status.get("status"),
        "env_steps": _only(Number, status.get("env_steps")),
        "return": _only(Number, status.get("eval/return_mean")),
        "seconds": _only(Number, status.get("seconds")),
        "created": _only(str, manifest.get("created")),
        "name": settings.get("name", ""),
        "tags": tags if isinstance(tags, list) else [tags] if tags else [],
        "auto_tags": automatic_tags(settings, bool(git.get("dirty"))),
        "changes": changes(_only(list, manifest.get("command")) or []),
        "config_hash": manifest.get("config_hash"),
        "git": git.get("commit"),
        "host": (_only(dict, manifest.get("machine")) or {}).get("host"),
    }
    measured = {key: value for key, value in status.items() if "/" in key or key in ALSO}
    row |= measured
    if reason is not None:
        row |= {"status": UNREADABLE, "unreadable": reason}
    flat = {key: value for key, value in leaves(settings) if key not in row}
    return row, flat, {key: value for key, value in last_row(folder.metrics).items() if "/" in key and key not in row}


def unreadable(folder: RunFolder) -> str | None:
    """Why a run cannot be opened, by what kind of file and how large its few descriptions are."""
    for file in (folder.config, folder.manifest, folder.status, folder.decisions, folder.metrics):
        try:
            os.close(file.open())
            if file.name != folder.metrics.name and file.stat().st_size > LONGEST_CONFIG:
                return f"{file.name} has more than {LONGEST_CONFIG:,} bytes"
        except FileNotFoundError:
            continue
        except OSError as problem:
            return f"{file.name}: {problem.strerror or problem}"
    return None


def last_row(path: SafePath) -> Row:
    """Return the last whole row of metrics.jsonl, or {} where it cannot be read."""
    try:
        with Rows(path) as rows:
            return next(iter(rows.last(1)), {})
    except OSError:
        return {}


def automatic_tags(settings: Row, dirty: bool) -> list[str]:
    """Words that every run can be found by without anyone having thought of them."""
    family, slash, _ = str(_part(settings, "environment", "id") or "").partition("/")
    found = {
        family: bool(slash),
        str(_part(settings, "algorithm", "name")): True,
        "tuned" if settings.get("experiment") else "untuned": True,
        "debug": _part(settings, "debug", "enabled") is True,
        "warm-start": _part(settings, "training", "init_from") is not None,
        "dataset": _part(settings, "training", "dataset") is not None,
        "local-changes": dirty,
    }
    return [tag for tag, holds in found.items() if holds]


def changes(command: list[Any]) -> list[str]:
    """What was set on the command line: the name of a run that was given none."""
    texts = [text for text in command[2:] if isinstance(text, str)]
    return [text for text in texts if SETTING.fullmatch(text) and not text.startswith(SAID_ELSEWHERE)]


def _lenient(read: Any) -> Row:
    """One damaged folder must not hide the others."""
    try:
        found: Row = read()
    except (CheckpointError, OSError):
        return {}
    return found


def _only(kind: Any, value: Any) -> Any:
    """Nothing where somebody wrote something of another kind."""
    return value if isinstance(value, kind) else None


def _part(settings: Row, section: str, key: str) -> Any:
    part = settings.get(section)
    return part.get(key) if isinstance(part, dict) else None
