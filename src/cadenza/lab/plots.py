"""A comparison as a picture: curves with their intervals, scores of every seed, performance profiles."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.text import printable
from cadenza.lab.compare import Comparison, profiles
from cadenza.lab.curves import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by most colour-blind readers and in grey; after eight, other strokes.
COLOURS = ("#0b5cad", "#d1600a", "#12805c", "#b3224b", "#6d3fb5", "#5b6470", "#94740a", "#0f8fa8")
STROKES = ("-", (0, (5, 2)), (0, (1, 1.5)))
AXIS_NAMES = {"env_steps": "env_steps", "time": "wall time", "updates": "updates"}
NAMES = {
    "eval/return_mean": "return of an episode (evaluation)",
    "collect/return_mean": "return of an episode (training)",
}
FORMATS = (".png", ".svg", ".pdf")
COLUMNS = 3  # panels beside each other, at most
WIDTH, HEIGHT = 6.4, 3.8  # of a panel, in inches


def draw(result: Comparison, path: Path | SafePath, axis: str) -> None:
    """Write the picture; the kind is told by the name's ending."""
    from matplotlib import rc_context

    kind, picture = path.suffix.lower().removeprefix("."), BytesIO()
    with rc_context({"svg.hashsalt": "cadenza"}):  # the same picture is the same file
        plain_figure(result, axis).savefig(picture, format=kind, metadata={"Date": None} if kind == "svg" else None)
    atomic.write_bytes(path, picture.getvalue())


def plain_figure(result: Comparison, axis: str) -> Figure:
    """Texts are taken as they are made for what they say: a dollar in a name is a dollar."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):
        return whole_figure(result, axis)


def whole_figure(result: Comparison, axis: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels = [(metric, environment) for metric in result.metrics for environment in result.environments]
    wide = min(len(result.environments), COLUMNS)
    columns, below = (max(wide, 2), 1) if _seeded(result) else (wide, 0)
    lines = len(result.metrics) * -(-len(result.environments) // wide)
    spaced = ConstrainedLayoutEngine(hspace=0.06, wspace=0.04)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * (lines + below) + 0.5), dpi=130, layout=spaced)
    grid = figure.add_gridspec(lines + below, columns * 2)
    share = columns * 2 // wide
    for index, (metric, environment) in enumerate(panels):
        measured, tried = divmod(index, len(result.environments))
        row, column = divmod(tried, wide)
        row += measured * (lines // len(result.metrics))
        axes = figure.add_subplot(grid[row, column * share : (column + 1) * share])
        curves(axes, result, environment, metric, axis)
    if below:
        scores(figure.add_subplot(grid[lines, :columns]), result, result.metrics[0])
        profile_panel(figure.add_subplot(grid[lines, columns:]), result, result.metrics[0])
    _legend(figure, result)
    return figure


def look(result: Comparison, label: str) -> dict[str, Any]:
    index = result.labels.index(label)
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STROKES[index // len(COLOURS) % len(STROKES)]}


def curves(axes: Axes, result: Comparison, environment: str, metric: str, axis: str) -> None:
    """The interquartile mean over seeds, its interval shaded; each seed as a thin line."""
    for one in result.series:
        if one.environment != environment or (curve := result.curve(one, metric, axis)) is None:
            continue
        style = look(result, one.label)
        for x, y in curve.seeds if len(curve.seeds) > 1 else ():
            axes.plot(x, y, "o-" if len(x) < 2 else "-", color=style["color"], linewidth=0.7, alpha=0.28)
        axes.fill_between(curve.x, curve.low, curve.high, color=style["color"], alpha=0.2, linewidth=0)
        marker = "o" if len(curve.x) < 2 else ""
        axes.plot(curve.x, curve.middle, linewidth=2.2, marker=marker, **style)
    dress(
        axes,
        f"{environment}: IQM over seeds, 95 % interval" if _seeded(result) else environment,
        AXIS_NAMES[axis],
        NAMES.get(metric, metric),
    )
    from matplotlib.ticker import EngFormatter, FuncFormatter

    clock = FuncFormatter(lambda seconds, _: _clock(seconds))
    axes.xaxis.set_major_formatter(clock if axis == "time" else EngFormatter(sep=""))
    axes.set_xlim(left=0)


def scores(axes: Axes, result: Comparison, metric: str) -> None:
    """Each seed as a dot, the interquartile mean as a stroke, its interval as a bar."""
    labels = [label for label in result.labels if result.scaled(label, metric)]
    for place, label in enumerate(reversed(labels)):
        colour, estimate = look(result, label)["color"], result.overall(label, metric)
        for task in result.scaled(label, metric):
            axes.plot(task, [place] * len(task), "o", color=colour, alpha=0.6, markersize=6, markeredgecolor="white")
        if estimate is not None:
            axes.barh(place, estimate.high - estimate.low, 0.5, left=estimate.low, color=colour, alpha=0.3)
            axes.plot([estimate.value] * 2, [place - 0.33, place + 0.33], color=colour, linewidth=2.5)
    axes.set_yticks(range(len(labels)), [_shortened(label) for label in reversed(labels)])
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_xlim(*result.thresholds(metric)[[0, -1]])
    dress(axes, f"{_scored(result)}: IQM, 95 % interval, every seed", _score_name(result, metric), "")
    axes.grid(axis="y", visible=False)


def profile_panel(axes: Axes, result: Comparison, metric: str) -> None:
    taus = result.thresholds(metric)
    for label, (share, low, high) in profiles(result, metric).items():
        style = look(result, label)
        axes.fill_between(taus, low, high, color=style["color"], alpha=0.15, linewidth=0, step="mid")
        axes.step(taus, share, where="mid", linewidth=2, **style)
    axes.set_ylim(-0.02, 1.02)
    dress(
        axes, "Performance profile, 95 % interval", f"threshold t of the {_score_name(result, metric)}", "runs above t"
    )


def dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(printable(title), loc="left", fontsize=11, color=INK, pad=8)
    axes.set_xlabel(printable(x), color=INK)
    axes.set_ylabel(printable(y), color=INK)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color("#9ca3af")


def _legend(figure: Figure, result: Comparison) -> None:
    from matplotlib.lines import Line2D

    counts: dict[str, list[int]] = {}
    for one in result.series:
        counts.setdefault(one.label, []).append(len(result.scores(one, result.metrics[0])))
    names = [f"{_shortened(label)} ({_seeds(counts[label])})" for label in result.labels]
    lines = [Line2D([], [], linewidth=2.2, **look(result, label)) for label in result.labels]
    columns = 4 if max(map(len, names)) < 30 else 2
    figure.legend(
        lines,
        names,
        loc="outside upper left",
        ncols=min(len(names), columns),
        frameon=False,
        labelcolor=INK,
        fontsize=11,
    )


def _seeded(result: Comparison) -> bool:
    """Whether there is anything to be said about the spread of scores."""
    return any(len(result.scores(one, result.metrics[0])) > 1 for one in result.series)


def _seeds(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low} seed{'' if low == 1 else 's'}" if low == high else f"{low} to {high} seeds"


def _scored(result: Comparison) -> str:
    return {"final": "Final score", "best": "Best score"}.get(result.score, f"Score at step {result.score}")


def _score_name(result: Comparison, metric: str) -> str:
    return f"{metric}, scaled per environment" if len(result.environments) > 1 else metric


def _shortened(label: str, limit: int = 42) -> str:
    label = printable(label)
    return label if len(label) <= limit else label[: limit - 1] + "…"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{rest:02d}"
