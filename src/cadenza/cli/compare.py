"""`cadenza compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.output import Filters, Json, RunsDir, print_json, print_table, require_parent, say

if TYPE_CHECKING:
    from cadenza.lab.compare import Comparison

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN …", help="Runs; a wildcard ('CartPole*') or a spec selects several; --filter narrows."),
]
Metrics = Annotated[
    str, typer.Option("--metrics", "-m", metavar="A,B", help="Compare these metrics. Default: eval/return_mean.")
]
By = Annotated[str, typer.Option(metavar="KEY,…", help="Group runs by these settings alone.")]
At = Annotated[int | None, typer.Option(metavar="N", min=0, help="Score at N env_steps instead of at the end.")]
Best = Annotated[bool, typer.Option("--best", help="Score by a run's best value instead of its last.")]


def compare(
    runs: Runs = None,
    filters: Filters = None,
    metrics: Metrics = "",
    x: Annotated[str, typer.Option(metavar="AXIS", help="Draw over env_steps, time or updates.")] = "env_steps",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a .png, .svg or .pdf, or an interactive .html.")
    ] = None,
    by: By = "",
    at: At = None,
    best: Best = False,
    runs_dir: RunsDir = None,
    json: Json = False,
) -> None:
    """Compare runs in tables and plots.

    The seeds of one config are aggregated: interquartile mean, 95 % bootstrap interval.

    Example: cadenza compare CartPole-v1:ppo CartPole-v1:dqn --plot compare.png
    Example: cadenza compare --filter tag=paper --metrics eval/return_mean,train/entropy --x time --plot compare.html
    """
    from cadenza.lab.compare import AXES, PAGES
    from cadenza.lab.compare import compare as compared
    from cadenza.lab.plots import FORMATS
    from cadenza.lab.series import select_runs
    from cadenza.records.folder import runs_root

    if x not in AXES:
        from cadenza.errors import nearest

        raise typer.BadParameter(f"--x {x}: unknown{nearest(x, AXES)} (there are: {', '.join(AXES)})")
    if plot is not None and plot.suffix.lower() not in (*FORMATS, *PAGES):
        raise typer.BadParameter(f"--plot {plot}: must end in {', '.join((*FORMATS, '.html'))}")
    require_parent("--plot", plot)
    if at is not None and best:
        raise typer.BadParameter("--at N and --best exclude each other")
    folders = select_runs(runs_root(runs_dir), runs or [], filters or [])
    score = "best" if best else "final" if at is None else str(at)
    result = compared(folders, listed(metrics), score, listed(by))
    if plot is not None:
        result.plot(plot, x)
    if json:
        print_json(result.plain(x) | ({"plot": str(plot.absolute())} if plot else {}))
        return
    for metric in result.metrics:
        print_scores(result, metric)
    if result.has_overall:
        print_overall(result)
    print_differences(result)
    for note in result.notes_along(x):
        say(f"note: {note}", err=True)
    if plot is not None:
        say(f"plot: {plot}")


def listed(text: str) -> list[str]:
    """Split `a, b` at its commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def print_scores(result: Comparison, metric: str) -> None:
    """Print the scores of the series, without columns that say nothing here."""
    from cadenza.lab.comparison_tables import score_table

    head, rows = score_table(result, metric)
    first = 0 if len(result.environments) > 1 else 1
    last = len(head) if any(row[-1] for row in rows) else len(head) - 1
    head = [metric if name == "IQM" else name for name in head][first:last]
    print_table(head, [row[first:last] for row in rows], ("seeds", metric, "min", "max"))


def print_overall(result: Comparison) -> None:
    """Print the score of each label over all environments."""
    from cadenza.lab.comparison_tables import overall_table

    head, rows = overall_table(result)
    title = f"all {len(result.environments)} environments, scaled"
    print_table([title, *head[1:]], rows, ("IQM",))


def print_differences(result: Comparison) -> None:
    """Print the settings in which the series differ."""
    from cadenza.lab.comparison_tables import settings_table

    head, rows = settings_table(result)
    if rows:
        print_table(head, rows)
