"""The common look of plots: colours, axes, and figures written as images or embedded in a page."""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from typing import TYPE_CHECKING

from cadenza.base import atomic
from cadenza.base.files import SafePath

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY, GREEN = "#2563eb", "#9ca3af", "#059669"
INK, FAINT = "#1f2937", "#e5e7eb"


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
