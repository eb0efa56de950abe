"""The run of a whole sweep on this machine or a Ray cluster, with lines about its progress on stderr."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

from cadenza.base.formatting import duration, number
from cadenza.base.text import printable
from cadenza.engine.signals import Signals
from cadenza.errors import ConfigError, nearest
from cadenza.lab.sweeps.jobs import Backend
from cadenza.lab.sweeps.journal import Journal, Trial
from cadenza.lab.sweeps.sweep_file import SweepFile
from cadenza.lab.sweeps.sweep_loop import Sweep, conclude, create_folder, predecessor
from cadenza.lab.sweeps.sweep_plan import Plan
from cadenza.lab.sweeps.sweep_report import settings_text, write_report
from cadenza.records.lock import RunLock

PLACES = ("local", "ray", "auto")  # auto: a Ray cluster that runs on this machine already


def require_extras(file: SweepFile, on: str) -> None:
    """Report an unknown place or a missing package before anything is written."""
    if on not in PLACES and ":" not in on:
        raise ConfigError(f"--on {on}: must be {', '.join(PLACES)} or HOST:PORT of a Ray cluster{nearest(on, PLACES)}")
    if file.method == "tpe":
        import cadenza.lab.sweeps.tune
    if on != "local":
        import cadenza.lab.sweeps.ray_tasks  # noqa: F401


def conduct(
    plan: Plan, root: Path, command: list[str], on: str = "local", retry_failed: bool = False, quiet: bool = False
) -> tuple[Sweep, str | None]:
    """Run or continue a sweep, whose report names the `command`; return it, and the signal that stopped it."""
    root = root.absolute()
    folder = create_folder(plan, root)
    with RunLock(folder.path, "sweep"):  # so that one process at a time continues it
        journal = Journal(folder.journal)
        if retry_failed:
            journal.retry()
        backend = open_backend(on, min(plan.file.parallel_jobs, plan.total * len(plan.seeds)))
        progress = Progress(plan, journal, quiet)
        sweep = Sweep(plan, root, folder, journal, backend, progress.over, progress.warn)
        progress.start(folder.path, "" if journal.trials else predecessor(plan, folder))
        try:
            with Signals(partial(progress.stop, backend)) as signals:
                sweep.run(signals)
        finally:
            backend.close()
            journal.close()
        write_report(sweep, command)
        conclude(sweep)
    return sweep, signals.requested


def open_backend(on: str, jobs: int) -> Backend:
    """Return what runs `jobs` trials at a time: processes here, or tasks of a Ray cluster."""
    if on == "local":
        from cadenza.lab.sweeps.local_processes import LocalProcesses

        return LocalProcesses(jobs)
    from cadenza.lab.sweeps.ray_tasks import RayTasks

    return RayTasks(jobs, None if on == "ray" else on)


class Progress:
    """The lines on stderr while a sweep runs: each finished trial, the best value so far, the time that is left."""

    def __init__(self, plan: Plan, journal: Journal, quiet: bool) -> None:
        self.plan, self.journal, self.quiet = plan, journal, quiet
        self.start_time, self.before = time.monotonic(), len(journal.over)

    def start(self, folder: Path, note: str) -> None:
        """Print the size of the sweep, and where it is stored."""
        if note:
            self._say(note)
        note_before = f", {self.before} of them done before" if self.before else ""
        self._say(f"sweep {self.plan.id}: {self.plan.total} trials{note_before}  ({folder})")

    def over(self, trial: Trial) -> None:
        """Print a line for a trial that is over."""
        count = len(self.journal.over)
        ranked = self.journal.ranked(self.plan.file.objective.sign)
        best = f"best {number(ranked[0].value)} in {ranked[0].number}" if ranked else "none finished"
        rest = (time.monotonic() - self.start_time) / (count - self.before) * (self.plan.total - count)
        remaining = f"  {duration(rest)} left" if count < self.plan.total else ""
        outcome = trial.message if trial.state == "failed" else f"{number(trial.value)}  ({best})"
        outcome += f"  {trial.message}" if trial.state == "finished" and trial.message else ""
        state = "" if trial.state == "finished" else f"{trial.state} "
        self._say(
            f"[{count}/{self.plan.total}] trial {trial.number}: {state}{outcome}  {settings_text(trial)}{remaining}"
        )

    def warn(self, text: str) -> None:
        """Print a warning."""
        say(f"warning: {text}")

    def stop(self, backend: Backend, number: int) -> None:
        """Pass a signal on to the runs."""
        os.write(2, b"\nruns save at their next boundary and stop ...\n")
        backend.stop(number)

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text)


def say(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()
