"""`cadenza trial`: train one run of a sweep; hidden, the sweep calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import RunsDir


def trial(
    config: Annotated[Path, typer.Argument(help="The resolved config of the run.")],
    run: Annotated[str, typer.Argument(help="The id of the run.")],
    until: Annotated[
        str | None, typer.Option(metavar="UNIT=AMOUNT", help="Stop at the next value of --metric.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Require a value of this metric.")] = "",
    runs_dir: RunsDir = None,
) -> None:
    """Start or continue a run of a sweep; end when the process that started it ends."""
    from cadenza.cli.train import finish
    from cadenza.engine.signals import STOP
    from cadenza.lab.sweeps.jobs import stop_with_parent, train
    from cadenza.records.folder import runs_root

    stop_with_parent()
    unit, _, amount = (until or "").partition("=")
    result = train(config, runs_root(runs_dir), run, (unit, int(amount)) if until else None, metric)
    if result.signal != STOP or result.why:
        finish(result.signal, result.why)
