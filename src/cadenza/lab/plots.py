"""The plot of a comparison: curves with their intervals, scores of every seed, performance profiles."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.base.files import SafePath
from cadenza.base.text import printable
from cadenza.lab.charts import save, style_axes
from cadenza.lab.compare import Comparison, profiles
from cadenza.lab.svg_charts import GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Most colour-blind readers can distinguish these, also in grey. After eight, the line style changes.
COLOURS = ("#0b5cad", "#d1600a", "#12805c", "#b3224b", "#6d3fb5", "#5b6470", "#94740a", "#0f8fa8")
# Lengths of strokes and gaps, in widths of the line; none: a solid line.
DASHES = ((), (5, 2), (1, 1.5), (6, 1.5, 1, 1.5), (10, 3), (4, 1.5, 1, 1.5, 1, 1.5))
MARKERS = "os^Dv*"  # of curves with one point, which show no strokes
AXIS_NAMES = {"env_steps": "env_steps", "time": "wall time", "updates": "updates"}
NAMES = {
    "eval/return_mean": "return of an episode (evaluation)",
    "collect/return_mean": "return of an episode (training)",
}
FORMATS = (".png", ".svg", ".pdf")
COLUMNS = 3  # largest number of panels in a row
WIDTH, HEIGHT = 6.4, 3.8  # of a panel, in inches
CHARACTER, LINE = 0.085, 0.23  # width and height of the legend's text, in inches
TICK_LIMIT = 42  # characters of a line of a label beside the scores
LEGEND_LIMIT = 54  # characters of a label in the legend


def draw(result: Comparison, path: Path | SafePath, axis: str) -> None:
    """Write the plot of a comparison over an axis; the suffix of the path (see FORMATS) names the format."""
    save(build_figure(result, axis), path)


def build_figure(result: Comparison, axis: str) -> Figure:
    """Return the figure. Names are drawn literally: a dollar sign in one begins no formula."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):
        return _figure(result, axis)


def _figure(result: Comparison, axis: str) -> Figure:
    """Draw a row or more of panels per metric, a panel per environment; with several seeds, their scores below."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    across = min(len(result.environments), COLUMNS)  # panels of curves in a row
    columns, score_rows = (max(across, 2), 1) if _has_spread(result) else (across, 0)
    rows_per_metric = math.ceil(len(result.environments) / across)
    rows = len(result.metrics) * rows_per_metric
    layout = ConstrainedLayoutEngine(hspace=0.06, wspace=0.04)
    legend = LINE * (math.ceil(len(result.labels) / legend_columns(result, WIDTH * columns)) + 1)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * (rows + score_rows) + legend), dpi=130, layout=layout)
    grid = figure.add_gridspec(rows + score_rows, columns * 2)  # half columns, so that any number of panels fits
    width = columns * 2 // across
    for metric_index, metric in enumerate(result.metrics):
        for index, environment in enumerate(result.environments):
            row, column = divmod(index, across)
            cell = grid[metric_index * rows_per_metric + row, column * width : (column + 1) * width]
            draw_curves(figure.add_subplot(cell), result, environment, metric, axis)
    if score_rows:
        draw_scores(figure.add_subplot(grid[rows, :columns]), result, result.metrics[0])
        draw_profiles(figure.add_subplot(grid[rows, columns:]), result, result.metrics[0])
    _legend(figure, result)
    return figure


def look(result: Comparison, label: str) -> dict[str, Any]:
    """Return the colour and the line style of a label, as arguments of a line; the first 48 labels all differ."""
    index = result.labels.index(label)
    dashes = DASHES[index // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": (0, dashes) if dashes else "-"}


def marker_of(result: Comparison, label: str, points: int) -> str:
    """Return the marker of a curve with one point, which differs where the line style does; none for more points."""
    return MARKERS[result.labels.index(label) // len(COLOURS) % len(MARKERS)] if points < 2 else ""


def draw_curves(axes: Axes, result: Comparison, environment: str, metric: str, axis: str) -> None:
    """Draw the interquartile mean over seeds with its interval shaded, and each seed as a thin line."""
    from matplotlib.ticker import EngFormatter, FuncFormatter

    for series in result.series:
        if series.environment != environment or (curve := result.curve(series, metric, axis)) is None:
            continue
        style = look(result, series.label)
        for x, y in curve.seeds if len(curve.seeds) > 1 else ():
            axes.plot(x, y, "o-" if len(x) < 2 else "-", color=style["color"], linewidth=0.7, alpha=0.28)
        axes.fill_between(curve.x, curve.low, curve.high, color=style["color"], alpha=0.2, linewidth=0)
        marker = marker_of(result, series.label, len(curve.x))
        axes.plot(curve.x, curve.middle, linewidth=2.2, marker=marker, **style)
    title = f"{environment}: IQM over seeds, 95 % interval, every seed" if _has_spread(result) else environment
    set_titles(axes, title, AXIS_NAMES[axis], NAMES.get(metric, metric))
    clock = FuncFormatter(lambda seconds, _: _clock(seconds))
    axes.xaxis.set_major_formatter(clock if axis == "time" else EngFormatter(sep=""))
    axes.set_xlim(left=0)


def draw_scores(axes: Axes, result: Comparison, metric: str) -> None:
    """Draw each seed as a dot, the interquartile mean as a stroke, its interval as a bar."""
    labels = [label for label in result.labels if result.scaled(label, metric)]
    for place, label in enumerate(reversed(labels)):
        colour, estimate = look(result, label)["color"], result.overall(label, metric)
        for task in result.scaled(label, metric):
            axes.plot(task, [place] * len(task), "o", color=colour, alpha=0.6, markersize=6, markeredgecolor="white")
        if estimate is not None:
            axes.barh(place, estimate.high - estimate.low, 0.5, left=estimate.low, color=colour, alpha=0.3)
            axes.plot([estimate.value] * 2, [place - 0.33, place + 0.33], color=colour, linewidth=2.5)
    names = ["\n".join(textwrap.wrap(_shorten(label, 2 * TICK_LIMIT), TICK_LIMIT)) for label in reversed(labels)]
    axes.set_yticks(range(len(labels)), names, fontsize=10 if len(labels) < 8 else 7)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_xlim(*result.thresholds(metric)[[0, -1]])
    set_titles(axes, f"{_score_kind(result)}: IQM, 95 % interval, every seed", _score_name(result, metric), "")
    axes.grid(axis="y", visible=False)


def draw_profiles(axes: Axes, result: Comparison, metric: str) -> None:
    """Draw the share of runs above each threshold, with its interval."""
    thresholds = result.thresholds(metric)
    for label, (share, low, high) in profiles(result, metric).items():
        style = look(result, label)
        axes.fill_between(thresholds, low, high, color=style["color"], alpha=0.15, linewidth=0, step="mid")
        axes.step(thresholds, share, where="mid", linewidth=2, **style)
    axes.set_ylim(-0.02, 1.02)
    threshold = f"threshold t of the {_score_name(result, metric)}"
    set_titles(axes, "Performance profile, 95 % interval", threshold, "runs above t")


def set_titles(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title and the names of the axes, and style them."""
    axes.set_title(printable(title), loc="left", fontsize=11, color=INK, pad=8)
    axes.set_xlabel(printable(x), color=INK)
    axes.set_ylabel(printable(y), color=INK)
    style_axes(axes, spines=GREY)


def _legend(figure: Figure, result: Comparison) -> None:
    from matplotlib.lines import Line2D

    counts: dict[str, list[int]] = {}
    markers: dict[str, str] = {}
    for series in result.series:
        counts.setdefault(series.label, []).append(len(result.scores(series, result.metrics[0])))
        curve = result.curve(series, result.metrics[0], "env_steps")
        markers[series.label] = marker_of(result, series.label, 2 if curve is None else len(curve.x))
    names = [f"{_shorten(label, LEGEND_LIMIT)} ({_seeds(counts[label])})" for label in result.labels]
    lines = [Line2D([], [], linewidth=2.2, marker=markers[label], **look(result, label)) for label in result.labels]
    columns = min(len(names), legend_columns(result, figure.get_figwidth()))
    figure.legend(lines, names, loc="outside upper left", ncols=columns, frameon=False, labelcolor=INK, fontsize=11)


def legend_columns(result: Comparison, width: float) -> int:
    """Return how many columns of a legend fit into a figure of this width in inches, at most four."""
    longest = max(min(len(label), LEGEND_LIMIT) for label in result.labels) + len(" (10 seeds)")
    return max(1, min(4, int(width / (0.6 + CHARACTER * longest))))


def _has_spread(result: Comparison) -> bool:
    """Return whether some series has several scores."""
    return any(len(result.scores(series, result.metrics[0])) > 1 for series in result.series)


def _seeds(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low} seed{'' if low == 1 else 's'}" if low == high else f"{low} to {high} seeds"


def _score_kind(result: Comparison) -> str:
    return {"final": "Final score", "best": "Best score"}.get(result.score, f"Score at step {result.score}")


def _score_name(result: Comparison, metric: str) -> str:
    return f"{metric}, scaled per environment" if len(result.environments) > 1 else metric


def _shorten(label: str, limit: int) -> str:
    label = printable(label)
    return label if len(label) <= limit else label[: limit - 1] + "…"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{rest:02d}"
