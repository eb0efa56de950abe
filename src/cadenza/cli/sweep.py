"""`cadenza sweep`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.base.text import command, shell
from cadenza.cli.output import Json, RunsDir, Trust, print_json, print_table, say

if TYPE_CHECKING:
    from cadenza.lab.sweeps.drive import Sweep
    from cadenza.lab.sweeps.jobs import Engine
    from cadenza.lab.sweeps.journal import Journal, Trial
    from cadenza.lab.sweeps.sweep_file import SweepFile
    from cadenza.lab.sweeps.sweep_plan import Plan

Overrides = Annotated[list[str] | None, typer.Argument(metavar="key=value …", help="settings of the base to change")]
Jobs = Annotated[int | None, typer.Option(min=1, help="runs at the same time; goes before the file's parallel_jobs")]
On = Annotated[str, typer.Option(help="where runs train: local, ray, or HOST:PORT of a Ray cluster")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="go on with trials that have failed, too")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check everything, show the trials, run nothing")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="warnings only")]
SHOWN = 10
PLACES = ("local", "ray", "auto")  # auto: a Ray cluster that runs on this machine already


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a sweep file, or the name of a shipped one")],
    overrides: Overrides = None,
    trials: Annotated[int | None, typer.Option(min=1, help="goes before the file's trials")] = None,
    max_timesteps: Annotated[int | None, typer.Option(min=1, help="goes before the file's max_timesteps")] = None,
    jobs: Jobs = None,
    on: On = "local",
    config_dir: Annotated[Path | None, typer.Option(help="folder with config groups of your own")] = None,
    runs_dir: RunsDir = None,
    trust: Trust = False,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Try many settings. Called again, it goes on where it was: nothing is repeated, nothing lost.

    Example: cadenza sweep conf/sweep/lr.yaml --jobs 4
    """
    from cadenza.lab.sweeps.sweep_file import read
    from cadenza.records.trust import require_trust_of_file

    if not trust:
        require_trust_of_file(str(file))
    said = read(file, trials=trials, max_timesteps=max_timesteps, parallel_jobs=jobs)
    begin(
        said,
        overrides or [],
        on=on,
        config_dir=config_dir,
        runs_dir=runs_dir,
        trust=trust,
        retry_failed=retry_failed,
        dry_run=dry_run,
        quiet=quiet,
        json=json,
    )


def begin(
    file: SweepFile,
    overrides: list[str],
    *,
    on: str,
    config_dir: Path | None,
    runs_dir: Path | None,
    trust: bool,
    retry_failed: bool,
    dry_run: bool,
    quiet: bool,
    json: bool,
) -> None:
    """What `sweep` and `tune` share: plan, run, report."""
    from cadenza.engine.signals import EXIT_CODES, Signals
    from cadenza.lab.sweeps.drive import Sweep, conclude, folder_of, predecessor
    from cadenza.lab.sweeps.journal import Journal
    from cadenza.lab.sweeps.sweep_plan import plan as make_plan
    from cadenza.lab.sweeps.sweep_report import result, write_report
    from cadenza.records.folder import runs_root

    require_extras(file, on)
    plan, root = make_plan(file, overrides, config_dir, trust), runs_root(runs_dir).absolute()
    if dry_run:
        show_plan(plan, json)
        return
    folder = folder_of(plan, root)
    with held(folder.path):
        journal = Journal(folder.journal)
        if retry_failed:
            journal.retry()
        engine = open_engine(on, min(file.parallel_jobs, plan.total * len(plan.seeds)))
        progress = Progress(plan, journal, quiet)
        going = Sweep(plan, root, folder, journal, engine, progress.over, progress.warn)
        progress.start(folder.path, "" if journal.trials else predecessor(plan, folder))
        try:
            with Signals(partial(progress.stop, engine)) as signals:
                going.run(signals)
        finally:
            engine.close()
            journal.close()
        write_report(going, command_again())
        best = conclude(going)
    stopped = signals.requested
    if json:
        print_json(result(going))
    elif best is not None:
        show_best(going)
    progress.end(stopped, going)
    if stopped:
        raise typer.Exit(EXIT_CODES[stopped])


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """One process at a time goes on with a sweep."""
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


def command_again() -> list[str]:
    """This command, to go on with: what was to be retried is open by now."""
    return ["cadenza", *(word for word in sys.argv[1:] if word != "--retry-failed")]


def require_extras(file: SweepFile, on: str) -> None:
    """A package that is missing is told before anything is made."""
    from cadenza.errors import ConfigError, nearest

    if on not in PLACES and ":" not in on:
        raise ConfigError(f"--on {on}: must be {', '.join(PLACES)} or HOST:PORT of a Ray cluster{nearest(on, PLACES)}")
    if file.method == "tpe":
        import cadenza.lab.sweeps.tune
    if on != "local":
        import cadenza.lab.sweeps.ray_tasks  # noqa: F401


def open_engine(on: str, jobs: int) -> Engine:
    if on == "local":
        from cadenza.lab.sweeps.local import LocalProcesses

        return LocalProcesses(jobs)
    from cadenza.lab.sweeps.ray_tasks import RayTasks

    return RayTasks(jobs, None if on == "ray" else on)


def show_plan(plan: Plan, json: bool) -> None:
    if json:
        print_json({"sweep": plan.id, "trials": plan.total, "seeds": plan.seeds, "params": plan.known})
        return
    from cadenza.lab.sweeps.sweep_report import shown

    runs = f"{plan.total} trials x {len(plan.seeds)} seeds = {plan.total * len(plan.seeds)} runs"
    if plan.known:
        keys = list(plan.space.dimensions)
        rows = [[str(number), *(shown(params[key]) for key in keys)] for number, params in enumerate(plan.known, 1)]
        print_table(["trial", *keys], rows, ["trial"])
    say(f"{plan.id}: {runs}; every config is sound", err=True)


def show_best(going: Sweep) -> None:
    from cadenza.lab.sweeps.sweep_report import trial_table

    ranked = going.journal.ranked(going.plan.file.objective.sign)
    head, rows = trial_table(ranked[:SHOWN], going.plan.seeds)
    print_table(head, rows, head)


class Progress:
    """A line for each trial that is over: its value, the best so far, and how long the rest may take."""

    def __init__(self, plan: Plan, journal: Journal, quiet: bool) -> None:
        self.plan, self.journal, self.quiet = plan, journal, quiet
        self.began, self.before = time.monotonic(), len(journal.over)

    def start(self, folder: Path, note: str) -> None:
        if note:
            self._say(note)
        done = f", {self.before} of them over already" if self.before else ""
        self._say(f"sweep {self.plan.id}: {self.plan.total} trials{done}  ({folder})")

    def over(self, trial: Trial) -> None:
        from cadenza.base.formatting import duration, number
        from cadenza.lab.sweeps.sweep_report import said

        done = len(self.journal.over)
        ranked = self.journal.ranked(self.plan.file.objective.sign)
        best = f"best {number(ranked[0].value)} in {ranked[0].number}" if ranked else "none finished"
        rest = (time.monotonic() - self.began) / (done - self.before) * (self.plan.total - done)
        left = f"  {duration(rest)} left" if done < self.plan.total else ""
        came = trial.message if trial.state == "failed" else f"{number(trial.value)}  ({best})"
        came += f"  {trial.message}" if trial.state == "finished" and trial.message else ""
        state = "" if trial.state == "finished" else f"{trial.state} "
        self._say(f"[{done}/{self.plan.total}] trial {trial.number}: {state}{came}  {said(trial)}{left}")

    def warn(self, text: str) -> None:
        say(f"warning: {text}", err=True)

    def stop(self, engine: Engine, number: int) -> None:
        os.write(2, b"\nruns save at their next boundary and stop ...\n")
        engine.stop(number)

    def end(self, stopped: str | None, going: Sweep) -> None:
        if stopped:
            again = command(command_again())
            done = f"{len(self.journal.over)} of {self.plan.total} trials over"
            say(f"{stopped}: {done}, nothing is lost; go on with: {again}", err=True)
        else:
            self._say(f"report {going.folder.report}")
            self._say(f"best   cadenza train {shell(str(going.folder.best))}")

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text, err=True)
