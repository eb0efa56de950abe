"""The learning curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.records import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, GREY, GREEN = "#2563eb", "#9ca3af", "#059669"
INK, FAINT = "#1f2937", "#e5e7eb"


def draw(rows: Sequence[dict[str, Any]], path: Path, title: str, threshold: float | None = None) -> bool:
    """Evaluation mean with its spread, over training returns; False when there is no return to draw."""
    trained = _points(rows, "collect/return_mean")
    evaluated = [row for row in rows if row.get("eval/return_mean") is not None]
    if not trained and not evaluated:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if trained:
        axes.plot(*zip(*trained, strict=True), color=GREY, linewidth=1.2, label="training episodes, mean")
    if evaluated:
        _evaluations(axes, evaluated)
    if threshold is not None:
        axes.axhline(threshold, color=GREEN, linewidth=1, linestyle=(0, (4, 3)), label=f"solved ({threshold:g})")
    _dress(axes, title)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    atomic.write_bytes(path, picture.getvalue())
    return True


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

    axes.set_title(title, loc="left", fontsize=12, color=INK, pad=10)
    axes.set_xlabel("env_steps", color=INK)
    axes.set_ylabel("return of an episode", color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(y=0.08)
    axes.tick_params(colors=INK, length=0)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(FAINT)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")


def _points(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(row["env_steps"], row[key]) for row in rows if row.get(key) is not None]
