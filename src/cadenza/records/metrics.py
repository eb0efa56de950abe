"""metrics.jsonl, the record of a run: one row per logging interval, each chained to the one before by a digest."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import Any, TypeGuard

from cadenza.base import atomic
from cadenza.base.failpoints import failpoint
from cadenza.base.files import SafePath
from cadenza.base.json_text import canonical, dumps, plain
from cadenza.base.parsing import json_data
from cadenza.base.text import cell
from cadenza.errors import CheckpointError, ConfigError, NotFoundError, nearest
from cadenza.records import validity
from cadenza.records.metric_rows import MetricRows, Row, whole_lines

FIRST = ("env_steps", "updates")
DIGEST = "digest"
# Columns that digests and comparisons leave out: they differ between equal runs, or follow from the settings.
UNCOMPARED = ("time/", "system/", "schedule/")
ALIASES = {"val/": "eval/", "test/": "eval/", "train/": "collect/"}
LONG = 8 << 20  # bytes of a file of which only the quantities that are needed are read
SAMPLE = 300  # rows of a long file in which to look for quantities
LARGEST_POINT = 1e300  # of a plot: the difference of two larger numbers may overflow
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class MetricsFile:
    """The writer of metrics.jsonl. Rows that a full disk refuses wait in memory and are written with the next one."""

    def __init__(self, path: SafePath) -> None:
        self._file = path.open(os.O_RDWR | os.O_CREAT)
        self._path = path
        self._pending: list[str] = []
        self._bytes, self._rows, self._digest = _trusted(path)

    @property
    def pending(self) -> int:
        """The number of rows that are not yet on disk."""
        return len(self._pending)

    def append(self, row: Row) -> bool:
        """Add a row; return False if the disk is full and the row has to wait."""
        keys = [key for key in FIRST if key in row] + sorted(set(row).difference(FIRST))
        ordered = {key: plain(row[key]) for key in keys}
        last = json.loads(self._pending[-1])[DIGEST] if self._pending else self._digest
        self._pending.append(dumps(ordered | {DIGEST: chained(last, ordered)}))
        return self.flush()

    def flush(self) -> bool:
        """Hand waiting rows to the operating system; return whether all could be written."""
        while self._pending:
            line = self._pending[0].encode() + b"\n"
            try:
                failpoint("metrics:append")
                self._write(line)
            except OSError as problem:
                if problem.errno not in DISK_FULL:
                    raise
                return False
            self._bytes += len(line)
            self._rows += 1
            self._digest = json.loads(self._pending.pop(0))[DIGEST]
        return True

    def close(self) -> None:
        os.close(self._file)

    def state_dict(self) -> dict[str, Any]:
        """Return length, row count and last digest of the file, which is synced to disk, and the waiting rows."""
        self.flush()
        os.fsync(self._file)
        return {"bytes": self._bytes, "rows": self._rows, "digest": self._digest, "pending": list(self._pending)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cut the file back to its length in the state; refuse one that was changed before that point."""
        size = os.fstat(self._file).st_size
        if size < state["bytes"]:
            raise CheckpointError(f"{self._path} has {size} bytes, the checkpoint was made at {state['bytes']}")
        if self._bytes < state["bytes"]:
            raise CheckpointError(f"{self._path}: row {self._rows + 1} was changed after it was written")
        if _last_row(self._path, state["bytes"]) != (state["bytes"], state["rows"], state["digest"]):
            raise CheckpointError(f"{self._path} belongs to another history than the checkpoint")
        self._bytes, self._rows, self._digest = state["bytes"], state["rows"], state["digest"]
        self._pending = list(state["pending"])
        os.ftruncate(self._file, self._bytes)

    def _write(self, line: bytes) -> None:
        # An interrupted write may have left part of a line: every row starts where the last whole one ended.
        os.ftruncate(self._file, self._bytes)
        os.lseek(self._file, self._bytes, os.SEEK_SET)
        while line:
            line = line[os.write(self._file, line) :]


class MetricBuffer:
    """Means over a logging interval. Tensors are summed as tensors, and only `means` reads their values."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, float] = {}

    def add(self, metrics: dict[str, Any], count: float = 1) -> None:
        """Add values, each of them already the mean of `count` samples."""
        for key, value in metrics.items():
            try:
                # Adding to 0.0 makes a new tensor at once: the value may be a buffer that is written again.
                self._sums[key] = self._sums.get(key, 0.0) + (value if count == 1 else value * count)
            except TypeError:
                raise ConfigError(f"metric '{key}' must be one number, not {type(value).__name__}") from None
            self._counts[key] = self._counts.get(key, 0) + count

    def means(self) -> dict[str, float]:
        """Return the means of everything added since the last call."""
        means = {key: _number(key, total) / self._counts[key] for key, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def state_dict(self) -> dict[str, Any]:
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])


def _number(key: str, value: Any) -> float:
    if math.prod(getattr(value, "shape", ())) != 1:
        raise ConfigError(f"metric '{key}' must be one number, not {list(value.shape)}")
    return float(value)


def chained(previous: str, row: Row) -> str:
    """Return the digest of a row and of the digest before it, so that equal digests mean equal histories."""
    return sha256((previous + canonical(compared(row))).encode()).hexdigest()[:16]


def compared(row: Row) -> Row:
    """Return the part of a row that is equal in two equal runs."""
    return {key: value for key, value in row.items() if key != DIGEST and not key.startswith(UNCOMPARED)}


def _last_row(path: SafePath, end: int) -> tuple[int, int, str]:
    """Return bytes, rows and last digest of the rows in the first `end` bytes, which are known to match theirs."""
    length, count, last = 0, 0, b""
    with path.reading() as file:
        for line in whole_lines(file):
            if length + len(line) > end:
                break
            length, count, last = length + len(line), count + 1, line
    return length, count, json_data(last)[DIGEST] if last else ""


def _trusted(path: SafePath) -> tuple[int, int, str]:
    """Return bytes, rows and last digest before the first row that is cut or does not match its digest."""
    length, count, previous = 0, 0, ""
    with path.reading() as file:
        for line in whole_lines(file):
            try:
                row = json_data(line)
                if row[DIGEST] != chained(previous, row):
                    break
            except (ValueError, TypeError, KeyError):
                break
            previous = row[DIGEST]
            length, count = length + len(line), count + 1
    return length, count, previous


def read(path: SafePath, only: Collection[str] | None = None) -> list[Row]:
    """Return all complete rows, without a last line that was cut short; none if there is no file.

    If `only` some quantities are needed, a long file is read faster: rows without one of them may be left out, but for
    the last, and the other quantities of a row.
    """
    try:
        with MetricRows(path) as rows:
            return rows.all() if only is None or rows.size <= LONG else rows.columns(only)
    except FileNotFoundError:
        return []


def sample(path: SafePath) -> list[Row]:
    """Return all rows of a short file, and rows from everywhere in a long one; none if there is no file."""
    try:
        with MetricRows(path) as rows:
            return [row for row in rows.sampled(rows.part()) if validity.row_fault(row) is None]
    except FileNotFoundError:
        return []


def recent(path: SafePath, count: int) -> tuple[Row | None, dict[str, list[float]]]:
    """Return the last row, and the last `count` numbers of every quantity, without reading all of a long file.

    Of a quantity that only rows far from the end have, the numbers are those of some of these rows.
    """
    try:
        with MetricRows(path) as reader:
            rows, whole = reader.end(), reader.part()
            sample = [] if whole.small else reader.sampled(whole, SAMPLE)
            values = {name: series(rows, name)[1][-count:] for name in names([*sample, *rows])}
            if not whole.small:
                rare = [name for name, numbers in values.items() if len(numbers) < count]
                for name, matches in reader.latest(rare, count).items():
                    values[name] = series(matches or sample, name)[1][-count:]
            return rows[-1] if rows else None, values
    except FileNotFoundError:
        return None, {}


def candidates(name: str) -> list[str]:
    """Return what `name` may mean: `val/` and `test/` may say `eval/`, `train/` may say `collect/`."""
    prefix, slash, rest = name.partition("/")
    shorts = [] if slash else [f"{part}/{name}{end}" for part in ("eval", "collect", "train") for end in ("", "_mean")]
    return [name, ALIASES.get(prefix + slash, prefix + slash) + rest, *shorts]


def resolve(name: str, stored: Iterable[str]) -> str:
    """Return the first of its `candidates` that is stored."""
    names = set(stored)
    for candidate in candidates(name):
        if candidate in names:
            return candidate
    raise NotFoundError(f"unknown metric '{name}'{nearest(name, names)}")


def names(rows: Iterable[Row]) -> list[str]:
    """Return the names of all quantities in the rows but the digest, in order of first appearance."""
    return [key for key in dict.fromkeys(key for row in rows for key in row) if key != DIGEST]


def numeric(rows: Iterable[Row]) -> set[str]:
    """Return the names of quantities that are numbers in some row."""
    return {key for row in rows for key, value in row.items() if isinstance(value, int | float)}


def series(rows: Sequence[Row], name: str, axis: str = "env_steps") -> tuple[list[float], list[float]]:
    """Return the values of an axis and of a metric, in the rows where a plot can show both."""
    pairs = [(row.get(axis), row.get(name)) for row in rows]
    points = [(x, y) for x, y in pairs if is_point(x) and is_point(y)]
    return [x for x, _ in points], [y for _, y in points]


def is_point(value: Any) -> TypeGuard[float]:
    """Return whether a value can be plotted: a number, not NaN, and so small that differences do not overflow."""
    return isinstance(value, int | float) and abs(value) <= LARGEST_POINT


def first_difference(rows_a: Sequence[Row], rows_b: Sequence[Row], limit: int | None = None) -> Row | None:
    """Return row, env_steps and quantity of the first difference up to `limit` env_steps, or None if there is none."""
    a, b = (rows if limit is None else [row for row in rows if row["env_steps"] <= limit] for rows in (rows_a, rows_b))
    for index, (row_a, row_b) in enumerate(zip(a, b, strict=False)):
        for key in [*dict.fromkeys([*compared(row_a), *compared(row_b)]), DIGEST]:
            x, y = row_a.get(key), row_b.get(key)
            if x != y or (key in row_a) != (key in row_b):
                return {"row": index, "env_steps": row_a.get("env_steps"), "quantity": key, "a": x, "b": y}
    if len(a) != len(b):
        shared = min(len(a), len(b))
        steps = (a if len(a) > shared else b)[shared].get("env_steps")
        return {"row": shared, "env_steps": steps, "quantity": "rows", "a": len(a), "b": len(b)}
    return None


def export_csv(rows: Sequence[Row], path: SafePath) -> None:
    """Write a table with a column for each quantity."""
    atomic.write_text(path, as_csv(names(rows), rows))


def as_csv(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a table with a header as CSV, empty where a row does not have a column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, columns))
    writer.writerows([cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()
