"""`cadenza tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import ConfigDir, Json, Overrides, Quiet, RunsDir, Spec, Trust
from cadenza.cli.sweep import DryRun, Jobs, On, RetryFailed, SweepOptions, begin
from cadenza.cli.train import parse_seeds, positive


def tune(
    spec: Spec,
    overrides: Overrides = None,
    space: Annotated[
        Path | None, typer.Option(help="Search this file of dotted keys. Default: the algorithm's own space.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Try so many values. Default: the file's, else 30.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Train each trial with these seeds: 1,2,3.")] = None,
    max_timesteps: Annotated[
        int | None,
        typer.Option(
            parser=positive, metavar="N", help="Stop each run after N env_steps. Default: the file's, else the spec's."
        ),
    ] = None,
    objective: Annotated[str | None, typer.Option(help="Maximise this metric. Default: eval/return_mean.")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="End trials that fall behind the median.")] = False,
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
    """Search for good settings with Optuna.

    Called again, it continues where it was.

    Example: cadenza tune CartPole-v1:ppo --space space.yaml --trials 30 --max-timesteps 20000
    """
    from cadenza.lab.sweeps.sweep_file import read_space

    file = read_space(
        space,
        spec,
        config_dir,
        trust,
        trials=trials,
        seeds=parse_seeds(seeds) or None,
        max_timesteps=max_timesteps,
        objective=objective,
        pruning=prune or None,
        parallel_jobs=jobs,
    )
    options = SweepOptions(on, config_dir, runs_dir, trust, retry_failed, dry_run, quiet, json)
    begin(file, overrides or [], options)
