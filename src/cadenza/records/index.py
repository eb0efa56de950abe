"""The experiment index: a cache of every run's facts in `runs/index.sqlite`, checked at each query."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import ExitStack, closing, suppress
from functools import cache, partial
from pathlib import Path

from cadenza.base.files import SafePath
from cadenza.base.json_text import dumps
from cadenza.records.folder import INDEX_NAME, run_ids, shown_state
from cadenza.records.query import Entry, Filters, parsed, select
from cadenza.records.run_summary import COLUMNS, UNREADABLE, Row, describe, sound_facts, stamp, version

LAYOUT = 4  # stored as the file's user_version; an index of another layout is created again
BUSY_SECONDS = 5.0
TABLE = "CREATE TABLE runs (run TEXT PRIMARY KEY, stamp TEXT, facts TEXT, settings TEXT, measured TEXT)"

Texts = dict[str, tuple[str, str, str]]  # by run, its facts, settings and metrics as JSON


def rows(
    root: Path, filters: Filters = (), sort: str | None = None, limit: int | None = None, url: str | None = None
) -> list[Row]:
    """Return the runs that match every filter, newest first or best first by `sort`.

    With the URL of a team's index, they include everyone's.
    """
    runs = entries(root)
    if url is not None:
        from cadenza.records.shared_index import SharedIndex

        runs += SharedIndex(url).exchange(root, runs)
    return select(runs, filters, sort, limit)


def rebuild(root: Path) -> int:
    """Discard the cache and read every folder again; return the number of runs."""
    if _is_ours(root):
        (root / INDEX_NAME).unlink(missing_ok=True)
    return len(entries(root))


def entries(root: Path) -> list[Entry]:
    """Return every run in a folder, from the cache after an update of it."""
    place = str(root.absolute())  # texts instead of paths from here on: there may be thousands of runs
    stamps = {run: stamp(f"{place}/{run}") for run in run_ids(root)}
    if not stamps:
        return []
    texts, settings = _from_disk(root, stamps), cache(parsed)  # the seeds of one config share a text
    entries = []
    for run, at in stamps.items():
        facts = sound_facts(texts[run][0])
        if facts is None or not facts.keys() >= set(COLUMNS):  # anybody may have written the cache
            texts[run] = _texts(root / run)
            facts = json.loads(texts[run][0])
        row = facts | {"run": run, "dir": f"{place}/{run}"}
        if row["status"] in (None, "running"):
            row["status"] = shown_state(Path(row["dir"]), row["status"])
        entries.append(Entry(row, version(at), partial(settings, texts[run][1]), partial(parsed, texts[run][2])))
    return entries


def _from_disk(root: Path, stamps: dict[str, str]) -> Texts:
    path = root / INDEX_NAME
    for _ in range(2 if _is_ours(root) else 0):
        try:
            return _refreshed(path, root, stamps)
        except sqlite3.OperationalError:
            break  # read-only, busy for long, or a full disk: read the folders instead
        except sqlite3.DatabaseError:
            path.unlink(missing_ok=True)  # damaged: a cache is discarded, not repaired
    return {run: _texts(root / run) for run in stamps}


def _is_ours(root: Path) -> bool:
    """Return whether the cache may be written: neither it nor a file that SQLite puts beside it is a link."""
    for path in SafePath(root).glob(f"{INDEX_NAME}*"):
        try:
            os.close(path.open(os.O_RDWR))
        except OSError:
            return False
    return True


def _refreshed(path: Path, root: Path, stamps: dict[str, str]) -> Texts:
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as database:
        if database.execute("PRAGMA user_version").fetchone()[0] != LAYOUT:
            _lay_out(database)
        stored = database.execute("SELECT run, stamp, facts, settings, measured FROM runs")
        cached = [row for row in stored if all(isinstance(text, str) for text in row)]  # else cadenza did not write it
        cached_stamps = {run: at for run, at, *_ in cached}
        texts: Texts = {run: (facts, settings, measured) for run, _, facts, settings, measured in cached}
        stale = [run for run, at in stamps.items() if cached_stamps.get(run) != at]
        gone = [run for run in cached_stamps if run not in stamps]
        if stale or gone:
            texts |= {run: _texts(root / run) for run in stale}
            with database:
                database.execute("PRAGMA synchronous = OFF")  # a lost index is created again
                database.executemany("DELETE FROM runs WHERE run = ?", [(run,) for run in gone])
                # an unreadable run is not cached: it may be repaired without a change of its status
                changed = [(run, stamps[run], *texts[run]) for run in stale if UNREADABLE not in texts[run][0]]
                database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", changed)
        return texts


def _lay_out(database: sqlite3.Connection) -> None:
    """Create the table, in one transaction: of several processes, the first one does it."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        if database.execute("PRAGMA user_version").fetchone()[0] != LAYOUT:
            database.execute("DROP TABLE IF EXISTS runs")
            database.execute(TABLE)
            database.execute(f"PRAGMA user_version = {LAYOUT}")


def _texts(path: Path) -> tuple[str, str, str]:
    with ExitStack() as folder:
        with suppress(OSError):  # describe names a folder that cannot be opened
            folder.enter_context(SafePath(path).hold())
        facts, settings, measured = describe(path)
    return _clean(dumps(facts)), _clean(settings), _clean(dumps(measured))


def _clean(text: str) -> str:
    """Replace lone surrogates, which JSON can contain but no database."""
    return text.encode(errors="replace").decode()
