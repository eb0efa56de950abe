"""Cleanup: delete the large files of runs that no rule keeps; configs, metrics, logs and reports always stay."""

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
from cadenza.errors import LockedError
from cadenza.lab.sweeps.journal import open_runs
from cadenza.records.folder import EVENT_FILES, PLAIN, RunFolder, run_ids, timestamp
from cadenza.records.index import entries
from cadenza.records.lock import RunLock, describe, holder, is_held
from cadenza.records.query import Entry, Filters, column, select
from cadenza.records.run_summary import stamp

# Only cadenza's own files in these folders go. Everything else in a run's folder stays: W&B's files, a user's notes.
HEAVY = ("checkpoints", "replay", "episodes", "videos", "tensorboard", "debug")
DEBUG = ("diagnosis.json", "profile.txt", "trace.json", "failure/last", "failure/best")
OURS = re.compile(
    r"\d{12}(-\d{12})?\.safetensors|[0-9a-f]{32}\.safetensors"
    r"|((step|replay-step|play-step|eval|episode)-[\d-]+.*|imagination.*)\.(gif|mp4|png)"
)
DAY = 24 * 60 * 60  # seconds


@dataclass(frozen=True)
class KeepRules:
    """The rules that keep a run complete; one that matches is enough."""

    best: int | None = None  # runs of each spec
    days: float | None = None
    tags: tuple[str, ...] = ()
    metric: str = "return"


@dataclass(frozen=True)
class RunOutcome:
    """What happened to one run: why it was kept, or how many bytes were freed."""

    id: str
    outcome: str
    bytes: int
    freed: int = 0
    is_kept: bool = False


@dataclass(frozen=True)
class CleanupResult:
    """The outcome of a cleanup, run by run, with the disk use before and after."""

    runs: tuple[RunOutcome, ...]
    before: int
    after: int
    dry_run: bool

    @property
    def freed(self) -> int:
        return sum(run.freed for run in self.runs)

    def plain(self) -> dict[str, Any]:
        """Return what `cadenza cleanup --json` prints."""
        return {
            "dry_run": self.dry_run,
            "before_bytes": self.before,
            "after_bytes": self.after,
            "freed_bytes": self.freed,
            "cleaned": [{"run": run.id, "freed_bytes": run.freed} for run in self.runs if run.freed],
            "kept": [{"run": run.id, "why": run.outcome, "bytes": run.bytes} for run in self.runs if run.is_kept],
        }


def clean(root: Path, rules: KeepRules, filters: Filters = (), dry_run: bool = False) -> CleanupResult:
    """Delete the large files of the runs in `root` that match the filters and no rule keeps.

    With `dry_run`, only compute what would be freed.
    """
    stamps = {run: stamp(f"{root}/{run}") for run in run_ids(root)}  # first: a run that changes from here on is kept
    runs = entries(root)
    reasons = _reasons(runs, rules, runs_of_open_trials(root))
    before = disk_use(root)
    candidates = [row["run"] for row in select(runs, filters, None, None)]
    outcomes = [_clean_run(RunFolder(root / run), reasons.get(run), stamps.get(run), dry_run) for run in candidates]
    after = before - sum(outcome.freed for outcome in outcomes) if dry_run else disk_use(root)
    return CleanupResult(tuple(outcomes), before, after, dry_run)


def runs_of_open_trials(root: Path) -> dict[str, str]:
    """Return the runs that a sweep may still continue, each with the name of its sweep."""
    sweeps = SafePath(root / "sweeps").glob("*")
    return {run: sweep.name for sweep in sweeps for run in open_runs(sweep / "journal.jsonl")}


def _reasons(runs: list[Entry], rules: KeepRules, sweeps: dict[str, str]) -> dict[str, str]:
    """Return why each run that is kept is kept, by run."""
    reasons = _best_runs(runs, rules)
    for entry in runs:
        run, row = entry.row["run"], entry.row
        tagged = [tag for tag in rules.tags if tag in row["tags"]]
        if tagged:
            reasons[run] = f"tagged {tagged[0]}"
        elif rules.days is not None and _age(Path(row["dir"])) <= rules.days * DAY:
            reasons.setdefault(run, f"changed within {rules.days:g} days")
        if run in sweeps and row["status"] != "finished":
            reasons[run] = f"sweep {sweeps[run]} may continue it"
        if row["status"] == "running":
            reasons[run] = "running"
    return reasons


def _best_runs(runs: list[Entry], rules: KeepRules) -> dict[str, str]:
    """Return the best runs of each spec, with their rank. Runs that are cleaned already have nothing left to keep."""
    metric = column(rules.metric, runs)
    by_spec: dict[str, list[tuple[tuple[float, str], str]]] = {}
    for entry in runs:
        score = _number(entry.value(metric))
        if score is not None and not entry.row.get("cleaned"):
            by_spec.setdefault(entry.row["spec"], []).append(((score, str(entry.row["created"])), entry.row["run"]))
    reasons = {}
    for spec, scored in by_spec.items():
        scored.sort(key=lambda pair: pair[0], reverse=True)
        for rank, (_, run) in enumerate(scored[: rules.best or 0], 1):
            reasons[run] = f"number {rank} of {spec} by {rules.metric}"
    return reasons


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _age(run: Path) -> float:
    """Return the seconds since the run last wrote its status, or since its folder changed if it has none."""
    with suppress(KeyError, ValueError):
        updated = datetime.fromisoformat(str(RunFolder(run).read_status()["updated"]))
        return (datetime.now(UTC) - updated).total_seconds()
    with suppress(OSError):
        return time.time() - run.stat().st_mtime
    return 0.0


def _clean_run(folder: RunFolder, reason: str | None, expected_stamp: str | None, dry_run: bool) -> RunOutcome:
    """Clean one run under its lock, so that nobody resumes it meanwhile, unless there is a reason to keep it.

    The reasons hold for the state of the run that `expected_stamp` identifies; a run that has changed since is kept.
    """
    total = disk_use(folder.path)

    def keep(why: str) -> RunOutcome:
        return RunOutcome(folder.id, f"kept: {why}", total, is_kept=True)

    reason = "a link" if folder.path.is_symlink() else reason or _screen_problem(folder) or _runs_elsewhere(folder)
    if reason is not None:
        return keep(reason)
    freeable = _disk_bytes(removable(folder.files))
    if not freeable:
        return RunOutcome(folder.id, "nothing left to free", total)
    in_use = f"in use by {describe(holder(folder.path))}"
    if dry_run:
        return keep(in_use) if is_held(folder.path) else RunOutcome(folder.id, "would be cleaned", total, freeable)
    try:
        with RunLock(folder.path):
            if stamp(str(folder.path)) != expected_stamp:
                return keep("changed meanwhile")
            return RunOutcome(folder.id, "cleaned", total, _free(folder))
    except LockedError:
        return keep(in_use)


def _screen_problem(folder: RunFolder) -> str | None:
    try:
        screen(folder.path)
    except OSError as problem:
        return str(problem)
    return None


def _runs_elsewhere(folder: RunFolder) -> str | None:
    """Return a message if the run's status says that another machine trains it.

    Locks on some shared disks hold on one machine only, so there the status has to do.
    """
    host = holder(folder.path).get("host")
    if folder.read_status().get("status") == "running" and host not in (None, platform.node()):
        return f"running on {host}, according to its status"
    return None


def removable(run: SafePath) -> list[SafePath]:
    """Return the large files of a run that cadenza can show it wrote, in the order in which they are deleted."""
    checkpoints = run / "checkpoints"
    files = [checkpoints / "last", checkpoints / "best"]
    for folder in (checkpoints, run / "debug" / "failure"):
        files += [file for checkpoint in folder.glob("*step-*") for file in owned_files.contents(checkpoint)]
    files += [run / "debug" / name for name in DEBUG]
    for folder in (run / "episodes", run / "videos", *(run / "replay").glob("*")):
        files += [folder / name for name in (*(owned_files.listed(folder) or _unlisted(folder)), owned_files.NAME)]
    events = run / "tensorboard"
    event_list = events / EVENT_FILES
    if events.is_dir() and event_list.is_file():
        names = event_list.read_text(errors="replace").split("\n")
        files += [*(events / name for name in names if PLAIN.fullmatch(name)), event_list]
    return [file for file in files if file.is_file()]


def _unlisted(folder: SafePath) -> list[str]:
    """Return the names that only cadenza uses, for runs from before there were lists."""
    return [path.name for path in folder.glob("*") if OURS.fullmatch(path.name)]


def _disk_bytes(files: Iterable[SafePath]) -> int:
    return sum(_allocated(file.stat()) for file in files)


def _allocated(status: os.stat_result) -> int:
    """Return the bytes that a file occupies on disk, where the system reports them, else its length."""
    return status.st_blocks * 512 if hasattr(status, "st_blocks") else status.st_size


def _free(folder: RunFolder) -> int:
    """Delete the removable files of a run and the folders that are empty then; return the bytes freed."""
    files = removable(folder.files)
    freed = _disk_bytes(files)
    # before the first deletion: if this process dies, the status says why files are missing; the next cleanup finishes
    folder.update_status(cleaned=timestamp(), updated=folder.read_status().get("updated"))
    for file in files:
        file.unlink(missing_ok=True)
    for name in HEAVY:
        _remove_empty(folder.files / name)
    return freed


def _remove_empty(folder: SafePath) -> None:
    """Remove the folder and the folders in it, as far as they contain no files."""
    if folder.is_dir():
        for below in folder.glob("*"):
            _remove_empty(below)
        with suppress(OSError):
            folder.rmdir()


def disk_use(path: Path) -> int:
    """Return the bytes on disk below a folder; links are not followed, and a file with two names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for entry in _files(path):
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            sizes[status.st_dev, status.st_ino] = _allocated(status)
    return sum(sizes.values())


def _files(path: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(Path(entry.path))
                else:
                    yield entry
    except OSError:
        return
