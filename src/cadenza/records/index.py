"""The experiment index: a cache of every run's facts in `runs/index.sqlite`, checked at each query."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cadenza.errors import CheckpointError, ConfigError, NotFoundError, nearest
from cadenza.records.folder import RunFolder, run_ids, shown_state
from cadenza.records.json_text import dumps
from cadenza.records.metrics import resolve
from cadenza.trees import leaves

Row = dict[str, Any]

INDEX_NAME = "index.sqlite"
LAYOUT = 1  # stored as the file's user_version; an index of another layout is made anew
BUSY_SECONDS = 5.0
COLUMNS = (
    "run", "dir", "spec", "environment", "algorithm", "seed", "status", "env_steps", "return", "seconds",
    "created", "name", "tags", "config_hash", "git",
)  # fmt: skip


def rows(
    root: Path,
    filters: Mapping[str, str] | Sequence[str] = (),
    sort: str | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Runs that match every filter, newest first or best first by `sort`; COLUMNS and what status.json measures."""
    entries = _entries(root)
    for key, wanted in _pairs(filters):
        column = _column(key, entries)
        entries = [entry for entry in entries if _matches(_value(entry, column), wanted)]
    ranked = _ranked(entries, _column(sort or "created", entries))
    return [entry["row"] for entry in ranked[:limit]]


def _entries(root: Path) -> list[dict[str, Any]]:
    """`{"row": …, "config": flat settings}` for each run, from a cache made current first."""
    stamps = {run: _stamp(root / run) for run in run_ids(root)}
    if not stamps:
        return []
    cached = _from_disk(root, stamps)
    entries = []
    for run in stamps:
        entry = json.loads(cached[run])
        row = entry["row"]
        row["dir"] = str((root / run).absolute())
        row["status"] = shown_state(root / run, row["status"])
        entries.append(entry)
    return entries


def _from_disk(root: Path, stamps: dict[str, str]) -> dict[str, str]:
    path = root / INDEX_NAME
    for _ in range(2):
        try:
            return _refreshed(path, root, stamps)
        except sqlite3.OperationalError:
            break  # read-only, busy for long, or without room: the folders themselves will do
        except sqlite3.DatabaseError:
            path.unlink(missing_ok=True)  # damaged: a cache is thrown away, not repaired
    return {run: dumps(_describe(root / run)) for run in stamps}


def _refreshed(path: Path, root: Path, stamps: dict[str, str]) -> dict[str, str]:
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as database:
        if database.execute("PRAGMA user_version").fetchone()[0] != LAYOUT:
            database.executescript(
                f"DROP TABLE IF EXISTS runs; CREATE TABLE runs (run TEXT PRIMARY KEY, stamp TEXT, entry TEXT);"
                f"PRAGMA user_version = {LAYOUT}"
            )
        found = {run: (stamp, entry) for run, stamp, entry in database.execute("SELECT run, stamp, entry FROM runs")}
        stale = [run for run, stamp in stamps.items() if found.get(run, ("",))[0] != stamp]
        gone = [run for run in found if run not in stamps]
        entries = {run: entry for run, (_, entry) in found.items()}
        if stale or gone:
            entries |= {run: dumps(_describe(root / run)) for run in stale}
            with database:
                database.execute("PRAGMA synchronous = OFF")  # a lost index is made anew
                database.executemany("DELETE FROM runs WHERE run = ?", [(run,) for run in gone])
                database.executemany(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", [(run, stamps[run], entries[run]) for run in stale]
                )
        return entries


def _stamp(run: Path) -> str:
    """Changes whenever status.json is replaced, even within one tick of the clock."""
    try:
        status = (run / "status.json").stat()
    except OSError:
        return "none"
    return f"{status.st_mtime_ns}-{status.st_ino}-{status.st_size}"


def _describe(path: Path) -> dict[str, Any]:
    folder = RunFolder(path)
    settings = folder.settings()
    status, manifest = _lenient(folder.read_status), _lenient(folder.read_manifest)
    environment = _part(settings, "environment", "id") or manifest.get("environment")
    algorithm = _part(settings, "algorithm", "name") or manifest.get("algorithm")
    measured = {key: value for key, value in status.items() if "/" in key or key in ("best_return", "updates")}
    row = {
        "run": folder.id,
        "dir": "",
        "spec": f"{environment}:{algorithm}",
        "environment": environment,
        "algorithm": algorithm,
        "seed": settings.get("seed"),
        "status": status.get("status"),
        "env_steps": status.get("env_steps"),
        "return": status.get("eval/return_mean"),
        "seconds": status.get("seconds"),
        "created": manifest.get("created"),
        "name": settings.get("name", ""),
        "tags": settings.get("tags") or [],
        "config_hash": manifest.get("config_hash"),
        "git": (manifest.get("git") or {}).get("commit"),
    }
    return {"row": row | measured, "config": {key: value for key, value in leaves(settings) if key not in row}}


def _lenient(read: Any) -> Row:
    """One damaged folder must not hide the others."""
    try:
        found: Row = read()
    except (CheckpointError, OSError):
        return {}
    return found


def _part(settings: Row, section: str, key: str) -> Any:
    part = settings.get(section)
    return part.get(key) if isinstance(part, dict) else None


def _pairs(filters: Mapping[str, str] | Sequence[str]) -> list[tuple[str, str]]:
    if isinstance(filters, Mapping):
        return [(key, str(value)) for key, value in filters.items()]
    for text in filters:
        if "=" not in text:
            raise ConfigError(f"filter '{text}': write key=value, e.g. environment=CartPole-v1")
    return [(key.strip(), value.strip()) for key, _, value in (text.partition("=") for text in filters)]


def _column(key: str, entries: Sequence[dict[str, Any]]) -> str:
    """What a query calls a column, a metric in the status or a dotted config key; unknown in every run is a mistake."""
    if key in COLUMNS or not entries:
        return key
    known = {name for entry in entries for part in ("row", "config") for name in entry[part]}
    try:
        return resolve(key, known)
    except NotFoundError:
        columns = ", ".join(COLUMNS)
        raise ConfigError(
            f"unknown column '{key}'{nearest(key, known)} (columns: {columns}; or a config key, or a metric)"
        ) from None


def _value(entry: dict[str, Any], column: str) -> Any:
    return entry["row"].get(column, entry["config"].get(column))


def _matches(value: Any, wanted: str) -> bool:
    """Equal as text (with * and ? wildcards) or as number; a list matches by any of its entries."""
    if isinstance(value, list):
        return any(_matches(item, wanted) for item in value) or dumps(value).replace(" ", "") == wanted.replace(" ", "")
    if value is None or isinstance(value, bool):
        return wanted.lower() == dumps(value)
    if isinstance(value, int | float):
        try:
            return float(wanted) == value
        except ValueError:
            return False
    return fnmatchcase(str(value), wanted)


def _ranked(entries: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Highest number, latest time first; names in alphabetical order; runs without the value last."""
    valued = [(_value(entry, key), entry) for entry in entries]
    present = [(value, entry) for value, entry in valued if value not in (None, "", [])]
    numeric = all(isinstance(value, int | float) for value, _ in present)
    falling = numeric or key == "created"

    def rank(pair: tuple[Any, dict[str, Any]]) -> tuple[Any, str]:
        return (pair[0] if numeric else str(pair[0]), pair[1]["row"]["run"])

    ordered = [entry for _, entry in sorted(present, key=rank, reverse=falling)]
    return ordered + [entry for value, entry in valued if value in (None, "", [])]
