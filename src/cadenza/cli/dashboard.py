"""`cadenza dashboard`."""

from __future__ import annotations

from typing import Annotated

import typer

from cadenza.cli.output import Json, RunsDir, print_json, say


def dashboard(
    entity: Annotated[str, typer.Option(metavar="NAME", help="W&B's user or team.", envvar="WANDB_ENTITY")],
    project: Annotated[str, typer.Option(metavar="NAME", help="W&B's project.", envvar="WANDB_PROJECT")] = "cadenza",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the one that is there.")] = False,
    select_latest: Annotated[bool, typer.Option("--select-latest", help="Draw the newest run alone at first.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")] = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Make a workspace at Weights & Biases with a panel for each metric that the runs here log.

    A second time changes nothing, unless told to overwrite.

    Example: cadenza dashboard --entity my-team --project cartpole
    Example: cadenza dashboard --entity my-team --project cartpole --overwrite --select-latest
    """
    from cadenza.lab.wandb_dashboard import Dashboard, metrics_of, set_up
    from cadenza.records.folder import runs_root

    made = Dashboard(entity, project, metrics_of(runs_root(runs_dir)))
    if dry_run:
        print_json(made.spec())
        return
    done, address = set_up(made, overwrite, select_latest)
    if json:
        print_json({"done": done, "url": address, "metrics": list(made.metrics)})
    elif done == "kept":
        say(f"{address} is there already and stays as it is (--overwrite replaces it)")
    else:
        say(f"{address} {done}: {len(made.metrics)} panels")
