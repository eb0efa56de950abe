"""`cadenza tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import Json, RunsDir, Trust
from cadenza.cli.sweep import DryRun, Jobs, On, Overrides, Quiet, RetryFailed


def tune(
    spec: Annotated[str, typer.Argument(help="ENV:VARIANT, the name of an experiment, or a YAML or JSON file")],
    overrides: Overrides = None,
    space: Annotated[
        Path | None, typer.Option(help="what to try: a sweep file, or dotted keys alone; default: the algorithm's own")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="how many sets of values to try; default: the file's, else 30")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="seeds of each trial: 1,2,3")] = None,
    max_timesteps: Annotated[int | None, typer.Option(min=1, help="budget of each run in env_steps")] = None,
    objective: Annotated[str | None, typer.Option(help="metric to maximise; default: eval/return_mean")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="end trials that fall behind the median")] = False,
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
    """Look for good settings with Optuna. Called again, it goes on where it was.

    Example: cadenza tune CartPole-v1:ppo --space space.yaml --trials 30 --max-timesteps 20000
    """
    from cadenza.cli.sweep import begin
    from cadenza.cli.train import parse_seeds
    from cadenza.lab.sweeps.sweep_file import read_space
    from cadenza.records.trust import require_trust_of_file

    if space is not None and not trust:
        require_trust_of_file(str(space))
    file = read_space(
        space,
        spec,
        config_dir,
        trials=trials,
        seeds=parse_seeds(seeds) or None,
        max_timesteps=max_timesteps,
        objective=objective,
        pruning=prune or None,
        parallel_jobs=jobs,
    )
    begin(
        file,
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
