"""Checkpoints on disk: staged, synced, renamed and verified by hash. The last good one is never removed.

checkpoints/step-<env_steps>-<updates>/{state.json, <part>.safetensors …, MANIFEST.json}
checkpoints/last, checkpoints/best      one-line files naming one of them
replay/<store>/*.safetensors            rows of stores: several checkpoints may need one such file, and name its hash
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError

from cadenza.base import owned_files
from cadenza.base.atomic import remove_leftovers, write_text
from cadenza.base.failpoints import failpoint
from cadenza.base.files import SafePath
from cadenza.base.json_text import without_digest
from cadenza.base.owned_files import DOOMED, MANIFEST
from cadenza.base.resource_usage import available_memory
from cadenza.base.text import printable
from cadenza.errors import CheckpointError, NotFoundError
from cadenza.records import codec, validity
from cadenza.records.folder import RunFolder

FORMAT = 1
LARGE = 1 << 30  # bytes: below, nobody asks how much memory there is
REPLAY = "replay"  # in the run's folder, beside the checkpoints
NAME = re.compile(r"step-(\d{12,})-(\d{12,})")
UNFINISHED = re.compile(r"\.(staging-)?(\.?old-)?step-\d{12,}-\d{12,}(-again)*")  # left by a killed process
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)
ATTEMPTS = 3  # to read a pointer and a manifest that a running process may be replacing


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: SafePath, config_hash: str, keep: int = 2) -> None:
        self.folder, self.home = folder, folder.parent
        self.config_hash = config_hash  # of the run
        self.keep = keep

    @classmethod
    def from_run(cls, run: RunFolder, keep: int = 2) -> Checkpoints:
        """Return the checkpoints of a run's folder."""
        return cls(run.checkpoints, run.read_manifest()["config_hash"], keep)

    def names(self) -> list[str]:
        """Return the names of complete checkpoints, oldest first. Only `load` shows whether one is valid."""
        return sorted((name for name in self.folder.folders("step-*") if NAME.fullmatch(name)), key=position)

    def save(
        self,
        state: dict[str, Any],
        env_steps: int,
        updates: int,
        best: bool = False,
        beside: Mapping[SafePath, str] = MappingProxyType({}),
        run: Mapping[str, Any] | None = None,
    ) -> str:
        """Write `state` whole or not at all, move the pointers, and remove older checkpoints; return its name.

        `beside` are files in the run's folder that the state needs, already written, with their sha256. `run` is the
        run's identity (`identity.py`) for the manifest.
        """
        name = name_of((env_steps, updates))
        staging = self.folder / f"{DOOMED}{name}"
        try:
            staging = free_path(staging)
            staging.mkdir()
            needed = {path.relative_to(self.home): sha256 for path, sha256 in beside.items()}
            facts = {"env_steps": env_steps, "updates": updates, "beside": needed}
            best_name = name if best else self.pointer("best")
            facts |= {"best": best_name, "run": run}
            self._write(staging, codec.pack(state), facts)
            failpoint("ckpt:before_rename")
            self._publish(staging, self.folder / name)
        except OSError:
            owned_files.discard(staging)
            raise
        failpoint("ckpt:after_rename")
        self.point("last", name)
        if best:
            self.point("best", name)
        failpoint("ckpt:before_prune")
        self._prune(best_name)
        return name

    def load(self, name: str, part: str | None = None) -> dict[str, Any]:
        """Return the state in a checkpoint, or the one `part` of it; check every byte against the manifest first.

        The whole state includes the files beside the checkpoint, so these are checked as well.
        """
        folder = self.folder / name
        with reading(folder):
            manifest = self.facts(name)
            names = {"state.json", f"{part}.safetensors"} if part else manifest["files"].keys()
            files = {file: facts for file, facts in manifest["files"].items() if file in names}
            if part is None and manifest.get("beside"):
                from cadenza.data.segments import verify_file

                for path, sha256 in manifest["beside"].items():
                    verify_file(self.home / path, sha256)
            return codec.unpack({file: read_verified(folder, file, facts) for file, facts in files.items()}, part)

    def facts(self, name: str) -> dict[str, Any]:
        """Return the manifest of a checkpoint, checked against its digest, the checkpoint's name and the run."""
        folder = self.folder / name
        with reading(folder):
            manifest = owned_files.read_manifest(folder)
            if manifest["digest"] != manifest_digest(manifest):
                raise CheckpointError(f"{folder}: {MANIFEST} does not match its own digest")
            if manifest["format"] != FORMAT:
                raise CheckpointError(f"{folder}: has format {manifest['format']}, this version reads {FORMAT}")
            if (manifest["env_steps"], manifest["updates"]) != position(name):
                raise CheckpointError(f"{folder}: its manifest belongs to another checkpoint")
            if manifest["config"] != self.config_hash:
                raise CheckpointError(f"{folder}: saved under config {manifest['config']}, not {self.config_hash}")
            return manifest

    def newest(self, warn: Callable[[str], None]) -> tuple[str, dict[str, Any]] | None:
        """Return name and state of the newest valid checkpoint, or None if none was saved.

        Warn of newer ones that are damaged, and rename them.
        """
        self._recover()
        names = self.names()
        problems: dict[str, CheckpointError] = {}
        for name in reversed(names):
            try:
                state = self.load(name)
            except CheckpointError as problem:
                problems[name] = problem
                continue
            for rejected, reason in problems.items():
                warn(f"checkpoint rejected: {reason}; falling back to {name}")
                self._set_aside(rejected)
            self._prune_beside()  # of files written after this checkpoint
            return name, state
        if names:
            raise CheckpointError(f"none of {len(names)} checkpoints is valid, the newest: {problems[names[-1]]}")
        return None

    def resolve(self, which: str) -> str:
        """Return the name of the checkpoint that `best`, `last`, a number of env_steps or a full name stands for."""
        names = self.names()
        if which in ("best", "last"):
            name = best_of(self) if which == "best" else names[-1] if names else None
            if name in names:
                return str(name)
            raise NotFoundError(f"no checkpoint '{which}' in {self.folder}{self._cleaned()}")
        for name in reversed(names):
            if which == name or (which.isdigit() and int(which) == position(name)[0]):
                return name
        steps = ", ".join(str(position(name)[0]) for name in names) or "none"
        allowed = f" (there are: best, last, {steps})"
        raise NotFoundError(f"no checkpoint '{which}' in {self.folder}{self._cleaned() or allowed}")

    def _cleaned(self) -> str:
        """Return the end of a message about a run that was cleaned up, else nothing."""
        at = RunFolder(self.folder.root).read_status().get("cleaned")
        return f": the run was cleaned up at {at}" if at else ""

    def pointer(self, which: str) -> str | None:
        """Return the content of `best` or `last`; None where there is no such file."""
        return validity.pointer(self.folder / which)

    def point(self, pointer: str, name: str) -> None:
        """Make `best` or `last` name a checkpoint."""
        write_text(self.folder / pointer, name + "\n")

    def _write(self, staging: SafePath, files: dict[str, bytes], facts: dict[str, Any]) -> None:
        """Write the files of a checkpoint, the manifest first: it says what an unfinished folder was to hold."""
        sizes = {
            file: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for file, content in files.items()
        }
        manifest: dict[str, Any] = {"format": FORMAT, "config": self.config_hash, **facts, "files": sizes}
        manifest["digest"] = manifest_digest(manifest)
        before_sync = partial(failpoint, "ckpt:before_fsync")
        with staging.inside() as folder:
            folder.create(MANIFEST, json.dumps(manifest).encode(), before_sync)  # indenting would take Python 0.5 ms
            for file, content in files.items():
                folder.create(file, content, before_sync)
            failpoint("ckpt:after_write")
            folder.sync()

    def _publish(self, staging: SafePath, target: SafePath) -> None:
        """Rename the staging folder to the checkpoint's name, in place of an earlier checkpoint of that name."""
        old = None
        if target.exists():  # only a cycle without steps or updates, such as an evaluation, saves a position twice
            old = free_path(self.folder / f".old-{target.name}")
            target.replace(old)
        staging.replace(target)
        self.folder.sync()
        if old is not None:
            owned_files.discard(old)

    def _recover(self) -> None:
        """Clean up after a killed process: finish its renames, remove its temporary files."""
        for store in self._stores():
            if not owned_files.listed(store):
                needed = {path for name in self.names() for path in self._beside_or_none(name)}
                owned_files.adopt(path for path in store.glob("*.safetensors") if path.relative_to(self.home) in needed)
            owned_files.tidy(store)
        remove_leftovers(self.folder, ("last", "best"))
        leftovers = [path for path in self.folder.glob(".*") if UNFINISHED.fullmatch(path.name)]
        for leftover in leftovers:
            if leftover.name.startswith(DOOMED):
                owned_files.discard(leftover)
        for old in leftovers:
            if not old.name.startswith(".old-"):
                continue
            target = self.folder / old.name.removeprefix(".old-")
            if target.exists() or not NAME.fullmatch(target.name):
                owned_files.discard(old)
            else:
                old.replace(target)

    def _set_aside(self, name: str) -> None:
        """Rename a damaged checkpoint, so that it is no longer taken for one."""
        (self.folder / name).replace(free_path(self.folder / f"rejected-{name}"))

    def _prune(self, best: str | None) -> None:
        """Remove all checkpoints but the newest `keep` and the best."""
        names = self.names()
        for name in names[: -self.keep]:
            if name != best:
                owned_files.discard(self.folder / name)
        self._prune_beside()

    def _prune_beside(self) -> None:
        """Remove rows of stores that none of the newest `keep` checkpoints needs; `best` is kept for its weights."""
        stores = self._stores()
        if not stores:
            return
        try:
            needed = self._beside(self.names()[-self.keep :])
        except (OSError, ValueError, AttributeError):
            return  # a damaged checkpoint may need any of them
        for store in stores:
            unused = [path for path in store.glob("*.safetensors") if path.relative_to(self.home) not in needed]
            ours = owned_files.listed(store) if unused else {}
            for path in unused:
                if path.name in ours:
                    path.unlink(missing_ok=True)

    def _stores(self) -> list[SafePath]:
        """Return the folders with rows of stores, beside the checkpoints."""
        replay = self.home / REPLAY
        return [replay / name for name in replay.folders("*")]

    def _beside_or_none(self, name: str) -> set[str]:
        """Return the files beside a checkpoint that it needs; none for one without a readable manifest."""
        try:
            return self._beside([name])
        except (OSError, ValueError, AttributeError):
            return set()

    def _beside(self, names: Iterable[str]) -> set[str]:
        """Return the files beside the checkpoints that these need."""
        return {path for name in names for path in owned_files.read_manifest(self.folder / name).get("beside", {})}


def best_of(checkpoints: Checkpoints) -> str | None:
    """Return the checkpoint that `best` names, checked against the newest manifest, which says which one is the best.

    Where the pointer names nothing, or a process was killed between saving and pointing, the manifest is right. A
    pointer to another checkpoint is refused.
    """
    pointer, recorded, newest = None, None, ""
    for _ in range(ATTEMPTS):
        pointer, names = checkpoints.pointer("best"), checkpoints.names()
        if pointer is None or not names:
            return pointer
        newest = names[-1]
        try:
            recorded = checkpoints.facts(newest).get("best")  # absent before checkpoints recorded it
        except CheckpointError:  # loading it says so
            return pointer
        if recorded not in names or recorded == pointer:
            return pointer
        if recorded == newest or pointer not in names:
            return str(recorded)
    message = f"{checkpoints.folder / 'best'} names {pointer}, but by {newest} the best is {recorded}"
    raise CheckpointError(f"{message}: `cadenza resume {checkpoints.folder.parent.name}` sets it right")


@contextmanager
def fitting(part: str) -> Iterator[None]:
    """Turn errors of a part that cannot take its state from a checkpoint into a CheckpointError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as problem:
        reason = printable(f"{type(problem).__name__}: {problem}")
        raise CheckpointError(f"the checkpoint's '{part}' does not fit this run ({reason})") from problem


@contextmanager
def reading(checkpoint: SafePath) -> Iterator[None]:
    """Turn errors of reading a checkpoint into a CheckpointError; without permission to read, it may be sound."""
    try:
        yield
    except PermissionError:
        raise
    except UNREADABLE as problem:
        raise CheckpointError(f"{checkpoint}: unreadable ({type(problem).__name__}: {problem})") from problem


def free_path(path: SafePath) -> SafePath:
    """Delete a checkpoint at this path; return the path, or a longer one if files of others remain there."""
    owned_files.discard(path)
    while path.exists():
        path = path.with_name(f"{path.name}-again")
    return path


def name_of(position: Sequence[int]) -> str:
    """Return the name of the checkpoint at (env_steps, updates)."""
    env_steps, updates = position
    return f"step-{env_steps:012d}-{updates:012d}"


def position(name: str) -> tuple[int, int]:
    """Return (env_steps, updates) of a checkpoint from its name."""
    match = NAME.fullmatch(name)
    if not match:
        raise CheckpointError(f"'{name}' is not the name of a checkpoint")
    return int(match[1]), int(match[2])


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Return the sha256 of a manifest without its digest."""
    return hashlib.sha256(json.dumps(without_digest(manifest), sort_keys=True).encode()).hexdigest()


def read_verified(folder: SafePath, file: str, facts: dict[str, Any]) -> bytes:
    """Read a file of a checkpoint; refuse one that differs from the manifest's `facts` about it."""
    if facts["size"] > LARGE and (room := available_memory()) is not None and facts["size"] > room:
        raise CheckpointError(f"{folder / file}: has {facts['size']:,} bytes, which do not fit into memory")
    content = (folder / file).read_bytes(facts["size"])
    actual = hashlib.sha256(content).hexdigest()
    if actual != facts["sha256"]:
        raise CheckpointError(f"{folder / file}: sha256 is {actual[:16]}…, its manifest says {facts['sha256'][:16]}…")
    return content
