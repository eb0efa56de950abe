"""`cadenza export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.output import Json, Run, RunsDir, Trust, print_json

FORMATS = ("dataset",)


def export(
    run: Run,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="what to write: dataset")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="where; must not exist yet")] = None,
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="play N episodes of the policy instead of taking the replay")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="seed of the played episodes  [default: 0]")] = None,
    explore: Annotated[bool, typer.Option("--explore", help="play as in training, not at its best")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, last, or a number of env_steps, for played episodes  [default: last]")
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Write a run's experience as a dataset to learn from: its replay, or episodes of its policy.

    Example: cadenza export @last --format dataset --out pendulum-replay
    Example: cadenza export @best --format dataset --episodes 100 --out expert
    """
    if format not in FORMATS:
        from cadenza.errors import nearest

        raise typer.BadParameter(f"--format {format}: unknown{nearest(format, FORMATS)} (there is: dataset)")
    if out is None:
        raise typer.BadParameter("a dataset is a folder: say where with --out DIR")
    if episodes is None and (explore or (seed, checkpoint) != (None, None)):
        raise typer.BadParameter("--seed, --explore and --checkpoint are about played episodes: give --episodes N")
    from cadenza.orchestration.export import Episodes, export_dataset
    from cadenza.records.folder import find, runs_root

    asked = None if episodes is None else Episodes(episodes, seed or 0, explore)
    result = export_dataset(find(runs_root(runs_dir), run), out, asked, checkpoint or "last", trust)
    if json:
        print_json(result)
    else:
        typer.echo(f"{out}: {told(result)}")


def told(result: dict[str, Any]) -> str:
    """Counts and returns in a line."""
    counts = f"{result['transitions']} transitions in {result['episodes']} episodes"
    if result["unfinished"]:
        counts += f" ({result['unfinished']} of them in part)"
    if result["return_mean"] is None:
        return counts
    spread = f"min {result['return_min']:.2f}, max {result['return_max']:.2f}"
    return f"{counts}, return {result['return_mean']:.2f} ({spread})"
