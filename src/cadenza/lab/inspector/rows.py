"""Rows of metrics.jsonl without reading all of it: as many as a picture shows, evenly from any stretch of a run."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cadenza.base.files import SafePath
from cadenza.base.parsing import ParseError, json_data

Row = dict[str, Any]
Points = tuple[list[float], list[float]]

WHOLE = 2 << 20  # bytes that are simply read
BLOCK = 1 << 13  # bytes in which a row usually ends
SCAN = 1 << 16  # bytes looked through at once for a metric that few rows have: memory that is used again and again
LONGEST = 1 << 20  # bytes of a row that is still looked at
POINTS = 1500


@dataclass(frozen=True)
class Stretch:
    """Bytes of the file from the beginning of a row to the end of one."""

    begin: int
    end: int

    @property
    def small(self) -> bool:
        return self.end - self.begin <= WHOLE


class MetricsReader:
    """One look at the file as it is now; what is appended meanwhile is for the next."""

    def __init__(self, path: SafePath) -> None:
        self._file = path.open()
        self.size = self._end_of_rows()

    def __enter__(self) -> MetricsReader:
        return self

    def __exit__(self, *problem: object) -> None:
        os.close(self._file)

    def stretch(self, low: float | None = None, high: float | None = None, axis: str = "env_steps") -> Stretch:
        """From the last row before `low` on the axis to the first after `high`: lines reach the edges of a picture."""
        begin = 0 if low is None else self._where(axis, low, before=True)
        end = self.size if high is None else self._where(axis, high, before=False)
        return Stretch(begin, max(begin, end))

    def rows(self, stretch: Stretch, points: int = POINTS) -> list[Row]:
        """Every row of a small stretch; of others so many, one after each equal share of the bytes."""
        if stretch.small:
            return list(self._parsed(os.pread(self._file, stretch.end - stretch.begin, stretch.begin)))
        found: list[Row] = []
        reached = stretch.begin
        share = (stretch.end - stretch.begin) / points
        for number in range(points):
            offset = max(reached, stretch.begin + int(number * share))
            begin, line = self._line(offset, stretch.end)
            if line is None:
                break
            found += self._parsed(line)
            reached = begin + len(line) + 1
        return found + self.tail(1) if stretch.end == self.size else found

    def having(self, name: str, stretch: Stretch, points: int = POINTS) -> list[Row]:
        """Rows that have a metric: all of them where they are few, else evenly chosen."""
        return [row for line in self._search(name, stretch, points) for row in self._parsed(line) if name in row]

    def tail(self, count: int) -> list[Row]:
        """The last rows."""
        length = BLOCK
        while True:
            begin = max(0, self.size - length)
            lines = os.pread(self._file, self.size - begin, begin).split(b"\n")[:-1]
            whole = lines if begin == 0 else lines[1:]
            if len(whole) >= count or begin == 0 or length >= LONGEST:
                return [row for line in whole[-count:] for row in self._parsed(line)]
            length *= 4

    def _end_of_rows(self) -> int:
        """Behind the last newline: what follows is being written."""
        size, length = os.fstat(self._file).st_size, BLOCK
        while True:
            begin = max(0, size - length)
            last = os.pread(self._file, size - begin, begin).rfind(b"\n")
            if last >= 0 or begin == 0 or length >= LONGEST:
                return begin + last + 1 if last >= 0 else 0
            length *= 4

    def _line(self, offset: int, end: int) -> tuple[int, bytes | None]:
        """The first row that begins at the offset or later."""
        from_row = offset == 0
        start = offset if from_row else offset - 1  # so that one which begins right there is found
        length = BLOCK
        while True:
            text = os.pread(self._file, min(length, end - start), start)
            first = -1 if from_row else text.find(b"\n")
            if first >= 0 or from_row:
                last = text.find(b"\n", first + 1)
                if last >= 0:
                    return start + first + 1, text[first + 1 : last]
            if start + length >= end or length >= LONGEST:
                return end, None
            length *= 4

    def _where(self, axis: str, wanted: float, before: bool) -> int:
        """By halving: where the rows from a point of the axis on begin, one earlier or one later."""
        low, high = 0, self.size
        while high - low > BLOCK // 2:
            middle = (low + high) // 2
            begin, line = self._line(middle, self.size)
            at = _number(line, axis)
            if line is None or at is None or at >= wanted:
                high = middle
            else:
                low = begin
        if before:
            return self._line(low, self.size)[0]
        offset, beyond = low, 0
        while beyond < 2 and offset < self.size:
            begin, line = self._line(offset, self.size)
            if line is None:
                return self.size
            offset = begin + len(line) + 1
            at = _number(line, axis)
            beyond += at is not None and at > wanted
        return offset

    def _search(self, name: str, stretch: Stretch, points: int) -> list[bytes]:
        """In one go: once there are too many, a share of the file is passed over behind each one."""
        needle = f"{json.dumps(name, ensure_ascii=False)}:".encode()
        found: list[tuple[int, bytes]] = []
        share, offset, length, jumped = 0, stretch.begin, SCAN, False
        while offset < stretch.end:
            text = os.pread(self._file, min(length, stretch.end - offset), offset)
            cut = text.rfind(b"\n") + 1
            if not cut:
                if length >= LONGEST:
                    break
                length *= 4
                continue
            place = text.find(needle, text.find(b"\n") + 1 if jumped else 0, cut)  # not in half a row
            if place < 0:
                offset, length, jumped = offset + cut, SCAN, False
                continue
            begin, end = text.rfind(b"\n", 0, place) + 1, text.find(b"\n", place)
            found.append((offset + begin, text[begin:end]))
            if len(found) > points:
                share = max(share + 1, 2 * (offset + end - stretch.begin) // points)
                found = _apart(found, share)
            offset, length, jumped = offset + end + 1 + share, BLOCK, share > 0
        if share and (last := self._last(needle, stretch))[0] > found[-1][0]:
            found.append(last)
        return [line for _, line in found]

    def _last(self, needle: bytes, stretch: Stretch) -> tuple[int, bytes]:
        """The last row that has it, of which there is one: where it begins, and itself."""
        length = BLOCK
        while True:
            begin = max(stretch.begin, stretch.end - length)
            text = os.pread(self._file, stretch.end - begin, begin)
            place = text.rfind(needle)
            row = text.rfind(b"\n", 0, max(0, place)) + 1
            if begin == stretch.begin or (place >= 0 and row > 0):
                return begin + row, text[row : text.find(b"\n", place)]
            length *= 4

    @staticmethod
    def _parsed(text: bytes) -> Iterator[Row]:
        """Lines that are no rows are left out: the inspector shows what there is."""
        for line in text.split(b"\n"):
            try:
                row = json_data(line)
            except ParseError:
                continue
            if isinstance(row, dict):
                yield row


def _apart(found: list[tuple[int, bytes]], share: int) -> list[tuple[int, bytes]]:
    """Of rows and where they begin those that are so many bytes away from the one before."""
    kept = found[:1]
    for place, line in found[1:]:
        if place - kept[-1][0] >= share:
            kept.append((place, line))
    return kept


def _number(line: bytes | None, key: str) -> float | None:
    try:
        found = json_data(line or b"").get(key)
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, int | float) else None


def curve(rows: Sequence[Row], name: str, axis: str, points: int = POINTS) -> Points:
    """A metric along an axis, where both are numbers; of many points those that shape the picture."""
    pairs = [(row.get(axis), row.get(name)) for row in rows]
    kept = [(float(x), float(y)) for x, y in pairs if _plain(x) and _plain(y)]  # type: ignore[arg-type]
    return thinned([x for x, _ in kept], [y for _, y in kept], points)


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def thinned(x: list[float], y: list[float], points: int) -> Points:
    """Of each share of the axis the first, lowest, highest and last point: no spike is lost."""
    if len(x) <= points:
        return x, y
    low, high = x[0], x[-1]
    shares = max(1, points // 4)
    edges = [bisect_left(x, low + (high - low) * share / shares) for share in range(shares)] + [len(x)]
    keep: list[int] = []
    for begin, end in pairwise(edges):
        if end > begin:
            inside = range(begin, end)
            keep += sorted({begin, min(inside, key=y.__getitem__), max(inside, key=y.__getitem__), end - 1})
    return [x[i] for i in keep], [y[i] for i in keep]
