"""`cadenza verify`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, RunsDir, print_json


def verify(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="the run to do again")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="key=value …", help="settings for --resume")] = None,
    resume: Annotated[str | None, typer.Option(metavar="SPEC", help="compare a whole run with a killed one")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="how far, in env_steps")] = None,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Prove that a run can be reproduced, or that killing and resuming changes nothing.

    Example: cadenza verify @last --steps 5000
    Example: cadenza verify --resume CartPole-v1:ppo
    """
    from cadenza.config.load import load
    from cadenza.orchestration.launch import check
    from cadenza.records import verify as proof
    from cadenza.records.folder import find, runs_root

    with tempfile.TemporaryDirectory(prefix="cadenza-verify-") as scratch:
        root = Path(scratch)
        if resume is not None:
            # what typer took for RUN is the first key=value then
            settings = [*([run] if run else []), *(overrides or [])]
            check(load(resume, settings))
            command = [resume, *settings, "--max-timesteps", str(steps or 4096), "checkpoint.every_steps=512"]
            whole = proof.uninterrupted(command, root / "whole")
            difference = proof.compare(whole, proof.interrupted(command, root / "killed"))
            subject = f"{resume}, killed {len(proof.KILLS)} times and resumed,"
        elif run is None:
            raise typer.BadParameter("give a RUN, or --resume SPEC")
        elif overrides:
            raise typer.BadParameter("settings go with --resume alone: a run is repeated as it was")
        else:
            folder = find(runs_root(runs_dir), run)
            difference = proof.repeat(folder, root, steps)
            subject = f"{folder.id}, done again,"
    report(subject, difference, json)


def report(subject: str, difference: dict[str, Any] | None, json: bool) -> None:
    if json:
        print_json({"identical": difference is None, "first_difference": difference})
    elif difference is None:
        typer.echo(f"{subject} is identical bit for bit")
    else:
        place = f" at step {difference['env_steps']}" if difference.get("env_steps") is not None else ""
        typer.echo(f"{subject} differs{place} in {difference['quantity']}: {difference['a']} and {difference['b']}")
    if difference is not None:
        raise typer.Exit(1)
