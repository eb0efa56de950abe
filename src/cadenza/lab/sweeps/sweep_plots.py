"""The plots of a sweep: the values of its trials in order, and each setting against the values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cadenza.base.files import SafePath
from cadenza.base.json_text import canonical, dumps
from cadenza.lab.charts import new_figure, save, style_axes
from cadenza.lab.svg_charts import BLUE, GREEN, GREY, INK
from cadenza.lab.sweeps.journal import Trial
from cadenza.lab.sweeps.space import Dimension, Range

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3  # largest number of panels in a row
LABEL_SIZE = 8


def draw_history(trials: Sequence[Trial], path: SafePath, label: str, sign: int) -> None:
    """Draw the value of every trial, and the best value so far."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(8, 4)
    axes = figure.add_subplot()
    _draw_points(axes, [(trial.number, trial) for trial in trials])
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
    style_axes(axes, LABEL_SIZE)
    save(figure, path)


def draw_parameters(
    trials: Sequence[Trial],
    dimensions: Mapping[str, Dimension],
    shares: Mapping[str, float],
    path: SafePath,
    label: str,
) -> None:
    """Draw a panel for each setting, the most important first; a bar marks the mean of each value of a list."""
    keys = [*shares, *(key for key in dimensions if key not in shares)]
    columns = min(COLUMNS, len(keys))
    rows = math.ceil(len(keys) / columns)
    figure = new_figure(3.4 * columns + 0.6, 3 * rows)
    for index, key in enumerate(keys):
        axes = figure.add_subplot(rows, columns, index + 1)
        dimension = dimensions[key]
        if isinstance(dimension, Range):
            _draw_points(axes, [(trial.params[key], trial) for trial in trials])
            _set_scale(axes, dimension)
        else:
            _draw_choices(axes, dimension.values, [(canonical(trial.params[key]), trial) for trial in trials])
        share = f"  ({shares[key]:.0%})" if key in shares else ""
        axes.set_title(f"{key}{share}", loc="left", fontsize=9, color=INK)
        if index % columns == 0:
            axes.set_ylabel(label, color=INK, fontsize=9)
        style_axes(axes, LABEL_SIZE)
    save(figure, path)


def _set_scale(axes: Axes, dimension: Range) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if dimension.log:
        decades = math.log10(dimension.max / dimension.min)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 3 else (1.0, 3.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif dimension.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_choices(axes: Axes, values: Sequence[Any], trials: Sequence[tuple[str, Trial]]) -> None:
    names = [canonical(value) for value in values]
    _draw_points(axes, [(names.index(name), trial) for name, trial in trials])
    for index, name in enumerate(names):
        finished = [trial.value for other, trial in trials if other == name and trial.state == "finished"]
        results = [value for value in finished if value is not None]
        if results:
            axes.hlines(fmean(results), index - 0.25, index + 0.25, color=GREEN, linewidth=2)
    axes.set_xticks(range(len(values)), [value if isinstance(value, str) else dumps(value) for value in values])
    axes.set_xlim(-0.5, len(values) - 0.5)
    if sum(len(dumps(value)) for value in values) > 30:
        axes.tick_params(axis="x", rotation=20)


def _draw_points(axes: Axes, trials: Sequence[tuple[float, Trial]]) -> None:
    for state, face, edge in (("finished", BLUE, BLUE), ("pruned", "none", GREY)):
        points = [(x, trial.value) for x, trial in trials if trial.state == state]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=22, facecolors=face, edgecolors=edge, label=state, zorder=3)
