"""Line charts as SVG text: the learning curve of a run, panels of what its updates measured.

No plotting library draws them: importing one took a fifth of the time of a short run, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from typing import Any

from cadenza.base.text import printable
from cadenza.records.metrics import is_point

BLUE, GREY, GREEN = "#2563eb", "#9ca3af", "#059669"
INK, FAINT = "#1f2937", "#e5e7eb"
PANELS, COLUMNS = 8, 4  # of the metrics of updates: how many at most, and how many in a row
POINTS = 2_000  # of a curve: more than a picture has columns
SMALLEST = 1e-300  # half of the range of an axis, at least: smaller numbers lose their digits
MARKED = 500  # evaluations with a mark each
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
CHARACTER = 0.52  # width of one, in font sizes

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A line through points (x, y), or the area that they surround; `marks` are circles on it."""

    points: Points
    colour: str
    label: str = ""
    width: float = 1.5
    is_area: bool = False
    is_dashed: bool = False
    marks: Points = ()
    radius: float = 3.5
    is_filled: bool = True


@dataclass(frozen=True)
class Chart:
    """Curves over an axis from 0, with their legend in a line below the title."""

    title: str
    curves: Sequence[Line]
    x_label: str = ""
    y_label: str = ""
    width: float = 768
    height: float = 432
    font: float = 13


def learning_curve(rows: Sequence[dict[str, Any]], title: str, threshold: float | None = None) -> Chart | None:
    """Return the learning curve: evaluations with their spread, over the returns of training; None without either."""
    collected = _points(rows, "collect/return_mean")
    evaluated = _points(rows, "eval/return_mean")
    if not collected and not evaluated:
        return None
    curves = [Line(collected, GREY, "training episodes, mean")] if collected else []
    lows, highs = _points(rows, "eval/return_min"), _points(rows, "eval/return_max")
    if evaluated and lows and highs:
        around = (*thinned(lows), *reversed(thinned(highs)))
        curves.append(Line(around, BLUE, "evaluation, worst to best episode", is_area=True))
    if evaluated:
        curves.append(
            Line(evaluated, BLUE, "evaluation, mean", width=2, marks=evaluated if len(evaluated) <= MARKED else ())
        )
        best = max(evaluated, key=lambda point: (point[1], point[0]))  # of equals the latest, as in checkpoints
        curves.append(Line((), BLUE, "evaluation, best", marks=(best,), radius=7, is_filled=False))
    if is_point(threshold):
        end = max(x for x, _ in (*collected, *evaluated))
        curves.append(Line(((0, threshold), (end, threshold)), GREEN, f"solved ({threshold:g})", is_dashed=True))
    return Chart(title, curves, "env_steps", "return of an episode")


def update_panels(rows: Sequence[dict[str, Any]]) -> list[Chart]:
    """Return a small chart for each metric of the updates, as far as there is room."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name.startswith("train/")]
    panels = [(name, points) for name in names if len(points := _points(rows, name)) > 1][:PANELS]
    return [
        Chart(name.removeprefix("train/"), [Line(points, BLUE)], width=240, height=168, font=10)
        for name, points in panels
    ]


def _points(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(row["env_steps"], row[key]) for row in rows if is_point(row.get(key))]


def svg(charts: Sequence[Chart], columns: int = 1, page: bool = False) -> str:
    """Return charts of one size side by side as an image; for a `page`, transparent and in the page's colours."""
    width, height = charts[0].width, charts[0].height
    size = (width * min(columns, len(charts)), height * math.ceil(len(charts) / columns))
    text = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:g} {size[1]:g}" '
    text += f'width="{size[0]:g}" height="{size[1]:g}" font-family="system-ui, sans-serif" fill="{INK}">\n'
    text += "" if page else '<rect width="100%" height="100%" fill="#fff"/>\n'
    for index, chart in enumerate(charts):
        row, column = divmod(index, columns)
        text += f'<g transform="translate({column * width:g} {row * height:g})">\n{"".join(_chart(chart))}</g>\n'
    text += "</svg>\n"
    return text.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)") if page else text


def _chart(chart: Chart) -> Iterator[str]:
    """Yield the elements of a chart: title and legend, grid with its numbers, curves."""
    font = chart.font
    places = [place for curve in chart.curves for place in (*curve.points, *curve.marks)]
    end = max(x for x, _ in places) or 1.0
    low, high = min(y for _, y in places), max(y for _, y in places)
    margin = max(0.08 * (high - low) or 0.1 * abs(high) or 1.0, SMALLEST)
    low, high = low - margin, high + margin
    left, right = font * 4.6 + (font * 1.6 if chart.y_label else 0), chart.width - font
    top = font * (4.2 if any(curve.label for curve in chart.curves) else 2.4)
    bottom = chart.height - font * (3.8 if chart.x_label else 2.2)

    def across(x: float) -> float:
        return left + x / end * (right - left)

    def down(y: float) -> float:
        return bottom - (y - low) / (high - low) * (bottom - top)

    def words(x: float, y: float, text: str, anchor: str = "start", size: float = font, more: str = "") -> str:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}"{more}'
        return f"<text {place}>{escape(printable(text))}</text>\n"

    yield words(left, font * 1.5, chart.title, size=font * 1.15)
    position, middle = font, 3 * font
    for curve in chart.curves:
        if curve.label:
            yield _swatch(curve, position, middle, font)
            yield words(position + 2 * font, middle + 0.3 * font, curve.label, size=0.8 * font)
            position += 2.7 * font + CHARACTER * 0.8 * font * len(curve.label)
    for tick in ticks(low, high, (bottom - top) / (3 * font)):
        yield f'<path d="M{left:.1f} {down(tick.value):.1f}H{right:.1f}" stroke="{FAINT}"/>\n'
        yield words(left - 0.5 * font, down(tick.value) + 0.35 * font, tick.text, "end", 0.85 * font)
    for tick in ticks(0, end, (right - left) / (6 * font), units=True):
        yield f'<path d="M{across(tick.value):.1f} {bottom:.1f}V{top:.1f}" stroke="{FAINT}"/>\n'
        yield words(across(tick.value), bottom + 1.3 * font, tick.text, "middle", 0.85 * font)
    if chart.x_label:
        yield words((left + right) / 2, chart.height - 0.8 * font, chart.x_label, "middle", 0.95 * font)
    if chart.y_label:
        x, y = 1.2 * font, (top + bottom) / 2
        yield words(x, y, chart.y_label, "middle", 0.95 * font, f' transform="rotate(-90 {x:.1f} {y:.1f})"')
    for curve in chart.curves:
        points = curve.points if curve.is_area else thinned(curve.points)
        path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in points)
        if curve.is_area:
            yield f'<path d="M{path}Z" fill="{curve.colour}"{_faint(curve)}/>\n'
        elif path:
            dashes = ' stroke-dasharray="6 4"' if curve.is_dashed else ""
            yield f'<path d="M{path}" fill="none" stroke="{curve.colour}" stroke-width="{curve.width:g}"{dashes}/>\n'
        for x, y in thinned(curve.marks):
            yield _circle(curve, across(x), down(y), curve.radius)


def _swatch(curve: Line, x: float, y: float, font: float) -> str:
    if not curve.points:
        return _circle(curve, x + 0.8 * font, y, 0.4 * font)
    height = 0.6 * font if curve.is_area else curve.width
    place = f'x="{x:.1f}" y="{y - height / 2:.1f}" width="{1.6 * font:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{curve.colour}"{_faint(curve)}/>\n'


def _circle(curve: Line, x: float, y: float, radius: float) -> str:
    fill = curve.colour if curve.is_filled else "none"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{curve.colour}"/>\n'


def _faint(curve: Line) -> str:
    return ' fill-opacity="0.15"' if curve.is_area else ""


@dataclass(frozen=True)
class Tick:
    value: float
    text: str


def ticks(low: float, high: float, most: float, units: bool = False) -> list[Tick]:
    """Return at most about `most` round numbers between two; with `units`, thousands and more as k, M and G."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most or factor == 10)
    values = [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
    unit, letter = next((pair for pair in UNITS if units and high >= pair[0]), (1.0, ""))
    digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    size = max(abs(low), abs(high))
    needed = math.ceil(math.log10(max(size / step, 10.0))) + 1  # digits that tell two ticks apart
    form = f",.{digits}f" if digits < 7 and size < 1e9 else f".{min(17, max(3, needed))}g"
    return [Tick(value, f"{value / unit:{form}}{letter if value else ''}") for value in values]


def thinned(points: Points) -> Points:
    """Return a curve's ends with the lowest and the highest point of `POINTS` / 2 pieces, where it has more points."""
    if len(points) <= POINTS:
        return points
    piece = math.ceil(2 * len(points) / POINTS)
    parts = (points[start : start + piece] for start in range(0, len(points), piece))
    ends = ((min(part, key=itemgetter(1)), max(part, key=itemgetter(1))) for part in parts)
    return [points[0], *(point for pair in ends for point in sorted(pair)), points[-1]]
