"""The common look of plots: colours, axes, and figures written as images or embedded in a page."""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from typing import TYPE_CHECKING

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.text import printable
from cadenza.lab.svg_charts import FAINT, INK, Chart

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def save(figure: Figure, path: Path | SafePath) -> None:
    """Write a figure; the suffix of the path names the format: .png, .svg or .pdf."""
    from matplotlib import rc_context

    kind, image = path.suffix.lower().removeprefix("."), BytesIO()
    with rc_context({"svg.hashsalt": "cadenza"}):  # the same figure is the same file
        figure.savefig(image, format=kind, metadata={"Date": None} if kind == "svg" else None)
    atomic.write_bytes(path, image.getvalue())


def write_chart(chart: Chart, path: SafePath) -> None:
    """Write a chart as an image that a hub shows, which is no SVG: with matplotlib, in the format of the suffix."""
    from matplotlib.ticker import EngFormatter

    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    for curve in chart.curves:
        label, style = curve.label, "--" if curve.is_dashed else "-"
        if curve.is_area:
            axes.fill(*zip(*curve.points, strict=True), color=curve.colour, alpha=0.15, linewidth=0, label=label)
        elif curve.points:
            axes.plot(*zip(*curve.points, strict=True), style, color=curve.colour, linewidth=curve.width, label=label)
            label = ""
        if curve.marks:
            fill = curve.colour if curve.is_filled else "none"
            axes.plot(*zip(*curve.marks, strict=True), "o", color=curve.colour, mfc=fill, ms=curve.radius, label=label)
    # a dollar sign in the title is no formula
    axes.set_title(printable(chart.title), loc="left", fontsize=12, color=INK, pad=10, parse_math=False)
    axes.set_xlabel(chart.x_label, color=INK)
    axes.set_ylabel(chart.y_label, color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.margins(y=0.08)
    style_axes(axes)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    save(figure, path)


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
    return drawing.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
