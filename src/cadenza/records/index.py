"""The experiment index: a cache of every run's facts in `runs/index.sqlite`, checked at each query."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from cadenza.base.files import SafePath
from cadenza.base.json_text import dumps
from cadenza.base.parsing import ParseError, json_object
from cadenza.records.folder import INDEX_NAME, run_ids, shown_state
from cadenza.records.query import Entry, Filters, Settings, parsed, select
from cadenza.records.run_summary import COLUMNS, UNREADABLE, Row, describe, stamp, version

LAYOUT = 4  # stored as the file's user_version; an index of another layout is made anew
BUSY_SECONDS = 5.0
TABLE = "CREATE TABLE runs (run TEXT PRIMARY KEY, stamp TEXT, facts TEXT, settings TEXT, measured TEXT)"

Texts = dict[str, tuple[str, str, str]]  # by run, its facts, settings and metrics as JSON


def rows(
    root: Path, filters: Filters = (), sort: str | None = None, limit: int | None = None, url: str | None = None
) -> list[Row]:
    """Runs that match every filter, newest first or best first by `sort`; with those of a team's index at `url`."""
    found = entries(root)
    if url is not None:
        from cadenza.records.shared_index import SharedIndex

        found += SharedIndex(url).exchange(root, found)
    return select(found, filters, sort, limit)


def rebuild(root: Path) -> int:
    """Forget what was known and read every folder again; how many runs there are."""
    if _is_ours(root):
        (root / INDEX_NAME).unlink(missing_ok=True)
    return len(entries(root))


def entries(root: Path) -> list[Entry]:
    """Every run in a folder, from a cache made current first."""
    place = str(root.absolute())  # texts and no paths from here on: there may be thousands of runs
    stamps = {run: stamp(f"{place}/{run}") for run in run_ids(root)}
    if not stamps:
        return []
    texts, settings = _from_disk(root, stamps), Settings()
    found = []
    for run, at in stamps.items():
        facts = _facts(texts[run])
        if facts is None:  # the cache may be anybody's
            texts[run] = _texts(root / run)
            facts = json.loads(texts[run][0])
        row = facts | {"run": run, "dir": f"{place}/{run}"}
        if row["status"] in (None, "running"):
            row["status"] = shown_state(Path(row["dir"]), row["status"])
        found.append(Entry(row, version(at), partial(settings.read, texts[run][1]), partial(parsed, texts[run][2])))
    return found


def _facts(texts: tuple[str, str, str]) -> Row | None:
    """The facts in a row of the cache; None where it holds what no version wrote."""
    try:
        facts = json_object(texts[0])
    except ParseError:
        return None
    return facts if facts.keys() >= set(COLUMNS) else None


def _from_disk(root: Path, stamps: dict[str, str]) -> Texts:
    path = root / INDEX_NAME
    for _ in range(2 if _is_ours(root) else 0):
        try:
            return _refreshed(path, root, stamps)
        except sqlite3.OperationalError:
            break  # read-only, busy for long, or without room: the folders themselves will do
        except sqlite3.DatabaseError:
            path.unlink(missing_ok=True)  # damaged: a cache is thrown away, not repaired
    return {run: _texts(root / run) for run in stamps}


def _is_ours(root: Path) -> bool:
    """Whether the cache, with the files that SQLite puts beside it, may be written: nothing there leads elsewhere."""
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
        found = {run: (at, *texts) for run, at, *texts in database.execute("SELECT * FROM runs")}
        stale = [run for run, at in stamps.items() if found.get(run, ("",))[0] != at]
        gone = [run for run in found if run not in stamps]
        texts: Texts = {run: (facts, settings, measured) for run, (_, facts, settings, measured) in found.items()}
        if stale or gone:
            texts |= {run: _texts(root / run) for run in stale}
            with database:
                database.execute("PRAGMA synchronous = OFF")  # a lost index is made anew
                database.executemany("DELETE FROM runs WHERE run = ?", [(run,) for run in gone])
                # why one cannot be opened is found anew each time: it may be mended without its status being told
                changed = [(run, stamps[run], *texts[run]) for run in stale if UNREADABLE not in texts[run][0]]
                database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", changed)
        return texts


def _lay_out(database: sqlite3.Connection) -> None:
    """In one transaction: of several processes that find no table, the first makes it."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        if database.execute("PRAGMA user_version").fetchone()[0] != LAYOUT:
            database.execute("DROP TABLE IF EXISTS runs")
            database.execute(TABLE)
            database.execute(f"PRAGMA user_version = {LAYOUT}")


def _texts(path: Path) -> tuple[str, str, str]:
    try:
        facts, settings, measured = map(dumps, describe(path))
    except (RecursionError, TypeError, ValueError):  # anything may be written there
        facts, settings, measured = map(dumps, describe(path, {}))
    return _clean(facts), _clean(settings), _clean(measured)


def _clean(text: str) -> str:
    """Half characters, which JSON can name, stand in no database."""
    return text.encode(errors="replace").decode()
