"""`cadenza sweep`, and what it shares with `cadenza tune`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.base.text import command, shell
from cadenza.cli.output import (
    ConfigDir,
    Json,
    Overrides,
    Quiet,
    RunsDir,
    Trust,
    print_json,
    print_table,
    say,
)
from cadenza.cli.train import positive

if TYPE_CHECKING:
    from cadenza.lab.sweeps.jobs import Backend
    from cadenza.lab.sweeps.journal import Journal, Trial
    from cadenza.lab.sweeps.sweep_file import SweepFile
    from cadenza.lab.sweeps.sweep_loop import Sweep
    from cadenza.lab.sweeps.sweep_plan import Plan

Jobs = Annotated[int | None, typer.Option(min=1, help="Train so many runs at the same time. Default: the file's.")]
On = Annotated[str, typer.Option(help="Train on local, ray, or HOST:PORT of a Ray cluster.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Continue trials that have failed, too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, show the trials, run nothing.")]
BEST_TRIALS = 10  # printed at the end
PLACES = ("local", "ray", "auto")  # auto: a Ray cluster that runs on this machine already


@dataclass(frozen=True)
class SweepOptions:
    """The options that `sweep` and `tune` share."""

    on: str
    config_dir: Path | None
    runs_dir: Path | None
    trust: bool
    retry_failed: bool
    dry_run: bool
    quiet: bool
    json: bool


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A sweep file, or the name of a shipped one.")],
    overrides: Overrides = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Try so many values. Default: the file's.")] = None,
    max_timesteps: Annotated[
        int | None,
        typer.Option(parser=positive, metavar="N", help="Stop each run after N env_steps. Default: the file's."),
    ] = None,
    jobs: Jobs = None,
    on: On = "local",
    config_dir: ConfigDir = None,
    runs_dir: RunsDir = None,
    trust: Trust = False,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train with many settings, several seeds each.

    Called again, it continues where it was: nothing is repeated, nothing lost.

    Example: cadenza sweep conf/sweep/lr.yaml --jobs 4
    """
    from cadenza.lab.sweeps.sweep_file import read
    from cadenza.records.trust import require_trust_of_file

    if not trust:
        require_trust_of_file(str(file))
    options = SweepOptions(on, config_dir, runs_dir, trust, retry_failed, dry_run, quiet, json)
    begin(read(file, trials=trials, max_timesteps=max_timesteps, parallel_jobs=jobs), overrides or [], options)


def begin(file: SweepFile, overrides: list[str], options: SweepOptions) -> None:
    """Plan a sweep, run or continue it, and report its results."""
    from cadenza.engine.signals import EXIT_CODES
    from cadenza.lab.sweeps.sweep_plan import plan as make_plan
    from cadenza.lab.sweeps.sweep_report import result

    require_extras(file, options.on)
    plan = make_plan(file, overrides, options.config_dir, options.trust)
    if options.dry_run:
        show_plan(plan, options.json)
        return
    going, progress, stopped = conduct(plan, options, repeated_command())
    if options.json:
        print_json(result(going))
    elif going.journal.ranked(plan.file.objective.sign):
        show_best(going)
    progress.end(stopped, going)
    if stopped:
        raise typer.Exit(EXIT_CODES[stopped])


def conduct(plan: Plan, options: SweepOptions, command: list[str]) -> tuple[Sweep, Progress, str | None]:
    """Run or continue a sweep, whose report names the `command`; return it, and the signal that stopped it."""
    from cadenza.engine.signals import Signals
    from cadenza.lab.sweeps.journal import Journal
    from cadenza.lab.sweeps.sweep_loop import Sweep, conclude, create_folder, predecessor
    from cadenza.lab.sweeps.sweep_report import write_report
    from cadenza.records.folder import runs_root

    root = runs_root(options.runs_dir).absolute()
    folder = create_folder(plan, root)
    with locked(folder.path):
        journal = Journal(folder.journal)
        if options.retry_failed:
            journal.retry()
        backend = open_backend(options.on, min(plan.file.parallel_jobs, plan.total * len(plan.seeds)))
        progress = Progress(plan, journal, options.quiet)
        going = Sweep(plan, root, folder, journal, backend, progress.over, progress.warn)
        progress.start(folder.path, "" if journal.trials else predecessor(plan, folder))
        try:
            with Signals(partial(progress.stop, backend)) as signals:
                going.run(signals)
        finally:
            backend.close()
            journal.close()
        write_report(going, command)
        conclude(going)
    return going, progress, signals.requested


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a sweep, so that one process at a time continues it."""
    from cadenza.errors import LockedError
    from cadenza.records.lock import RunLock, describe, holder

    lock = RunLock(folder)
    try:
        lock.acquire()
    except LockedError:
        raise LockedError(f"sweep {folder.name} is in use by {describe(holder(folder))}") from None
    try:
        yield
    finally:
        lock.release()


def repeated_command() -> list[str]:
    """Return the command that continues this sweep: without `--retry-failed`, which has taken effect."""
    return ["cadenza", *(word for word in sys.argv[1:] if word != "--retry-failed")]


def require_extras(file: SweepFile, on: str) -> None:
    """Report a missing package before anything is written."""
    from cadenza.errors import ConfigError, nearest

    if on not in PLACES and ":" not in on:
        raise ConfigError(f"--on {on}: must be {', '.join(PLACES)} or HOST:PORT of a Ray cluster{nearest(on, PLACES)}")
    if file.method == "tpe":
        import cadenza.lab.sweeps.tune
    if on != "local":
        import cadenza.lab.sweeps.ray_tasks  # noqa: F401


def open_backend(on: str, jobs: int) -> Backend:
    """Return what runs `jobs` trials at a time: processes here, or tasks of a Ray cluster."""
    if on == "local":
        from cadenza.lab.sweeps.local_processes import LocalProcesses

        return LocalProcesses(jobs)
    from cadenza.lab.sweeps.ray_tasks import RayTasks

    return RayTasks(jobs, None if on == "ray" else on)


def show_plan(plan: Plan, json: bool) -> None:
    """Print the trials that are determined beforehand, and how many runs the sweep makes."""
    if json:
        print_json({"sweep": plan.id, "trials": plan.total, "seeds": plan.seeds, "params": plan.predetermined})
        return
    from cadenza.lab.sweeps.sweep_report import brief

    runs = f"{plan.total} trials x {len(plan.seeds)} seeds = {plan.total * len(plan.seeds)} runs"
    if plan.predetermined:
        keys = list(plan.space.dimensions)
        rows = [
            [str(number), *(brief(params[key]) for key in keys)] for number, params in enumerate(plan.predetermined, 1)
        ]
        print_table(["trial", *keys], rows, ["trial"])
    say(f"{plan.id}: {runs}; every config is valid", err=True)


def show_best(going: Sweep) -> None:
    """Print the best trials."""
    from cadenza.lab.sweeps.sweep_report import trial_table

    ranked = going.journal.ranked(going.plan.file.objective.sign)
    head, rows = trial_table(ranked[:BEST_TRIALS], going.plan.seeds)
    print_table(head, rows, head)


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
        from cadenza.base.formatting import duration, number
        from cadenza.lab.sweeps.sweep_report import settings_text

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
        say(f"warning: {text}", err=True)

    def stop(self, backend: Backend, number: int) -> None:
        """Pass a signal on to the runs."""
        os.write(2, b"\nruns save at their next boundary and stop ...\n")
        backend.stop(number)

    def end(self, stopped: str | None, going: Sweep) -> None:
        """Print how to continue an interrupted sweep, or where the results of a finished one are."""
        if stopped:
            progress = f"{len(self.journal.over)} of {self.plan.total} trials done"
            say(f"{stopped}: {progress}, nothing is lost; continue with: {command(repeated_command())}", err=True)
        else:
            self._say(f"report {going.folder.report}")
            self._say(f"best   cadenza train {shell(str(going.folder.best))}")

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text, err=True)
