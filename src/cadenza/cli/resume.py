"""`cadenza resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from cadenza.cli.output import Json, Quiet, Run, RunsDir, Trust, print_json
from cadenza.cli.train import amount, finish


def resume(
    run: Run,
    max_timesteps: Annotated[
        int | None, typer.Option(parser=amount, metavar="N", help="Set a new budget of N env_steps: 100000, 1e5, 100k.")
    ] = None,
    max_updates: Annotated[
        int | None, typer.Option(parser=amount, metavar="N", help="Set a new budget of N gradient steps.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Move to another device; results are then no longer exact.")
    ] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Accept changes made to its files by hand, and name each.")
    ] = False,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue a run exactly where its last checkpoint left it.

    Example: cadenza resume @last
    """
    from cadenza.lab.session import resume as launch
    from cadenza.records.folder import find, runs_root

    folder = find(runs_root(runs_dir), run)
    result = launch(folder, max_timesteps, max_updates, device, quiet, trust, accept_changes=accept_changes)
    if json:
        print_json(result.summary())
    finish(result.signal, result.why)
