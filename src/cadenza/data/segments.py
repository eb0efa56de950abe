"""Segments: files of rows that never change once written, and that checkpoints name instead of holding the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cadenza.base import atomic, owned_files
from cadenza.base.files import SafePath
from cadenza.errors import CheckpointError

SLOTS = "slots"  # the key of the slots of a segment's rows, beside the paths of the arrays
LARGEST_SEGMENT = 16 << 30  # bytes; one holds at least an episode, however long
SEGMENT_BYTES = 64 << 20  # the size of a segment at most, so that writing one never needs much memory


@dataclass(frozen=True)
class Segment:
    """One file, by its name in the folder of the replay."""

    name: str
    sha256: str
    ends: np.ndarray  # [N] for each environment, how far into its stream the segment reaches; 0: holds none of it

    @property
    def reference(self) -> dict[str, str]:
        """How a checkpoint names the file."""
        return {"name": self.name, "sha256": self.sha256}


def pieces(slots: np.ndarray, row_bytes: int) -> Iterator[np.ndarray]:
    """Split slots into the equal pieces of which each fits a segment."""
    yield from np.array_split(slots, 1 + len(slots) * row_bytes // SEGMENT_BYTES)


def rows_per_segment(row_bytes: int) -> int:
    return max(1, SEGMENT_BYTES // row_bytes)


def write_segment(folder: SafePath, name: str | None, slots: np.ndarray, rows: dict[str, np.ndarray]) -> str:
    """Write a segment durably, whole or not at all, and return its sha256; without a name it is named by that."""
    from safetensors.numpy import save

    if not folder.is_dir():
        folder.mkdir()
        for count in range(len(folder.parts)):
            SafePath(folder.root, folder.parts[:count]).sync()
    # safetensors writes an array's memory, whatever the order of its axes there
    content = save({path: np.ascontiguousarray(array) for path, array in {SLOTS: slots, **rows}.items()})
    sha256 = hashlib.sha256(content).hexdigest()
    name = name or name_of(sha256)
    owned_files.note(folder, name, sha256)
    atomic.write_bytes(folder / name, content)
    return sha256


def name_of(sha256: str) -> str:
    """Return the name of a segment whose rows are written again and again: other content is another file."""
    return f"{sha256[:32]}.safetensors"


def read_segment(folder: SafePath, segment: Segment) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the slots and rows (by path) of a segment, after its sha256 was verified."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / segment.name
    verify_file(path, segment.sha256)
    try:
        with path.named() as name:
            rows = load_file(name)
        return rows.pop(SLOTS), rows
    except (SafetensorError, KeyError) as problem:
        raise CheckpointError(f"{path}: is no segment of a replay ({problem})") from problem


def read_segments(
    folder: SafePath | None, segments: list[Segment], put: Callable[[np.ndarray, dict[str, np.ndarray]], None]
) -> None:
    """Hand slots and rows of segments to `put`, in the order they were written: a later one may overwrite rows."""
    if not segments:
        return
    if folder is None:
        raise CheckpointError("the state names segments of a replay, but the store is attached to no folder")
    for segment in segments:
        slots, rows = read_segment(folder, segment)
        try:
            put(slots, rows)
        except (KeyError, IndexError, ValueError) as problem:
            raise CheckpointError(f"{folder / segment.name}: does not fit this run ({problem})") from problem


def verify_file(path: SafePath, sha256: str, owner: str = "the checkpoint") -> None:
    """Refuse a file that is missing, too large or does not have the sha256 that its `owner` records."""
    try:
        if path.stat().st_size > LARGEST_SEGMENT:  # a file of holes takes no room on the disk, but hours to hash
            raise CheckpointError(f"{path}: has more than {LARGEST_SEGMENT:,} bytes, which no segment has")
        with path.reading() as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing, and {owner} needs it") from None
    if actual != sha256:
        raise CheckpointError(f"{path}: is damaged, its sha256 is {actual[:16]}…, {owner} says {sha256[:16]}…")
