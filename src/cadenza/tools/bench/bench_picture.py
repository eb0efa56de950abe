"""Draw the result of a bench: bars for the medians, lines for the spread, a panel for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.lab.charts import save
from cadenza.lab.svg_charts import BLUE, FAINT, GREY, INK
from cadenza.tools.bench.contestants import CADENZA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALE_BLUE, PALE_GREY, QUIET = "#bfdbfe", "#e5e7eb", "#6b7280"
ROW, HEAD, WIDTH = 0.34, 0.95, 9.0  # inches: height of a bar, of the rest of a panel, width of the picture


@dataclass(frozen=True)
class Panel:
    """The bars of one figure of one task."""

    title: str
    subtitle: str
    figure: str
    steady: str | None  # the figure of a second, paler bar behind the first
    outcome: Mapping[str, Any]
    more_is_better: bool = True

    @property
    def names(self) -> list[str]:
        """Contestants that have the figure, the best first."""
        summary = self.outcome["summary"]
        measured = [name for name in summary if median(summary[name], self.figure) is not None]
        return sorted(measured, key=lambda name: median(summary[name], self.figure) or 0.0, reverse=self.more_is_better)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Write the picture as PNG, unless nothing was measured."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    pictured = [panel for panel in panels(result) if panel.names]
    if not pictured:
        return
    heights = [HEAD + ROW * len(panel.names) for panel in pictured]
    room = ConstrainedLayoutEngine(h_pad=0.14, w_pad=0.1)
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.35), dpi=150, layout=room)
    grid = figure.subplots(len(pictured), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, panel in zip(grid[:, 0], pictured, strict=True):
        bars(axes, panel)
        dress(axes, panel)
    machine = result["machine"]
    foot = "medians of rounds in turn, lines from worst to best · "
    figure.supxlabel(
        f"{foot}{machine['cpu']}, {machine['cores']} cores",
        fontsize=7.5,
        color=QUIET,
        x=0.01,
        horizontalalignment="left",
    )
    save(figure, path)


def panels(result: Mapping[str, Any]) -> list[Panel]:
    """Return a panel of speeds for each task, and one of times to solve it where the task has a goal."""
    entries = []
    for name, outcome in result["tasks"].items():
        task = outcome["task"]
        work = f"{task['env']}, {task['work']}, {task['threads']} thread"
        work += "s" if task["threads"] > 1 else ""
        speed = f"{work}: env_steps per second of training; pale: once warm"
        entries.append(Panel(name, speed, "env_steps_per_s", "steady_env_steps_per_s", outcome))
        if task["solved_at"] is not None:
            until = f"until 100 episodes have a mean of {task['solved_at']:g}"
            goal = f"{task['env']}, the same: seconds from starting the process {until}"
            never = [peer for peer, figures in outcome["summary"].items() if median(figures, "solved_s") is None]
            goal += f"; never: {', '.join(never)}" if never else ""
            entries.append(Panel(f"{name}, time to solved", goal, "solved_s", None, outcome, more_is_better=False))
    return entries


def bars(axes: Axes, panel: Panel) -> None:
    """Draw and label a bar for each contestant."""
    summary, ratios = panel.outcome["summary"], panel.outcome["ratios"]
    for row, name in enumerate(panel.names):
        ours, figures = name == CADENZA.name, summary[name]
        steady = median(figures, panel.steady) if panel.steady else None
        middle, low, high = (figures[panel.figure][key] for key in ("median", "min", "max"))
        if steady is not None:
            axes.barh(row, steady, height=0.72, color=PALE_BLUE if ours else PALE_GREY, linewidth=0)
        axes.barh(row, middle, height=0.72 if steady is None else 0.44, color=BLUE if ours else GREY, linewidth=0)
        if high is not None and high > low:
            axes.plot([low, high], [row, row], color=INK, linewidth=1.1, solid_capstyle="butt")
        text = f"{middle:,.0f}" if middle >= 10 else f"{middle:.3g}"
        text = text if panel.more_is_better else f"{middle:.1f} s"
        ratio = ratios.get(name, {}).get(panel.figure)
        if ratio is not None:
            text += f"   cadenza {ratio if panel.more_is_better else 1 / ratio:.1f}x"
        warm = ratios.get(name, {}).get(panel.steady)
        if warm is not None:
            text += f", warm {warm:.1f}x"
        place = (max(middle, steady or 0.0, high or 0.0), row)
        axes.annotate(
            text,
            place,
            xytext=(6, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=8.5,
            color=INK if ours else QUIET,
            fontweight="bold" if ours else "normal",
        )


def dress(axes: Axes, panel: Panel) -> None:
    """Draw titles, names and the axis."""
    names = panel.names
    axes.set_title(panel.title, loc="left", fontsize=11, color=INK, fontweight="bold", pad=20)
    axes.text(0, 1, panel.subtitle, transform=axes.transAxes, fontsize=8, color=QUIET, verticalalignment="bottom")
    axes.set_yticks(range(len(names)), [label(panel.outcome["measurements"], name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.75)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.28)  # room for the label of the longest bar
    axes.xaxis.set_visible(False)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "left")
        spine.set_color(FAINT)
    for tick, name in zip(axes.get_yticklabels(), names, strict=True):
        tick.set_fontweight("bold" if name == CADENZA.name else "normal")


def label(measurements: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the name with the version of its package."""
    versions = next(row["versions"] for row in measurements if row["contestant"] == name and "versions" in row)
    return f"{name} {next((text for package, text in versions.items() if package != 'python'), '')}"


def median(figures: Mapping[str, Any], figure: str) -> float | None:
    """Return the median of a figure, or None if it was not measured."""
    return None if figures[figure] is None else figures[figure]["median"]
