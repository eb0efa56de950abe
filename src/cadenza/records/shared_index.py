"""A team's index: the facts of everyone's runs in one PostgreSQL (or SQLite) database, named by CADENZA_INDEX."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from cadenza.base.json_text import dumps
from cadenza.errors import ConfigError, MissingExtraError, StorageError, install
from cadenza.records.folder import SHARED_INDEX, RunFolder
from cadenza.records.query import Entry, parsed
from cadenza.records.run_summary import COLUMNS, UNREADABLE, Row, describe, sound_facts, stamp, version

try:
    import sqlalchemy as sql
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
    from sqlalchemy.pool import NullPool
except ImportError as problem:
    raise MissingExtraError(f"CADENZA_INDEX needs an extra: {install('team')}") from problem

BEAT_SECONDS = 30.0
TEXTS = ("facts", "settings", "measured")
LOST_SECONDS = 4 * BEAT_SECONDS  # without a heartbeat for so long, a run elsewhere counts as crashed
CONNECT_SECONDS = 10
EMPTY: Row = dict.fromkeys(COLUMNS) | {"tags": [], "auto_tags": [], "changes": []}
DAMAGED: Row = {"status": UNREADABLE, "unreadable": "its row in the team's index is damaged"}

TABLE = sql.Table(
    "cadenza_runs",
    sql.MetaData(),
    sql.Column("place", sql.Text, primary_key=True),  # host:folder, since two people may name a run alike
    sql.Column("run", sql.Text, primary_key=True),
    sql.Column("version", sql.BigInteger, nullable=False),
    sql.Column("facts", sql.Text, nullable=False),
    sql.Column("settings", sql.Text, nullable=False),
    sql.Column("measured", sql.Text, nullable=False),
    sql.Column("beat", sql.DateTime(timezone=True), nullable=False),  # by the database's own clock
)


def place_of(root: Path) -> str:
    return f"{platform.node()}:{root.absolute()}"


class SharedIndex:
    """A connection for each call: calls are seconds apart, and a run must not hold one for days."""

    def __init__(self, url: str) -> None:
        try:
            address = make_url(url)
            if address.drivername == "postgresql":
                address = address.set(drivername="postgresql+psycopg")
            self.name = address.render_as_string(hide_password=True)
            dialect = address.get_backend_name()
            if dialect not in ("postgresql", "sqlite"):
                raise ConfigError(f"{SHARED_INDEX}={self.name}: must begin with postgresql:// or sqlite:///")
            patience = {"connect_timeout" if dialect == "postgresql" else "timeout": CONNECT_SECONDS}
            self._engine = sql.create_engine(address, poolclass=NullPool, connect_args=patience)
        except (ArgumentError, NoSuchModuleError):
            raise ConfigError(f"{SHARED_INDEX} is no URL: write postgresql://user@host/database") from None
        except ModuleNotFoundError as problem:
            raise MissingExtraError(f"{SHARED_INDEX} needs an extra: {install('team')}") from problem
        self._insert: Callable[[Any], Any] = postgresql.insert if dialect == "postgresql" else sqlite.insert

    def exchange(self, root: Path, ours: Sequence[Entry]) -> list[Entry]:
        """Send the state of the runs in a folder, and return everyone else's."""
        place, settings = place_of(root), cache(parsed)  # the seeds of one config share a text
        ours_there, theirs = TABLE.c.place == place, TABLE.c.place != place
        with Connected(self._engine, self.name) as connection:
            versions = {
                row.run: row.version
                for row in connection.execute(sql.select(TABLE.c.run, TABLE.c.version).where(ours_there))
            }
            others = connection.execute(sql.select(TABLE, sql.func.now().label("now")).where(theirs)).all()
            unsettled = ("running", "crashed")  # may change without a new version
            changed = [
                _record(place, entry.version, entry.row, dumps(entry.settings), entry.measured)
                for entry in ours
                if versions.get(entry.row["run"]) != entry.version or entry.row["status"] in unsettled
            ]
            self._write(connection, changed)
            # checked again: a run that was missing when the folder was read may exist by now
            gone = sorted(run for run in versions if not RunFolder(root / run).config.exists())
            if gone:
                connection.execute(sql.delete(TABLE).where(ours_there, TABLE.c.run.in_(gone)))
        here = {entry.row["run"] for entry in ours}  # each machine reports the runs of a folder that several share
        return [_foreign(row, settings) for row in others if row.run not in here]

    def tell(self, run: Path) -> None:
        """Send the state of one run: its heartbeat."""
        at = version(stamp(str(run)))
        record = _record(place_of(run.parent), at, *describe(run))
        with Connected(self._engine, self.name) as connection:
            self._write(connection, [record])

    def _write(self, connection: sql.Connection, records: list[Row]) -> None:
        """Write records, but none over a newer one; in a fixed order, so that two writers cannot block each other."""
        if not records:
            return
        insert = self._insert(TABLE).values(beat=sql.func.now())
        replaced = {name: insert.excluded[name] for name in ("version", *TEXTS, "beat")}
        newer = TABLE.c.version <= insert.excluded.version
        statement = insert.on_conflict_do_update(index_elements=["place", "run"], set_=replaced, where=newer)
        connection.execute(statement, sorted(records, key=lambda one: str(one["run"])))


def _record(place: str, at: int, facts: Row, settings: str, measured: Row) -> Row:
    texts = {"facts": dumps(facts), "settings": settings, "measured": dumps(measured)}
    return {"place": place, "run": facts["run"], "version": at, **texts}


class Connected:
    """A transaction on a database with the table; every problem is a one-line error."""

    def __init__(self, engine: sql.Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def __enter__(self) -> sql.Connection:
        try:
            try:
                TABLE.metadata.create_all(self._engine)
            except SQLAlchemyError:  # another process may have created it at the same moment
                TABLE.metadata.create_all(self._engine)
            self._transaction = self._engine.begin()
            return self._transaction.__enter__()
        except SQLAlchemyError as problem:
            raise self._refusal(problem) from problem

    def __exit__(self, *problem: Any) -> None:
        try:
            self._transaction.__exit__(*problem)
        except SQLAlchemyError as refused:
            raise self._refusal(refused) from refused
        if isinstance(problem[1], SQLAlchemyError):
            raise self._refusal(problem[1]) from problem[1]

    def _refusal(self, problem: SQLAlchemyError) -> StorageError:
        reason = str(getattr(problem, "orig", None) or problem).strip().splitlines()[0]
        return StorageError(f"cannot use the index at {self._name}: {reason} (unset {SHARED_INDEX} to do without it)")


def _foreign(row: Any, settings: Callable[[str], Row]) -> Entry:
    """Return a run on another machine or in another folder: only its heartbeat shows whether it is alive."""
    host, _, folder = row.place.partition(":")
    facts = EMPTY | {"dir": folder} | (sound_facts(row.facts) or DAMAGED) | {"run": row.run}
    facts["dir"] = facts["dir"] if host == platform.node() else f"{host}:{facts['dir']}"
    if facts["status"] in (None, "running"):
        silent = (_time(row.now) - _time(row.beat)).total_seconds()
        facts["status"] = "running" if silent < LOST_SECONDS else "crashed"
    return Entry(facts, row.version, partial(settings, row.settings), partial(parsed, row.measured))


def _time(value: datetime | str) -> datetime:
    """Return a time without its zone; SQLite returns times as text."""
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time.replace(tzinfo=None)
