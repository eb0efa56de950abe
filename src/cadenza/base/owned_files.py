"""Records of the files that cadenza wrote, so that it deletes no others.

A folder of changing files has a list, `SHA256SUMS`, as `sha256sum --check` reads it. A line is added before its file is
written, so that the leftovers of a killed process are listed, too. A checkpoint has a manifest, which is written first.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from cadenza.base import atomic
from cadenza.base.files import OpenFolder, SafePath
from cadenza.base.parsing import json_data

NAME = "SHA256SUMS"
MANIFEST = "MANIFEST.json"  # of a checkpoint
DOOMED = ".staging-"  # prefix of a checkpoint that is unfinished or about to be deleted
LONGEST_MANIFEST = 16 << 20  # bytes
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\\\x00-\x1f]+)")


def note(folder: SafePath, name: str, sha256: str) -> None:
    """Add a file of this folder that is about to be written to the list."""
    (folder / NAME).append(f"{sha256}  {name}\n".encode())


def check(folder: SafePath) -> None:
    """Refuse a folder whose list exists and cannot be added to, before anything in the folder changes."""
    with suppress(FileNotFoundError):
        os.close((folder / NAME).open(os.O_WRONLY | os.O_APPEND))


def listed(folder: SafePath) -> dict[str, str]:
    """Return the latest sha256 of each listed file by its name; nothing without a list."""
    try:
        lines = (folder / NAME).read_text(errors="replace").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    matches = [match for line in lines if (match := _LINE.fullmatch(line))]
    return {match[2]: match[1] for match in matches}


def adopt(files: Iterable[SafePath]) -> dict[str, str]:
    """Add files of a run from before there were lists; return their sha256 by name."""
    adopted = {}
    for file in files:
        with file.reading() as content:
            adopted[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
        note(file.parent, file.name, adopted[file.name])
    return adopted


def tidy(folder: SafePath) -> None:
    """Delete the leftovers of killed writers in the folder, and remove deleted files from the list."""
    names = listed(folder)
    if not names:
        return
    atomic.remove_leftovers(folder, (*names, NAME))
    present = [f"{sha256}  {name}\n" for name, sha256 in names.items() if (folder / name).exists()]
    if len(present) < len(names):
        atomic.write_text(folder / NAME, "".join(present))


def read_manifest(folder: SafePath) -> dict[str, Any]:
    """Return the manifest of a checkpoint; raise a ValueError if it is no JSON object."""
    manifest = json_data((folder / MANIFEST).read_bytes(LONGEST_MANIFEST))
    if not isinstance(manifest, dict):
        raise ValueError(f"{MANIFEST} holds no JSON object")
    return manifest


def contents(folder: SafePath) -> list[SafePath]:
    """Return the existing files that a checkpoint's manifest names, and last the manifest."""
    try:
        with folder.inside() as inside:
            return [folder / name for name in _contents(folder, inside)[0]]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _contents(folder: SafePath, inside: OpenFolder) -> tuple[list[str], bool]:
    """Return the names of the same files, and whether the folder holds nothing else."""
    modes = inside.modes()
    try:
        names = [str(name) for name in read_manifest(folder)["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        names = []  # no file can be shown to be part of it
    files = [name for name in (*names, MANIFEST) if stat.S_ISREG(modes.get(name, 0))]
    return files, len(files) == len(modes)


def discard(checkpoint: SafePath) -> None:
    """Delete the files of a checkpoint that its manifest names; first rename it, so that nobody takes it for whole."""
    with suppress(OSError):
        with checkpoint.inside() as inside:
            files, complete = _contents(checkpoint, inside)
            doomed = checkpoint.with_name(DOOMED + checkpoint.name)
            if complete and not checkpoint.name.startswith(DOOMED) and not doomed.exists():
                checkpoint.replace(doomed)
                checkpoint = doomed
            for name in files:
                inside.unlink(name)
        checkpoint.rmdir()
