"""The runs that the inspector shows: the table with its sparklines, and the details of one run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cadenza.base.files import SafePath
from cadenza.errors import CadenzaError, ConfigError, NotFoundError
from cadenza.lab import checkpoint_list
from cadenza.lab.inspector.rows import curve, thinned
from cadenza.records import alert_log, live_runs, validity
from cadenza.records.folder import RunFolder, run_ids
from cadenza.records.index import entries
from cadenza.records.lock import is_held
from cadenza.records.metric_rows import POINTS, ByteRange, MetricRows, Row
from cadenza.records.query import Entry, parsed, select
from cadenza.records.run_summary import describe, stamp
from cadenza.trees import leaves

COLUMNS = (
    "run", "spec", "environment", "algorithm", "seed", "status", "env_steps", "return", "best_return", "seconds",
    "created", "name", "tags", "auto_tags", "changes", "cleaned",
)  # fmt: skip
RETURNS = ("eval/return_mean", "collect/return_mean")  # a sparkline shows the first that a run has
SPARK = 60  # points of a sparkline
FEW = 8  # evaluations: below that a sparkline shows training episodes
NAME_ROWS = 300  # searched for names of metrics
LOG_BYTES = 1 << 15  # of the end of the log
MEDIA = {".mp4": "video/mp4", ".gif": "image/gif", ".png": "image/png"}


@dataclass(frozen=True)
class Spark:
    """A sparkline of a run: the bytes of metrics it covers, the name of the metric, and its values."""

    size: int = 0
    name: str = ""
    y: list[float] = field(default_factory=list)


class Catalog:
    """The runs of a folder, and other runs by name.

    Names are looked up among the existing runs; no text of a request becomes a path.
    """

    def __init__(self, root: Path, others: Sequence[RunFolder] = ()) -> None:
        self.root = root
        self.others: dict[str, RunFolder] = {}
        here = set(run_ids(root))
        for folder in others:
            parent = folder.path.resolve().parent
            if parent == root.resolve():
                continue
            if folder.id in here or folder.id in self.others:  # a page identifies a run by its name alone
                where = root if folder.id in here else self.others[folder.id].path.parent
                raise ConfigError(f"{folder.path}: {where} has a run of that name, too; see it by --runs-dir {parent}")
            self.others[folder.id] = folder
        self._ids: frozenset[str] = frozenset()
        self._sparks: dict[str, Spark] = {}
        self._table: tuple[Any, list[Entry]] = (None, [])

    def folder(self, run: str) -> RunFolder:
        """Return the folder of a run by its name; one that does not exist is refused."""
        if run not in self.others and run not in self._ids:
            self._ids = frozenset(run_ids(self.root))
            if run not in self._ids:
                raise NotFoundError(f"no run '{run}'")
        folder = self._folder(run)
        if not folder.config.is_file():
            raise NotFoundError(f"run '{run}' does not exist any more")
        return folder

    def _folder(self, run: str) -> RunFolder:
        return self.others.get(run) or RunFolder(self.root / run)

    # the table

    def table(self, filters: Sequence[str], seen_version: str) -> dict[str, Any]:
        """Return every run that matches, or only the version where that is the one the page has (`seen_version`)."""
        ids = run_ids(self.root)
        stamps = [(run, stamp(f"{self.root}/{run}")) for run in ids]
        stamps += [(run, stamp(str(folder.path))) for run, folder in self.others.items()]
        if self._table[0] != stamps:
            self._table = (stamps, entries(self.root) + [_entry(folder) for folder in self.others.values()])
        listed = self._table[1]
        live = {run: _progress(self._folder(run)) for run in _maybe_alive(listed) if is_held(self._folder(run).path)}
        version = f"{hash((tuple(stamps), tuple(filters), tuple((run, one['done']) for run, one in live.items()))):x}"
        if version == seen_version:
            return {"version": version}
        matching = {row["run"] for row in select(listed, list(filters), None, None)}
        rows = []
        for entry in listed:
            run = entry.row["run"]
            if run in matching:
                row = {key: entry.row.get(key) for key in COLUMNS}
                if row["status"] in (None, "running", "crashed"):
                    row["status"] = "running" if run in live else row["status"] and "crashed"
                rows.append(row | {"budget": entry.settings.get("training.max_timesteps"), "live": live.get(run)})
        return {"version": version, "runs": rows, "root": str(self.root.absolute())}

    def sparks(self, runs: Sequence[str]) -> dict[str, list[float]]:
        """Return the values of the sparkline of each run."""
        return {run: self._spark(run) for run in runs}

    def _spark(self, run: str) -> list[float]:
        """Extend the sparkline of a run by the rows written since the last call; return its values."""
        before = self._sparks.get(run, Spark())
        try:
            with MetricRows(self.folder(run).metrics) as reader:
                if reader.size == before.size:
                    return before.y
                if reader.size < before.size:
                    before = Spark()
                new = ByteRange(before.size, reader.size)
                values = {name: self._values(reader, name, new) for name in [before.name or RETURNS[0]]}
                if not before.name and len(values[RETURNS[0]]) < FEW:
                    values[RETURNS[1]] = self._values(reader, RETURNS[1], new)
        except OSError:
            return []
        name = max(values, key=lambda one: len(values[one]))
        y = before.y + values[name]
        while len(y) > 2 * SPARK:
            y = y[:-1][::2] + y[-1:]
        if len(y) >= FEW:
            self._sparks[run] = Spark(reader.size, name, y)
        return y

    @staticmethod
    def _values(reader: MetricRows, name: str, new: ByteRange) -> list[float]:
        return curve(reader.having(name, new, SPARK), name, "env_steps")[1]

    # one run

    def detail(self, run: str) -> dict[str, Any]:
        """Return everything that the page of a run shows, except curves and episodes."""
        folder = self.folder(run)
        row, _, _ = describe(folder.path)
        status, training = folder.read_status(), folder.settings().get("training")
        manifest, decisions = (validity.lenient(read) for read in (folder.read_manifest, folder.read_decisions))
        return {
            "facts": row | {"status": folder.state(), "updates": status.get("updates")},
            "message": status.get("message", ""),
            "live": _progress(folder) if is_held(folder.path) else None,
            "budget": training.get("max_timesteps") if isinstance(training, dict) else None,
            "command": manifest.get("command") or [],
            "versions": manifest.get("versions") or {},
            "machine": manifest.get("machine") or {},
            "git": manifest.get("git"),
            "metrics": names(folder),
            "settings": [[key, value] for key, value in leaves(folder.settings())],
            "decisions": [[key, value] for key, value in decisions.items()],
            "checkpoints": checkpoint_list.listed(folder)[::-1],
            "alerts": [one | {"line": _line(one)} for one in alert_log.read(folder.alerts)],
            "media": media(folder),
            "log": _tail(folder.log),
        }

    def progress(self, run: str) -> dict[str, Any]:
        """Return the facts that change while a run trains."""
        folder = self.folder(run)
        status = folder.read_status()
        facts = {key: status.get(key) for key in ("env_steps", "updates", "seconds", "best_return", "eval/return_mean")}
        live = _progress(folder) if is_held(folder.path) else None
        return {"status": folder.state(), "live": live, "facts": facts}

    def curves(
        self,
        run: str,
        metrics: Sequence[str],
        axis: str,
        low: float | None,
        high: float | None,
        begin: int,
        quick: bool = False,
    ) -> dict[str, Any]:
        """Return metrics along an axis, from a byte of the file on if the page has the rows before it.

        Metrics that few of many rows have are searched for; with `quick` they are only named (`rare`), for the page
        to request next.
        """
        try:
            reader = MetricRows(self.folder(run).metrics)
        except OSError:
            return {"size": 0, "curves": {name: {"x": [], "y": []} for name in metrics}, "every": True, "rare": []}
        with reader:
            span = reader.part(low, high, axis)
            if 0 < begin <= reader.size:
                span = ByteRange(begin, reader.size)
            rows = reader.sampled(span)
            points = {name: curve(rows, name, axis) for name in metrics}
            rare = [name for name, (x, _) in points.items() if not span.small and len(x) < POINTS // 2]
            if not quick:
                points |= {name: curve(reader.having(name, span), name, axis) for name in rare}
            answer: dict[str, Any] = {"size": reader.size, "every": span.small, "rare": rare if quick else []}
            answer["curves"] = {name: {"x": x, "y": y} for name, (x, y) in points.items()}
            return answer | ({"names": numeric(rows)} if span.small else {})

    # episodes

    def episodes(self, run: str, sort: str, falling: bool, begin: int, count: int) -> dict[str, Any]:
        """Return `count` rows of the list of episodes from `begin` on, and the curve of all returns."""
        from cadenza.records.episodes import outline

        columns = outline(self.folder(run))
        returns = sum(columns["returns"].values()) if columns["returns"] else []
        total = len(columns["length"])
        keys = {"episode": range(total), "return": returns, "length": columns["length"], "env": columns["env"]}
        by = keys.get(sort, keys["episode"])
        order = sorted(range(total), key=lambda i: (by[i], i), reverse=falling)[begin : begin + count]
        rows = [
            {
                "episode": i,
                "env": int(columns["env"][i]),
                "seed": int(columns["seed"][i]),
                "length": int(columns["length"][i]),
                "return": float(returns[i]),
                "groups": {group: float(values[i]) for group, values in columns["returns"].items()},
                "won": None if columns["won"] is None else bool(columns["won"][i]),
            }
            for i in order
        ]
        x, y = thinned(list(map(float, range(total))), [float(value) for value in returns], POINTS)
        return {"total": total, "episodes": rows, "curve": {"x": x, "y": y}}

    def media_file(self, run: str, name: str) -> tuple[SafePath, str]:
        """Return a video or picture of a run and its MIME type."""
        folder = self.folder(run)
        if name not in media(folder):
            raise NotFoundError(f"run {run} has no '{name}'")
        return folder.videos / name, MEDIA[os.path.splitext(name)[1]]


def _entry(folder: RunFolder) -> Entry:
    row, settings, measured = describe(folder.path)
    row["status"] = folder.state()
    return Entry(row, 0, partial(parsed, settings), lambda: measured)


def _maybe_alive(listed: Sequence[Entry]) -> list[str]:
    """Return the runs whose status does not say that they ended; their lock decides."""
    return [entry.row["run"] for entry in listed if entry.row["status"] in (None, "running", "crashed")]


def _progress(folder: RunFolder) -> dict[str, Any]:
    """Return the progress of a live run, as `cadenza top` shows it."""
    with suppress(CadenzaError, OSError, KeyError, TypeError):
        facts = vars(live_runs.describe(folder))
        return {key: value for key, value in facts.items() if key not in ("run", "dir", "curve", "alert", "parts")}
    return {"done": 0}


def _line(alert: alert_log.Alert) -> str:
    try:
        return alert_log.line(alert)
    except KeyError:
        return ""


def names(folder: RunFolder) -> list[str]:
    """Return the names of a run's numeric metrics, those of evaluations first."""
    try:
        with MetricRows(folder.metrics) as reader:
            rows = reader.sampled(reader.part(), NAME_ROWS) + reader.last(NAME_ROWS)
    except OSError:
        return []
    latest = {key: value for key, value in folder.read_status().items() if "/" in key}
    return numeric([*rows, latest])


def numeric(rows: Sequence[Row]) -> list[str]:
    """Return the names of the numbers in rows, without env_steps, those of evaluations first."""
    names = {key for row in rows for key, value in row.items() if isinstance(value, int | float)}
    return sorted(names - {"env_steps"}, key=lambda name: (not name.startswith("eval/"), "/" not in name, name))


def media(folder: RunFolder) -> list[str]:
    """Return the names of a run's videos and pictures."""
    return [path.name for path in folder.videos.glob("*") if path.suffix in MEDIA and path.is_file()]


def _tail(path: SafePath) -> str:
    try:
        with path.reading() as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
