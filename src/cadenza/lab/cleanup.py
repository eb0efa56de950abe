"""Freeing disk: what a run needs only to go on or to be watched is deleted, what it was and achieved stays."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cadenza.base import owned_files
from cadenza.base.files import SafePath, screen
from cadenza.base.parsing import json_object
from cadenza.errors import LockedError
from cadenza.records.folder import EVENT_FILES, PLAIN, RunFolder, run_ids, timestamp
from cadenza.records.index import entries
from cadenza.records.lock import RunLock, describe, holder, is_held
from cadenza.records.query import Entry, Filters, column, select
from cadenza.records.run_summary import stamp

# of these what cadenza wrote; everything else in a run's folder stays, W&B's files and a stranger's notes included
HEAVY = ("checkpoints", "replay", "episodes", "videos", "tensorboard", "debug")
DEBUG = ("diagnosis.json", "profile.txt", "trace.json", "failure/last", "failure/best")
OURS = re.compile(
    r"\d{12}(-\d{12})?\.safetensors|[0-9a-f]{32}\.safetensors"
    r"|((step|replay-step|play-step|eval|episode)-[\d-]+.*|imagination.*)\.(gif|mp4|png)"
)
DAY = 24 * 60 * 60


@dataclass(frozen=True)
class Rules:
    """What keeps a run whole; one that holds is enough."""

    best: int | None = None  # of each spec
    days: float | None = None
    tags: tuple[str, ...] = ()
    metric: str = "return"


@dataclass(frozen=True)
class Cleaned:
    """One run: why it is kept, or what was freed of it."""

    id: str
    outcome: str
    bytes: int
    freed: int = 0
    kept: bool = False


@dataclass(frozen=True)
class Cleaning:
    runs: tuple[Cleaned, ...]
    before: int
    after: int
    dry_run: bool

    @property
    def freed(self) -> int:
        return sum(run.freed for run in self.runs)

    def plain(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "before_bytes": self.before,
            "after_bytes": self.after,
            "freed_bytes": self.freed,
            "cleaned": [{"run": run.id, "freed_bytes": run.freed} for run in self.runs if run.freed],
            "kept": [{"run": run.id, "why": run.outcome, "bytes": run.bytes} for run in self.runs if run.kept],
        }


def clean(root: Path, rules: Rules, filters: Filters = (), dry_run: bool = False) -> Cleaning:
    """Free what the rules do not keep; with `dry_run`, find out what that would be."""
    stamps = {run: stamp(f"{root}/{run}") for run in run_ids(root)}  # first: what changes from here on is left alone
    known = entries(root)
    reasons = _reasons(known, rules, paused(root))
    before = disk_use(root)
    looked_at = [row["run"] for row in select(known, filters, None, None)]
    runs = [_clean_one(RunFolder(root / run), reasons.get(run), stamps.get(run), dry_run) for run in looked_at]
    after = before - sum(run.freed for run in runs) if dry_run else disk_use(root)
    return Cleaning(tuple(runs), before, after, dry_run)


def paused(root: Path) -> dict[str, str]:
    """By run, the sweep that may still go on with it: runs of its trials that are not over."""
    found: dict[str, str] = {}
    for sweep in SafePath(root / "sweeps").glob("*"):
        journal = sweep / "journal.jsonl"  # as lab/sweeps/journal.py writes it, perhaps just now
        if not journal.is_file():
            continue
        runs: dict[Any, list[str]] = {}
        for line in journal.read_text(errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                fact = json_object(line)
                if fact["event"] == "started" and isinstance(fact["run"], str):
                    runs.setdefault(fact["trial"], []).append(fact["run"])
                elif fact["event"] == "told":
                    runs.pop(fact["trial"], None)
        found |= {run: sweep.name for trial in runs.values() for run in trial}
    return found


def _reasons(known: list[Entry], rules: Rules, sweeps: dict[str, str]) -> dict[str, str]:
    """Why each run that is kept is kept."""
    found: dict[str, str] = {}
    best = rules.best or 0
    metric = column(rules.metric, known)
    there = [entry for entry in known if not entry.row.get("cleaned")]  # the others have nothing left to keep
    for spec in {entry.row["spec"] for entry in known}:
        scored = [entry for entry in there if entry.row["spec"] == spec and _number(entry.value(metric)) is not None]
        scored.sort(key=lambda entry: (_number(entry.value(metric)), str(entry.row["created"])), reverse=True)
        for place, entry in enumerate(scored[:best], 1):
            found[entry.row["run"]] = f"number {place} of {spec} by {rules.metric}"
    for entry in known:
        run, row = entry.row["run"], entry.row
        tagged = [tag for tag in rules.tags if tag in row["tags"]]
        if tagged:
            found[run] = f"tagged {tagged[0]}"
        elif rules.days is not None and _age(Path(row["dir"])) <= rules.days * DAY:
            found.setdefault(run, f"changed within {rules.days:g} days")
        if run in sweeps and row["status"] != "finished":
            found[run] = f"sweep {sweeps[run]} may go on with it"
        if row["status"] == "running":
            found[run] = "running"
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _age(run: Path) -> float:
    """Seconds since the run last wrote its status; without one, since it was made."""
    with suppress(KeyError, ValueError):
        return (
            datetime.now(UTC) - datetime.fromisoformat(str(RunFolder(run).read_status()["updated"]))
        ).total_seconds()
    with suppress(OSError):
        return time.time() - run.stat().st_mtime
    return 0.0


def _clean_one(folder: RunFolder, reason: str | None, seen: str | None, dry_run: bool) -> Cleaned:
    """Under the run's lock, so that nobody resumes it on the way; `seen` is the stamp that the reason was found at."""
    whole = disk_use(folder.path)

    def kept(why: str) -> Cleaned:
        return Cleaned(folder.id, f"kept: {why}", whole, kept=True)

    reason = "a link" if folder.path.is_symlink() else reason or _strange(folder) or _runs_elsewhere(folder)
    if reason is not None:
        return kept(reason)
    freeable = _bytes(removable(folder.files))
    if not freeable:
        return Cleaned(folder.id, "nothing left to free", whole)
    in_use = f"in use by {describe(holder(folder.path))}"
    if dry_run:
        return kept(in_use) if is_held(folder.path) else Cleaned(folder.id, "would be cleaned", whole, freeable)
    try:
        with RunLock(folder.path):
            if stamp(str(folder.path)) != seen:
                return kept("changed meanwhile")
            return Cleaned(folder.id, "cleaned", whole, _free(folder))
    except LockedError:
        return kept(in_use)


def _strange(folder: RunFolder) -> str | None:
    try:
        screen(folder.path)
    except OSError as problem:
        return str(problem)
    return None


def _runs_elsewhere(folder: RunFolder) -> str | None:
    """Some shared disks have locks that hold on one machine only: there, what the run says of itself must do."""
    host = holder(folder.path).get("host")
    if folder.read_status().get("status") == "running" and host not in (None, platform.node()):
        return f"running on {host}, by its own word"
    return None


def removable(run: SafePath) -> list[SafePath]:
    """The files of a run that may go, of those that cadenza can show it wrote; in the order in which they go."""
    checkpoints = run / "checkpoints"
    files = [checkpoints / "last", checkpoints / "best"]
    for place in (checkpoints, run / "debug" / "failure"):
        files += [file for pattern in ("*step-*",) for one in place.glob(pattern) for file in owned_files.contents(one)]
    files += [run / "debug" / name for name in DEBUG]
    for place in (run / "episodes", run / "videos", *(run / "replay").glob("*")):
        files += [place / name for name in (*(owned_files.listed(place) or _unlisted(place)), owned_files.NAME)]
    place = run / "tensorboard"
    if place.is_dir():
        names = (place / EVENT_FILES).read_text(errors="replace").split("\n") if (place / EVENT_FILES).is_file() else []
        files += [place / name for name in names if PLAIN.fullmatch(name)] + [place / EVENT_FILES]
    return [file for file in files if file.is_file()]


def _unlisted(place: SafePath) -> list[str]:
    """In a run from before there were lists: what only cadenza calls so."""
    return [path.name for path in place.glob("*") if OURS.fullmatch(path.name)]


def _bytes(files: Iterable[SafePath]) -> int:
    status = [file.stat() for file in files]
    return sum(one.st_blocks * 512 if hasattr(one, "st_blocks") else one.st_size for one in status)


def _free(folder: RunFolder) -> int:
    """Bytes that were freed."""
    files = removable(folder.files)
    freed = _bytes(files)
    # said first: whoever finds it half done knows why, and another cleanup finishes it
    folder.update_status(cleaned=timestamp(), updated=folder.read_status().get("updated"))
    for file in files:
        file.unlink(missing_ok=True)
    for name in HEAVY:
        _remove_empty(folder.files / name)
    return freed


def _remove_empty(folder: SafePath) -> None:
    """The folder and those in it, where nothing is left in them."""
    if folder.is_dir():
        for below in folder.glob("*"):
            _remove_empty(below)
        with suppress(OSError):
            folder.rmdir()


def disk_use(path: Path) -> int:
    """Bytes on disk below a folder; links are not followed, and a file with two names is counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for entry in _files(path):
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512 if hasattr(status, "st_blocks") else status.st_size
    return total


def _files(path: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(Path(entry.path))
                else:
                    yield entry
    except OSError:
        return
