"""`cadenza trial`: one run of a sweep, as the sweep calls it; not for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import RunsDir


def trial(
    config: Annotated[Path, typer.Argument(help="the run's resolved config")],
    run: Annotated[str, typer.Argument(help="the run's id")],
    until: Annotated[str | None, typer.Option(metavar="UNIT=AMOUNT", help="stop at the metric's next value")] = None,
    metric: Annotated[str, typer.Option(help="what must have been measured there")] = "",
    runs_dir: RunsDir = None,
) -> None:
    """Begin a run of a sweep, or go on with it; ends with the process that started it."""
    from cadenza.cli.train import finish
    from cadenza.engine.signals import STOP
    from cadenza.lab.sweeps.jobs import end_with_starter, train
    from cadenza.records.folder import runs_root

    end_with_starter()
    unit, _, amount = (until or "").partition("=")
    result = train(config, runs_root(runs_dir), run, (unit, int(amount)) if until else None, metric)
    if result.signal != STOP or result.why:
        finish(result.signal, result.why)
