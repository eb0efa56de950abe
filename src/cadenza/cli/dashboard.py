"""`cadenza dashboard`."""

from __future__ import annotations

from typing import Annotated

import typer

from cadenza.cli.output import Json, RunsDir, print_json, say


def dashboard(
    entity: Annotated[str, typer.Option(metavar="NAME", help="The W&B user or team.", envvar="WANDB_ENTITY")],
    project: Annotated[str, typer.Option(metavar="NAME", help="The W&B project.", envvar="WANDB_PROJECT")] = "cadenza",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing workspace.")] = False,
    select_latest: Annotated[bool, typer.Option("--select-latest", help="Draw only the newest run at first.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent; send nothing.")] = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Create a Weights & Biases workspace for the runs here.

    It has a panel for each metric. Called again, it changes nothing without --overwrite.

    Example: cadenza dashboard --entity my-team --project cartpole
    Example: cadenza dashboard --entity my-team --project cartpole --overwrite --select-latest
    """
    from cadenza.lab.wandb_dashboard import Dashboard, metrics_of, set_up
    from cadenza.records.folder import runs_root

    dashboard = Dashboard(entity, project, metrics_of(runs_root(runs_dir)))
    if dry_run:
        print_json(dashboard.spec())
        return
    outcome, address = set_up(dashboard, overwrite, select_latest)
    if json:
        print_json({"done": outcome, "url": address, "metrics": list(dashboard.metrics)})
    elif outcome == "kept":
        say(f"{address} exists already and is unchanged (--overwrite replaces it)")
    else:
        say(f"{address} {outcome}: {len(dashboard.metrics)} panels")
