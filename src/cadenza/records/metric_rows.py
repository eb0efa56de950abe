"""Read metrics.jsonl: all of it, its end, what is new, or as many rows as a picture shows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

from cadenza.base.files import SafePath
from cadenza.base.parsing import ParseError, json_data
from cadenza.errors import CheckpointError
from cadenza.records import validity

Row = dict[str, Any]

LONGEST_ROW = 1 << 20  # bytes; of a line that is longer nothing is read
WHOLE = 2 << 20  # bytes that are read as a whole
BLOCK = 1 << 13  # bytes in which a row usually ends
SCAN = 1 << 16  # bytes searched at a time for metrics that few rows have
SEARCHED = 1 << 27  # bytes at the end that are searched for them: 0.1 s for each metric that is not there
POINTS = 1500
AXES = {"env_steps", "updates", "time/seconds"}  # which `columns` returns of each row


@dataclass(frozen=True)
class ByteRange:
    """Bytes of the file from the beginning of a row to the end of one."""

    begin: int
    end: int

    @property
    def small(self) -> bool:
        """Whether all of it is read."""
        return self.end - self.begin <= WHOLE


class MetricRows:
    """The rows of a metrics.jsonl as it is now; a row that is appended later is for the next `MetricRows`.

    `all`, `end` and `since` raise an error for a line that is no row, the other methods leave it out.
    """

    def __init__(self, path: SafePath) -> None:
        self._path = path
        self._file = path.reading()
        self._end = os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> MetricRows:
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    # from a row on

    def all(self) -> list[Row]:
        """Return all complete rows; a last line that was cut short is left out."""
        return self._checked(0)

    def end(self) -> list[Row]:
        """Return all complete rows of a small file, and those within the last bytes of a long one."""
        begin = self.size - WHOLE
        return self._checked(self._line(begin, self.size)[0] if begin > 0 else 0)

    def _checked(self, begin: int) -> list[Row]:
        rows = []
        place = f" after byte {begin}" if begin else ""
        try:
            for number, (_, row) in enumerate(self.since(begin), 1):
                if fault := validity.row_fault(row):
                    raise CheckpointError(f"{self._path}: row {number}{place} {fault}")
                rows.append(row)
        except ValueError as problem:
            raise CheckpointError(f"{self._path} has a row that is not JSON: {problem}") from problem
        return rows

    def columns(self, names: Iterable[str]) -> list[Row]:
        """Return the rows that have one of these quantities, cut down to them and AXES, much faster than `all`.

        The last row is always among them. A line that is not of the usual form is parsed as a whole.
        """
        names = list(names)
        keys, needles = {*names, *AXES}, list(map(_needle, names))
        quoted = {json.dumps(key, ensure_ascii=False): key for key in keys}
        pairs = re.compile(f"({'|'.join(map(re.escape, quoted))}): ([^,}}]+)")

        def cut(line: bytes) -> Row:
            with suppress(ValueError):  # null, a text, not UTF-8
                parts = pairs.findall(line.decode())
                row = {quoted[key]: int(x) if x.isdigit() else float(x) for key, x in parts}
                if validity.row_fault(row) is None:
                    return row
            return {key: value for key, value in self._parsed(line).items() if key in keys}

        rows: list[Row] = []
        line, is_last = b"", False
        self._file.seek(0)
        for line in whole_lines(self._file):
            for needle in needles:
                if needle in line:
                    rows.append(cut(line))
                    is_last = False
                    break
            else:
                is_last = True
        return [*rows, cut(line)] if is_last else rows

    def _parsed(self, line: bytes) -> Row:
        try:
            row = json_data(line)
        except ParseError as problem:
            raise CheckpointError(f"{self._path} has a row that is not JSON: {problem}") from problem
        if fault := validity.row_fault(row):
            raise CheckpointError(f"{self._path}: a row {fault}")
        return dict(row)

    def since(self, begin: int) -> Iterator[tuple[int, Row]]:
        """Yield complete rows from a byte on, each with the byte after it."""
        self._file.seek(begin)
        for line in whole_lines(self._file):
            begin += len(line)
            yield begin, json_data(line)

    # from the end

    @cached_property
    def size(self) -> int:
        """Bytes up to the last newline: what follows is being written."""
        length = BLOCK
        while True:
            begin = max(0, self._end - length)
            last = self._bytes(begin, self._end).rfind(b"\n")
            if last >= 0 or begin == 0 or length >= LONGEST_ROW:
                return begin + last + 1 if last >= 0 else 0
            length *= 4

    def last(self, count: int) -> list[Row]:
        """Return the last `count` rows."""
        length = BLOCK
        while True:
            lines = self._last_lines(length)
            if len(lines) >= count or length >= min(self._end, LONGEST_ROW):
                return list(_parsed(lines[-count:]))
            length *= 4

    def within(self, length: int) -> list[Row]:
        """Return the complete rows within the last `length` bytes."""
        return list(_parsed(self._last_lines(length)))

    def _last_lines(self, length: int) -> list[bytes]:
        begin = max(0, self._end - length)
        lines = self._bytes(begin, self._end).split(b"\n")[:-1]
        return lines if begin == 0 else lines[1:]

    def latest(self, names: Iterable[str], count: int) -> dict[str, list[Row]]:
        """Return by metric the last `count` rows that have it, by one search through the last `SEARCHED` bytes."""
        rows: dict[str, list[Row]] = {name: [] for name in names}
        needles = {name: _needle(name) for name in rows}
        end, length, least = self.size, SCAN, max(0, self.size - SEARCHED)
        while end > least and needles and length <= 4 * LONGEST_ROW:
            begin, _ = self._line(max(0, end - length), end)
            if begin == end:  # a row that is longer
                length *= 4
                continue
            text = self._bytes(begin, end)
            if present := [name for name in needles if needles[name] in text]:
                lines = [line for line in text.split(b"\n") if any(needles[name] in line for name in present)]
                block = list(_parsed(lines))
                for name in present:
                    rows[name] = [row for row in block if name in row] + rows[name]
                    if len(rows[name]) >= count:
                        del needles[name]
            end, length = begin, SCAN
        return {name: matches[-count:] for name, matches in rows.items()}

    # a part, evenly sampled

    def part(self, low: float | None = None, high: float | None = None, axis: str = "env_steps") -> ByteRange:
        """Return from the last row before `low` on the axis to the first after `high`: lines then reach both edges."""
        begin = 0 if low is None else self._place(axis, low, before=True)
        end = self.size if high is None else self._place(axis, high, before=False)
        return ByteRange(begin, max(begin, end))

    def sampled(self, part: ByteRange, points: int = POINTS) -> list[Row]:
        """Return every row of a small part; of others about `points`, one after each equal share of the bytes."""
        if part.small:
            return list(_parsed(self._bytes(part.begin, part.end).split(b"\n")))
        lines: list[bytes] = []
        reached = part.begin
        share = (part.end - part.begin) / points
        for number in range(points):
            offset = max(reached, part.begin + int(number * share))
            begin, line = self._line(offset, part.end)
            if line is None:
                break
            lines.append(line)
            reached = begin + len(line) + 1
        return list(_parsed(lines)) + (self.last(1) if part.end == self.size else [])

    def having(self, name: str, part: ByteRange, points: int = POINTS) -> list[Row]:
        """Return the rows that have a metric: all of them where they are few, else about `points`, evenly spaced."""
        return [row for row in _parsed(self._search(name, part, points)) if name in row]

    def _bytes(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        return self._file.read(max(0, end - begin))

    def _line(self, offset: int, end: int) -> tuple[int, bytes | None]:
        """Return where the first row begins that does so at the offset or later, and the row."""
        from_row = offset == 0
        start = offset if from_row else offset - 1  # so that a row which begins right there counts
        length = BLOCK
        while True:
            text = self._bytes(start, min(start + length, end))
            first = -1 if from_row else text.find(b"\n")
            if first >= 0 or from_row:
                last = text.find(b"\n", first + 1)
                if last >= 0:
                    return start + first + 1, text[first + 1 : last]
            if start + length >= end or length >= LONGEST_ROW:
                return end, None
            length *= 4

    def _place(self, axis: str, value: float, before: bool) -> int:
        """Return by bisection where the rows from a value of the axis on begin, one earlier or one later."""
        low, high, size = 0, self.size, self.size
        while high - low > BLOCK // 2:
            middle = (low + high) // 2
            begin, line = self._line(middle, size)
            x = _number(line, axis)
            if line is None or x is None or x >= value:
                high = middle
            else:
                low = begin
        if before:
            return self._line(low, size)[0]
        offset, beyond = low, 0
        while beyond < 2 and offset < size:
            begin, line = self._line(offset, size)
            if line is None:
                return size
            offset = begin + len(line) + 1
            x = _number(line, axis)
            beyond += x is not None and x > value
        return offset

    def _search(self, name: str, part: ByteRange, points: int) -> list[bytes]:
        """Search in one pass; once there are too many matches, a share of the file is skipped behind each one."""
        needle = _needle(name)
        matches: list[tuple[int, bytes]] = []
        share, offset, length, skipped = 0, part.begin, SCAN, False
        while offset < part.end:
            text = self._bytes(offset, min(offset + length, part.end))
            cut = text.rfind(b"\n") + 1
            if not cut:
                if length >= LONGEST_ROW:
                    break
                length *= 4
                continue
            place = text.find(needle, text.find(b"\n") + 1 if skipped else 0, cut)  # not in half a row
            if place < 0:
                offset, length, skipped = offset + cut, SCAN, False
                continue
            begin, end = text.rfind(b"\n", 0, place) + 1, text.find(b"\n", place)
            matches.append((offset + begin, text[begin:end]))
            if len(matches) > points:
                share = max(share + 1, 2 * (offset + end - part.begin) // points)
                matches = _apart(matches, share)
            offset, length, skipped = offset + end + 1 + share, BLOCK, share > 0
        if share and (last := self._last_match(needle, part))[0] > matches[-1][0]:
            matches.append(last)
        return [line for _, line in matches]

    def _last_match(self, needle: bytes, part: ByteRange) -> tuple[int, bytes]:
        """Return the last row that matches, of which there is one, and where it begins."""
        length = BLOCK
        while True:
            begin = max(part.begin, part.end - length)
            text = self._bytes(begin, part.end)
            place = text.rfind(needle)
            row = text.rfind(b"\n", 0, max(0, place)) + 1
            if begin == part.begin or (place >= 0 and row > 0):
                return begin + row, text[row : text.find(b"\n", place)]
            length *= 4


def whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield whole lines, up to the first that is longer than a row may be; that one is cut."""
    while line := file.readline(LONGEST_ROW):
        whole = line.endswith(b"\n")
        if whole or len(line) == LONGEST_ROW:
            yield line
        if not whole:
            return


def _needle(name: str) -> bytes:
    """Return the bytes that every row with a metric contains."""
    return f"{json.dumps(name, ensure_ascii=False)}:".encode()


def _parsed(lines: list[bytes]) -> Iterator[Row]:
    """Yield the lines that are JSON objects."""
    for line in lines:
        try:
            row = json_data(line)
        except ParseError:
            continue
        if isinstance(row, dict):
            yield row


def _apart(matches: list[tuple[int, bytes]], share: int) -> list[tuple[int, bytes]]:
    """Return the rows that begin at least so many bytes after the one before."""
    spaced = matches[:1]
    for place, line in matches[1:]:
        if place - spaced[-1][0] >= share:
            spaced.append((place, line))
    return spaced


def _number(line: bytes | None, key: str) -> float | None:
    try:
        value = json_data(line or b"").get(key)
    except (ValueError, AttributeError):
        return None
    return value if isinstance(value, int | float) else None
