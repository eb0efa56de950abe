"""The learning curve of a run as a picture."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY, GREEN = "#2563eb", "#9ca3af", "#059669"
INK, FAINT = "#1f2937", "#e5e7eb"
PANELS, COLUMNS = 8, 4  # of what updates measured


def draw(rows: Sequence[dict[str, Any]], path: SafePath, title: str, threshold: float | None = None) -> bool:
    """Write the learning curve as PNG; False when there is no return to draw."""
    figure = learning(rows, title, threshold)
    if figure is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    atomic.write_bytes(path, picture.getvalue())
    return True


def learning(rows: Sequence[dict[str, Any]], title: str, threshold: float | None = None) -> Figure | None:
    """Evaluation mean with its spread, over training returns."""
    trained = _points(rows, "collect/return_mean")
    evaluated = [row for row in rows if row.get("eval/return_mean") is not None]
    if not trained and not evaluated:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if trained:
        axes.plot(*zip(*trained, strict=True), color=GREY, linewidth=1.2, label="training episodes, mean")
    if evaluated:
        _evaluations(axes, evaluated)
    if threshold is not None:
        axes.axhline(threshold, color=GREEN, linewidth=1, linestyle=(0, (4, 3)), label=f"solved ({threshold:g})")
    _dress(axes, title)
    return figure


def training(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """What updates measured, a small panel each."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name.startswith("train/")]
    drawn = [(name, points) for name in names if len(points := _points(rows, name)) > 1][:PANELS]
    if not drawn:
        return None
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    lines = -(-len(drawn) // COLUMNS)
    figure = Figure(figsize=(8, 1.75 * lines), dpi=150, layout="constrained")
    for place, (name, points) in enumerate(drawn):
        axes = figure.add_subplot(lines, COLUMNS, place + 1)
        axes.plot(*zip(*points, strict=True), color=BLUE, linewidth=1.2)
        axes.set_title(printable(name.removeprefix("train/")), loc="left", fontsize=8, color=INK, parse_math=False)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.locator_params(nbins=4)
        _plain(axes)
        axes.tick_params(colors=INK, length=0, labelsize=7)
    return figure


def as_svg(figure: Figure) -> str:
    """The figure for inside an HTML page, on whose background it stands and whose ink it takes."""
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
    salt = hashlib.sha256(drawing.encode()).hexdigest()[:8]  # names of parts are not to meet those of another drawing
    drawing = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{salt}-", drawing)
    return drawing.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")


def _evaluations(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    steps = [row["env_steps"] for row in rows]
    means = [row["eval/return_mean"] for row in rows]
    spread = [row for row in rows if row.get("eval/return_min") is not None and row.get("eval/return_max") is not None]
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
    axes.plot(steps, means, color=BLUE, linewidth=2, marker="o", markersize=4, label="evaluation, mean")
    best = max(range(len(means)), key=means.__getitem__)
    axes.plot(steps[best], means[best], marker="o", markersize=9, markerfacecolor="none", color=BLUE)


def _dress(axes: Axes, title: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_title(
        printable(title), loc="left", fontsize=12, color=INK, pad=10, parse_math=False
    )  # a dollar is a dollar
    axes.set_xlabel("env_steps", color=INK)
    axes.set_ylabel("return of an episode", color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.margins(y=0.08)
    axes.tick_params(colors=INK, length=0)
    _plain(axes)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")


def _plain(axes: Axes) -> None:
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(FAINT)


def _points(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(row["env_steps"], row[key]) for row in rows if row.get(key) is not None]
