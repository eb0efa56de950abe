"""`cadenza compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.output import Filters, Json, RunsDir, print_json, print_table, require_parent, say

if TYPE_CHECKING:
    from cadenza.lab.compare import Comparison, Estimate

PAGES = (".html", ".htm")
Runs = Annotated[
    list[str] | None, typer.Argument(metavar="RUN …", help="Runs; a wildcard ('CartPole*') or a spec selects several.")
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
    from cadenza.lab.compare import AXES
    from cadenza.lab.compare import compare as compared
    from cadenza.lab.plots import FORMATS
    from cadenza.lab.series import chosen
    from cadenza.records.folder import runs_root

    if x not in AXES:
        from cadenza.errors import nearest

        raise typer.BadParameter(f"--x {x}: unknown{nearest(x, AXES)} (there are: {', '.join(AXES)})")
    if plot is not None and plot.suffix.lower() not in (*FORMATS, *PAGES):
        raise typer.BadParameter(f"--plot {plot}: must end in {', '.join((*FORMATS, '.html'))}")
    require_parent("--plot", plot)
    if at is not None and best:
        raise typer.BadParameter("--at N and --best exclude each other")
    folders = chosen(runs_root(runs_dir), runs or [], filters or [])
    score = "best" if best else "final" if at is None else str(at)
    result = compared(folders, listed(metrics), score, listed(by))
    if plot is not None:
        write(result, plot, x)
    if json:
        print_json(result.plain(x) | ({"plot": str(plot.absolute())} if plot else {}))
        return
    for metric in result.metrics:
        print_scores(result, metric)
    if len(result.environments) > 1 and result.whole:
        print_overall(result)
    print_differences(result)
    for note in result.notes_along(x):
        say(f"note: {note}", err=True)
    if plot is not None:
        say(f"plot: {plot}")


def listed(text: str) -> list[str]:
    """Split `a, b` at its commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def write(result: Comparison, path: Path, axis: str) -> None:
    """Write the plot, as a picture or as an interactive page."""
    if path.suffix.lower() in PAGES:
        from cadenza.lab.comparison_page import write_page

        write_page(result, path, axis)
    else:
        from cadenza.lab.plots import draw

        draw(result, path, axis)


def print_scores(result: Comparison, metric: str) -> None:
    """Print for each series how many seeds have a score, their score, and the probability that it beats the first."""
    from cadenza.base.formatting import number

    first, several = result.labels[0], len(result.environments) > 1
    beats = f"P(above {first})"
    head = [*(["environment"] if several else []), "runs", "seeds", metric, "95 % interval", "min", "max", beats]
    lines = []
    for one in result.series:
        estimate, values = result.estimate(one, metric), result.scores(one, metric)
        place = [one.environment] if several else []
        if estimate is None:
            lines.append([*place, one.label, "0", "-", "", "", "", ""])
            continue
        better = None if one.label == first else result.improvement(one.label, first, metric, one.environment)
        ends = (number(float(values.min())), number(float(values.max())))
        score = (number(estimate.value), span(estimate), *ends, chance(better))
        lines.append([*place, one.label, str(len(values)), *score])
    numbers = ("seeds", metric, "min", "max")
    keep = [i for i, name in enumerate(head) if name != beats or any(line[i] for line in lines)]
    print_table([head[i] for i in keep], [[line[i] for i in keep] for line in lines], numbers)


def print_overall(result: Comparison) -> None:
    """Print the score of each label over all environments, each scaled to its own range."""
    from cadenza.base.formatting import number

    metric, first = result.metrics[0], result.labels[0]
    lines = []
    for label in result.labels:
        estimate = result.overall(label, metric)
        better = None if label == first else result.improvement(label, first, metric)
        if estimate is not None:
            lines.append([label, number(estimate.value), span(estimate), chance(better)])
    title = f"all {len(result.environments)} environments, scaled"
    print_table([title, "IQM", "95 % interval", f"P(above {first})"], lines, ("IQM",))


def print_differences(result: Comparison) -> None:
    """Print the settings in which the series differ."""
    from cadenza.base.json_text import dumps

    differences = result.differences()
    if not differences:
        return
    titles = list(next(iter(differences.values())))
    lines = [
        [key, *("-" if values[title] is None else dumps(values[title]).strip('"') for title in titles)]
        for key, values in differences.items()
    ]
    print_table(["setting", *titles], lines)


def span(estimate: Estimate) -> str:
    """Return an interval as text."""
    from cadenza.base.formatting import number

    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def chance(estimate: Estimate | None) -> str:
    """Return a probability and its interval as text."""
    return "" if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
