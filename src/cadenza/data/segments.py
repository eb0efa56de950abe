"""A store's rows in files that never change once written: what a checkpoint names instead of holding it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from cadenza.base import atomic, owned_files
from cadenza.base.files import SafePath
from cadenza.errors import CheckpointError

SLOTS = "slots"  # which rows a segment holds; what lies in them is under the paths of the store's arrays


@dataclass(frozen=True)
class Segment:
    """One file, by its name in the store's folder."""

    name: str
    sha256: str
    ends: np.ndarray  # [N] for each environment, how far into its stream the segment reaches; 0: holds none of it


def write_segment(folder: SafePath, name: str | None, slots: np.ndarray, rows: dict[str, np.ndarray]) -> str:
    """Durably, whole or not at all; the hash of the file, which is its name (`name_of`) where none is given."""
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
    """Of a segment whose rows are written again and again: other content is another file."""
    return f"{sha256[:32]}.safetensors"


def read_segment(folder: SafePath, segment: Segment) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which rows, and what is in them by path; verified before it is parsed."""
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


def verify_file(path: SafePath, sha256: str) -> None:
    """Refuse a file that is not there, or not as it was written."""
    try:
        actual = file_sha256(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing, and the checkpoint needs it") from None
    if actual != sha256:
        raise CheckpointError(f"{path}: sha256 is {actual[:16]}…, the checkpoint says {sha256[:16]}…")


def file_sha256(path: SafePath) -> str:
    with path.reading() as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
