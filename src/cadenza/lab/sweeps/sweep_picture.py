"""A sweep as pictures: how its trials went one after the other, and each setting against what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.json_text import canonical, dumps
from cadenza.lab.curves import BLUE, FAINT, GREEN, GREY, INK
from cadenza.lab.sweeps.journal import Trial
from cadenza.lab.sweeps.space import Dimension, Range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # panels in a row


def draw_history(trials: Sequence[Trial], path: SafePath, label: str, sign: int) -> None:
    """Every trial's value, and the best so far."""
    from matplotlib.ticker import MaxNLocator

    figure = _figure(8, 4)
    axes = figure.add_subplot()
    _points(axes, [(trial.number, trial) for trial in trials])
    finished = [trial for trial in trials if trial.state == "finished"]
    best: list[float] = []
    for trial in finished:
        assert trial.value is not None
        best.append(trial.value if not best or sign * trial.value > sign * best[-1] else best[-1])
    axes.step([trial.number for trial in finished], best, where="post", color=GREEN, linewidth=1.5, label="best so far")
    axes.set_xlabel("trial", color=INK)
    axes.set_ylabel(label, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    _dress(axes)
    _save(figure, path)


def draw_parameters(
    trials: Sequence[Trial],
    dimensions: Mapping[str, Dimension],
    shares: Mapping[str, float],
    path: SafePath,
    label: str,
) -> None:
    """A panel for each setting, the most important first; a bar marks the mean of each value of a list."""
    keys = [*shares, *(key for key in dimensions if key not in shares)]
    rows = -(-len(keys) // ACROSS)
    columns = min(ACROSS, len(keys))
    figure = _figure(3.4 * columns + 0.6, 3 * rows)
    for place, key in enumerate(keys, 1):
        axes = figure.add_subplot(rows, columns, place)
        dimension = dimensions[key]
        if isinstance(dimension, Range):
            _points(axes, [(trial.params[key], trial) for trial in trials])
            _scale(axes, dimension)
        else:
            _listed(axes, dimension.values, [(canonical(trial.params[key]), trial) for trial in trials])
        share = f"  ({shares[key]:.0%})" if key in shares else ""
        axes.set_title(f"{key}{share}", loc="left", fontsize=9, color=INK)
        if place % ACROSS == 1 or columns == 1:
            axes.set_ylabel(label, color=INK, fontsize=9)
        _dress(axes)
    _save(figure, path)


def _scale(axes: Axes, dimension: Range) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if dimension.log:
        decades = math.log10(dimension.max / dimension.min)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 3 else (1.0, 3.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif dimension.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _listed(axes: Axes, values: Sequence[Any], trials: Sequence[tuple[str, Trial]]) -> None:
    names = [canonical(value) for value in values]
    _points(axes, [(names.index(name), trial) for name, trial in trials])
    for index, name in enumerate(names):
        reached = [trial.value for other, trial in trials if other == name and trial.state == "finished"]
        found = [value for value in reached if value is not None]
        if found:
            axes.hlines(sum(found) / len(found), index - 0.25, index + 0.25, color=GREEN, linewidth=2)
    axes.set_xticks(range(len(values)), [value if isinstance(value, str) else dumps(value) for value in values])
    axes.set_xlim(-0.5, len(values) - 0.5)
    if sum(len(dumps(value)) for value in values) > 30:
        axes.tick_params(axis="x", rotation=20)


def _points(axes: Axes, trials: Sequence[tuple[float, Trial]]) -> None:
    for state, face, edge in (("finished", BLUE, BLUE), ("pruned", "none", GREY)):
        chosen = [(x, trial.value) for x, trial in trials if trial.state == state]
        if chosen:
            x, y = zip(*chosen, strict=True)
            axes.scatter(x, y, s=22, facecolors=face, edgecolors=edge, label=state, zorder=3)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _dress(axes: Axes) -> None:
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0, labelsize=8)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(FAINT)


def _save(figure: Figure, path: SafePath) -> None:
    picture = BytesIO()
    figure.savefig(picture, format="png")
    atomic.write_bytes(path, picture.getvalue())
