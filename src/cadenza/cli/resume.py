"""`cadenza resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from cadenza.cli.output import Json, Run, RunsDir, Trust, print_json


def resume(
    run: Run,
    max_timesteps: Annotated[int | None, typer.Option(help="a new budget in env_steps")] = None,
    max_updates: Annotated[int | None, typer.Option(help="a new budget in gradient steps")] = None,
    device: Annotated[str | None, typer.Option(help="another device; ends the claim of exactness")] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="go on although its files were changed by hand; names each change")
    ] = False,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="warnings only")] = False,
    json: Json = False,
) -> None:
    """Go on with a run exactly where its last checkpoint left it.

    Example: cadenza resume @last
    """
    from cadenza.cli.train import finish
    from cadenza.lab.session import resume as launch
    from cadenza.records.folder import find, runs_root

    folder = find(runs_root(runs_dir), run)
    result = launch(folder, max_timesteps, max_updates, device, quiet, trust, accept_changes=accept_changes)
    if json:
        print_json(result.summary())
    finish(result.signal, result.why)
