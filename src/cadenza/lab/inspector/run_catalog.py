"""The runs that the inspector shows: the table and its small curves, and all there is to say about one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadenza.base.files import SafePath
from cadenza.errors import CadenzaError, CheckpointError, ConfigError, NotFoundError
from cadenza.lab.inspector.rows import curve, thinned
from cadenza.records import alert_log, live_runs, validity
from cadenza.records.folder import RunFolder, run_ids
from cadenza.records.index import entries
from cadenza.records.lock import is_held
from cadenza.records.metric_rows import POINTS, ByteRange, Row, Rows
from cadenza.records.query import Entry, select
from cadenza.records.run_summary import describe, stamp
from cadenza.trees import leaves

COLUMNS = (
    "run", "spec", "environment", "algorithm", "seed", "status", "env_steps", "return", "best_return", "seconds",
    "created", "name", "tags", "auto_tags", "changes", "cleaned",
)  # fmt: skip
RETURNS = ("eval/return_mean", "collect/return_mean")  # what a small curve shows: the first that a run has
SPARK = 60  # points
FEW = 8  # of evaluations: then training episodes tell more
NAMED = 300  # rows in which names of metrics are looked for
LOG = 1 << 15  # bytes of the log's end
MEDIA = {".mp4": "video/mp4", ".gif": "image/gif", ".png": "image/png"}


@dataclass(frozen=True)
class Spark:
    """A small curve, of which metric, and how far the file had been read."""

    size: int = 0
    name: str = ""
    y: list[float] = field(default_factory=list)


class Catalog:
    """Runs of one folder, and others by name. A run is looked up in what is there: no text becomes a path."""

    def __init__(self, root: Path, named: Sequence[RunFolder] = ()) -> None:
        self.root = root
        self.others: dict[str, RunFolder] = {}
        here = set(run_ids(root))
        for folder in named:
            parent = folder.path.resolve().parent
            if parent == root.resolve():
                continue
            if folder.id in here or folder.id in self.others:  # a page knows a run by its name alone
                where = root if folder.id in here else self.others[folder.id].path.parent
                raise ConfigError(f"{folder.path}: {where} has a run of that name, too; see it by --runs-dir {parent}")
            self.others[folder.id] = folder
        self._known: frozenset[str] = frozenset()
        self._sparks: dict[str, Spark] = {}
        self._table: tuple[Any, list[Entry]] = (None, [])

    def folder(self, run: str) -> RunFolder:
        if run not in self.others and run not in self._known:
            self._known = frozenset(run_ids(self.root))
            if run not in self._known:
                raise NotFoundError(f"no run '{run}'")
        found = self._place(run)
        if not found.config.is_file():
            raise NotFoundError(f"run '{run}' is not there any more")
        return found

    def _place(self, run: str) -> RunFolder:
        """Of a run that is known."""
        return self.others.get(run) or RunFolder(self.root / run)

    # the table

    def table(self, filters: Sequence[str], known: str) -> dict[str, Any]:
        """Every run that matches; nothing but a word where the page knows it already."""
        ids = run_ids(self.root)
        stamps = [(run, stamp(f"{self.root}/{run}")) for run in ids]
        stamps += [(run, stamp(str(folder.path))) for run, folder in self.others.items()]
        if self._table[0] != stamps:
            self._table = (stamps, entries(self.root) + [_entry(folder) for folder in self.others.values()])
        found = self._table[1]
        live = {run: _stand(self._place(run)) for run in _claiming(found) if is_held(self._place(run).path)}
        version = f"{hash((tuple(stamps), tuple(filters), tuple((run, one['done']) for run, one in live.items()))):x}"
        if version == known:
            return {"version": version}
        matching = {row["run"] for row in select(found, list(filters), None, None)}
        rows = []
        for entry in found:
            run = entry.row["run"]
            if run in matching:
                row = {key: entry.row.get(key) for key in COLUMNS}
                if row["status"] in (None, "running", "crashed"):
                    row["status"] = "running" if run in live else row["status"] and "crashed"
                rows.append(row | {"budget": entry.settings.get("training.max_timesteps"), "live": live.get(run)})
        return {"version": version, "runs": rows, "root": str(self.root.absolute())}

    def sparks(self, runs: Sequence[str]) -> dict[str, list[float]]:
        return {run: self._spark(run) for run in runs}

    def _spark(self, run: str) -> list[float]:
        """Only what was written since the last look is looked at."""
        before = self._sparks.get(run, Spark())
        try:
            with Rows(self.folder(run).metrics) as reader:
                if reader.size == before.size:
                    return before.y
                if reader.size < before.size:
                    before = Spark()
                new = ByteRange(before.size, reader.size)
                found = {name: self._values(reader, name, new) for name in [before.name or RETURNS[0]]}
                if not before.name and len(found[RETURNS[0]]) < FEW:
                    found[RETURNS[1]] = self._values(reader, RETURNS[1], new)
        except OSError:
            return []
        name = max(found, key=lambda one: len(found[one]))
        y = before.y + found[name]
        while len(y) > 2 * SPARK:
            y = y[:-1][::2] + y[-1:]
        if len(y) >= FEW:
            self._sparks[run] = Spark(reader.size, name, y)
        return y

    @staticmethod
    def _values(reader: Rows, name: str, new: ByteRange) -> list[float]:
        return curve(reader.having(name, new, SPARK), name, "env_steps")[1]

    # one run

    def detail(self, run: str) -> dict[str, Any]:
        folder = self.folder(run)
        row, _, _ = describe(folder.path)
        status, training = folder.read_status(), folder.settings().get("training")
        manifest, decisions = (_lenient(read) for read in (folder.read_manifest, folder.read_decisions))
        told = alert_log.read(folder.alerts)
        return {
            "facts": row | {"status": folder.state(), "updates": status.get("updates")},
            "message": status.get("message", ""),
            "live": _stand(folder) if is_held(folder.path) else None,
            "budget": training.get("max_timesteps") if isinstance(training, dict) else None,
            "command": manifest.get("command") or [],
            "versions": manifest.get("versions") or {},
            "machine": manifest.get("machine") or {},
            "git": manifest.get("git"),
            "metrics": names(folder),
            "settings": [[key, value] for key, value in leaves(folder.settings())],
            "decisions": [[key, value] for key, value in decisions.items()],
            "checkpoints": checkpoints(folder),
            "alerts": [one | {"line": _line(one)} for one in told],
            "media": media(folder),
            "log": _end(folder.log),
        }

    def stand(self, run: str) -> dict[str, Any]:
        """What changes while a run trains."""
        folder = self.folder(run)
        status = folder.read_status()
        facts = {key: status.get(key) for key in ("env_steps", "updates", "seconds", "best_return", "eval/return_mean")}
        live = _stand(folder) if is_held(folder.path) else None
        return {"status": folder.state(), "live": live, "facts": facts}

    def curves(
        self,
        run: str,
        wanted: Sequence[str],
        axis: str,
        low: float | None,
        high: float | None,
        begin: int,
        quick: bool = False,
    ) -> dict[str, Any]:
        """Metrics along an axis; from a byte on where the page has what comes before.

        Those that few of many rows have are searched for, or with `quick` only named, to be asked for next.
        """
        try:
            reader = Rows(self.folder(run).metrics)
        except OSError:
            return {"size": 0, "curves": {name: {"x": [], "y": []} for name in wanted}, "every": True, "rare": []}
        with reader:
            stretch = reader.part(low, high, axis)
            if 0 < begin <= reader.size:
                stretch = ByteRange(begin, reader.size)
            rows = reader.sampled(stretch)
            points = {name: curve(rows, name, axis) for name in wanted}
            rare = [name for name, (x, _) in points.items() if not stretch.small and len(x) < POINTS // 2]
            if not quick:
                points |= {name: curve(reader.having(name, stretch), name, axis) for name in rare}
            found = {name: {"x": x, "y": y} for name, (x, y) in points.items()}
            told = {"size": reader.size, "curves": found, "every": stretch.small, "rare": rare if quick else []}
            return told | ({"names": numeric(rows)} if not quick and stretch.small else {})

    # episodes

    def episodes(self, run: str, sort: str, falling: bool, begin: int, count: int) -> dict[str, Any]:
        """A page of the list, and how returns went over all of them."""
        from cadenza.records.episodes import outline

        found = outline(self.folder(run))
        returns = sum(found["returns"].values()) if found["returns"] else []
        total = len(found["length"])
        keys = {"episode": range(total), "return": returns, "length": found["length"], "env": found["env"]}
        by = keys.get(sort, keys["episode"])
        order = sorted(range(total), key=lambda i: (by[i], i), reverse=falling)[begin : begin + count]
        rows = [
            {
                "episode": i,
                "env": int(found["env"][i]),
                "seed": int(found["seed"][i]),
                "length": int(found["length"][i]),
                "return": float(returns[i]),
                "groups": {group: float(values[i]) for group, values in found["returns"].items()},
                "won": None if found["won"] is None else bool(found["won"][i]),
            }
            for i in order
        ]
        x, y = thinned(list(map(float, range(total))), [float(value) for value in returns], POINTS)
        return {"total": total, "episodes": rows, "curve": {"x": x, "y": y}}

    def media_file(self, run: str, name: str) -> tuple[SafePath, str]:
        """A video or picture of a run, of those that there are."""
        folder = self.folder(run)
        if name not in media(folder):
            raise NotFoundError(f"run {run} has no '{name}'")
        return folder.videos / name, MEDIA[os.path.splitext(name)[1]]


def _entry(folder: RunFolder) -> Entry:
    row, settings, measured = describe(folder.path)
    row["status"] = folder.state()
    return Entry(row, 0, lambda: settings, lambda: measured)


def _claiming(found: Sequence[Entry]) -> list[str]:
    return [entry.row["run"] for entry in found if entry.row["status"] in (None, "running", "crashed")]


def _stand(folder: RunFolder) -> dict[str, Any]:
    with suppress(CadenzaError, OSError, KeyError, TypeError):
        found = vars(live_runs.describe(folder))
        return {key: value for key, value in found.items() if key not in ("run", "dir", "curve", "alert", "parts")}
    return {"done": 0}


def _lenient(read: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = read()
    except (CheckpointError, OSError):
        return {}
    return found


def _line(alert: alert_log.Alert) -> str:
    try:
        return alert_log.line(alert)
    except KeyError:
        return ""


def names(folder: RunFolder) -> list[str]:
    """Metrics that are numbers, those of evaluations first."""
    try:
        with Rows(folder.metrics) as reader:
            rows = reader.sampled(reader.part(), NAMED) + reader.last(NAMED)
    except OSError:
        return []
    latest = {key: value for key, value in folder.read_status().items() if "/" in key}
    return numeric([*rows, latest])


def numeric(rows: Sequence[Row]) -> list[str]:
    """What rows have as numbers beside their env_steps, those of evaluations first."""
    found = {key for row in rows for key, value in row.items() if isinstance(value, int | float)}
    return sorted(found - {"env_steps"}, key=lambda name: (not name.startswith("eval/"), "/" not in name, name))


def checkpoints(folder: RunFolder) -> list[dict[str, Any]]:
    """Newest first, with size and the pointers that name each."""
    named: dict[str, list[str]] = {}
    for pointer in ("last", "best"):
        if (name := validity.pointer(folder.checkpoints / pointer)) is not None:
            named.setdefault(name, []).append(pointer)
    found = []
    for path in [path for path in folder.checkpoints.glob("step-*") if path.is_dir()][::-1]:
        with suppress(OSError, ValueError, IndexError):
            _, env_steps, updates = path.name.split("-")
            size = sum(file.stat().st_size for file in path.glob("*"))
            numbers = {"env_steps": int(env_steps), "updates": int(updates), "bytes": size}
            found.append({"name": path.name, **numbers, "pointers": named.get(path.name, [])})
    return found


def media(folder: RunFolder) -> list[str]:
    return [path.name for path in folder.videos.glob("*") if path.suffix in MEDIA and path.is_file()]


def _end(path: SafePath) -> str:
    try:
        with path.reading() as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
