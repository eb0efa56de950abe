"""The charts of a run, and the look that all charts share: colours, axes, image files, drawings for a page.

The charts are the learning curve, and panels of what the updates measured.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from io import BytesIO
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.text import printable
from cadenza.records.metrics import is_point

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY, GREEN = "#2563eb", "#9ca3af", "#059669"
INK, FAINT = "#1f2937", "#e5e7eb"
POINTS = 2000  # of a line: more than a picture has columns
MARKED = 500  # evaluations with a mark each
PANELS, COLUMNS = 8, 4  # of the metrics of updates: how many at most, and how many in a row


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def style_axes(axes: Axes, label_size: float | None = None, spines: str = FAINT) -> None:
    """Give axes a faint grid behind the data and lines at the left and the bottom only."""
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    if label_size is not None:
        axes.tick_params(labelsize=label_size)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(spines)


def write_learning_curve(
    rows: Sequence[dict[str, Any]], path: SafePath, title: str, threshold: float | None = None
) -> bool:
    """Write the learning curve; return False, and write nothing, if no return was measured."""
    figure = learning_curve(rows, title, threshold)
    if figure is None:
        return False
    save(figure, path)
    return True


def learning_curve(rows: Sequence[dict[str, Any]], title: str, threshold: float | None = None) -> Figure | None:
    """Return the learning curve: evaluations with their spread, over the returns of training; None without either."""
    collected = _points(rows, "collect/return_mean")
    evaluated = [row for row in rows if is_point(row.get("eval/return_mean"))]
    if not collected and not evaluated:
        return None
    from matplotlib.ticker import EngFormatter

    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    if collected:
        axes.plot(*zip(*collected, strict=True), color=GREY, linewidth=1.2, label="training episodes, mean")
    if evaluated:
        _evaluations(axes, evaluated)
    if threshold is not None:
        axes.axhline(threshold, color=GREEN, linewidth=1, linestyle=(0, (4, 3)), label=f"solved ({threshold:g})")
    # a dollar sign in the title is no formula
    axes.set_title(printable(title), loc="left", fontsize=12, color=INK, pad=10, parse_math=False)
    axes.set_xlabel("env_steps", color=INK)
    axes.set_ylabel("return of an episode", color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.margins(y=0.08)
    style_axes(axes)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    return figure


def update_panels(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """Return a small panel for each metric of the updates, as far as there is room; None without any."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name.startswith("train/")]
    panels = [(name, points) for name in names if len(points := _points(rows, name)) > 1][:PANELS]
    if not panels:
        return None
    from matplotlib.ticker import EngFormatter

    lines = math.ceil(len(panels) / COLUMNS)
    figure = new_figure(8, 1.75 * lines)
    for place, (name, points) in enumerate(panels, 1):
        axes = figure.add_subplot(lines, COLUMNS, place)
        axes.plot(*zip(*points, strict=True), color=BLUE, linewidth=1.2)
        axes.set_title(printable(name.removeprefix("train/")), loc="left", fontsize=8, color=INK, parse_math=False)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.locator_params(nbins=4)
        style_axes(axes, label_size=7)
    return figure


def _evaluations(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    best = max(rows, key=lambda row: (row["eval/return_mean"], row["env_steps"]))  # of equals the latest
    if len(rows) > POINTS:
        rows = [*rows[:: -(-len(rows) // POINTS)], rows[-1]]
    spread = [row for row in rows if is_point(row.get("eval/return_min")) and is_point(row.get("eval/return_max"))]
    if spread:
        axes.fill_between(
            [row["env_steps"] for row in spread],
            [row["eval/return_min"] for row in spread],
            [row["eval/return_max"] for row in spread],
            color=BLUE,
            alpha=0.15,
            linewidth=0,
            label="evaluation, worst to best episode",
        )
    line = [(row["env_steps"], row["eval/return_mean"]) for row in rows]
    mark = {"marker": "o", "markersize": 4} if len(line) <= MARKED else {}
    axes.plot(*zip(*line, strict=True), color=BLUE, linewidth=2, label="evaluation, mean", **mark)
    place = (best["env_steps"], best["eval/return_mean"])
    (ring,) = axes.plot(*place, "o", markersize=9, color=BLUE, label="evaluation, best")
    ring.set_markerfacecolor("none")


def _points(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    points = [(row["env_steps"], row[key]) for row in rows if is_point(row.get(key))]
    if len(points) <= POINTS:
        return points
    share = -(-2 * len(points) // POINTS)  # points of which the lowest and the highest are drawn
    parts = (points[begin : begin + share] for begin in range(0, len(points), share))
    ends = ((min(part, key=itemgetter(1)), max(part, key=itemgetter(1))) for part in parts)
    return [points[0], *(point for pair in ends for point in sorted(pair)), points[-1]]


def save(figure: Figure, path: Path | SafePath) -> None:
    """Write a figure; the suffix of the path names the format: .png, .svg or .pdf."""
    from matplotlib import rc_context

    kind, image = path.suffix.lower().removeprefix("."), BytesIO()
    with rc_context({"svg.hashsalt": "cadenza"}):  # the same figure is the same file
        figure.savefig(image, format=kind, metadata={"Date": None} if kind == "svg" else None)
    atomic.write_bytes(path, image.getvalue())


def as_svg(figure: Figure) -> str:
    """Return a figure as SVG to embed in an HTML page: transparent, in the page's colours."""
    from matplotlib import rc_context

    figure.set_facecolor("none")
    for axes in figure.axes:
        axes.set_facecolor("none")
    text = BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "cadenza", "text.parse_math": False}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawing = text.getvalue().decode()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    salt = hashlib.sha256(drawing.encode()).hexdigest()[:8]  # ids must differ from those of another drawing on the page
    drawing = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{salt}-", drawing)
    shades = {INK: "var(--ink)", FAINT: "var(--faint)", BLUE: f"var(--blue, {BLUE})", GREEN: f"var(--green, {GREEN})"}
    for colour, shade in shades.items():
        drawing = drawing.replace(colour, shade)
    return drawing
