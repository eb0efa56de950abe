"""`cadenza sweep`, and what it shares with `cadenza tune`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.base.text import command, shell
from cadenza.cli.output import ConfigDir, Json, Overrides, Quiet, RunsDir, Trust, print_json, print_table, say
from cadenza.cli.train import positive

if TYPE_CHECKING:
    from cadenza.lab.sweeps.sweep_file import SweepFile
    from cadenza.lab.sweeps.sweep_loop import Sweep
    from cadenza.lab.sweeps.sweep_plan import Plan

Jobs = Annotated[int | None, typer.Option(min=1, help="Train so many runs at the same time. Default: the file's.")]
On = Annotated[str, typer.Option(help="Train on local, ray, or HOST:PORT of a Ray cluster.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Continue trials that have failed, too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, show the trials, run nothing.")]
BEST_TRIALS = 10  # printed at the end


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

    options = SweepOptions(on, config_dir, runs_dir, trust, retry_failed, dry_run, quiet, json)
    begin(read(file, trust, trials=trials, max_timesteps=max_timesteps, parallel_jobs=jobs), overrides or [], options)


def begin(file: SweepFile, overrides: list[str], options: SweepOptions) -> None:
    """Plan a sweep, run or continue it, and report its results."""
    from cadenza.engine.signals import EXIT_CODES
    from cadenza.lab.sweeps.conduct import conduct, require_extras
    from cadenza.lab.sweeps.sweep_plan import plan as make_plan
    from cadenza.lab.sweeps.sweep_report import result
    from cadenza.records.folder import runs_root

    require_extras(file, options.on)
    plan = make_plan(file, overrides, options.config_dir, options.trust)
    if options.dry_run:
        show_plan(plan, options.json)
        return
    root = runs_root(options.runs_dir)
    going, stopped = conduct(plan, root, repeated_command(), options.on, options.retry_failed, options.quiet)
    if options.json:
        print_json(result(going))
    elif going.journal.ranked(plan.file.objective.sign):
        show_best(going)
    say_end(going, stopped, options.quiet)
    if stopped:
        raise typer.Exit(EXIT_CODES[stopped])


def repeated_command() -> list[str]:
    """Return the command that continues this sweep: without `--retry-failed`, which has taken effect."""
    return ["cadenza", *(word for word in sys.argv[1:] if word != "--retry-failed")]


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


def say_end(going: Sweep, stopped: str | None, quiet: bool) -> None:
    """Print how to continue an interrupted sweep, or where the results of a finished one are."""
    if stopped:
        progress = f"{len(going.journal.over)} of {going.plan.total} trials done"
        say(f"{stopped}: {progress}, nothing is lost; continue with: {command(repeated_command())}", err=True)
    elif not quiet:
        say(f"report {going.folder.report}", err=True)
        say(f"best   cadenza train {shell(str(going.folder.best))}", err=True)
