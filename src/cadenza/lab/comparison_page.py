"""The interactive page of a comparison: one HTML file that contains its data and script and loads nothing."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.base import atomic
from cadenza.base.json_text import dumps
from cadenza.lab.compare import AXES, Comparison, profiles
from cadenza.lab.html import STYLE
from cadenza.lab.plots import AXIS_NAMES, look, marker_of
from cadenza.lab.series import Series

SEED_POINTS = 500  # largest number of points of a seed's curve, so that the file can be sent by mail
LINE_WIDTH = 2.5  # of a curve in the script
SCRIPTS = ("plot.js", "comparison_page.js")
START = 'showComparison(JSON.parse(document.getElementById("data").textContent), document.getElementById("page"));\n'
LAYOUT = """
body { max-width: 76rem; }
.controls { display: flex; flex-wrap: wrap; gap: .5rem 1.4rem; align-items: center; margin: 1rem 0; }
.legend button { border: 0; background: none; font: inherit; cursor: pointer; padding: .1rem .5rem .1rem 0; }
.legend button.off { opacity: .35; text-decoration: line-through; }
.legend i { display: inline-block; width: 2.2rem; margin-right: .4rem; vertical-align: middle; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem 1.5rem; }
figure { margin: 0; position: relative; } figcaption { font-weight: 500; margin-bottom: .2rem; }
svg { width: 100%; height: auto; display: block; touch-action: none; user-select: none; }
svg text { font-size: 12px; fill: #1f2937; }
.grid { stroke: #e5e7eb; } .mark { stroke: #6b7280; } .pull { fill: #0b5cad; opacity: .12; }
.tip { position: absolute; pointer-events: none; background: #fff; border: 1px solid #9ca3af; border-radius: .3rem; }
.tip { padding: .35rem .6rem; font-size: 13px; line-height: 1.4; white-space: nowrap; z-index: 1; }
table { margin: .5rem 0 1rem; font-size: 15px; } td { font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } .note { color: #92400e; }
"""


def write_page(result: Comparison, path: Path, axis: str) -> None:
    """Write the page; it shows `axis` at first."""
    parts = [files("cadenza.lab").joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = "".join(parts) + START
    title = "Comparison: " + ", ".join(result.environments)
    data = dumps(content(result, axis)).replace("<", "\\u003c")  # no text in the data can end the element
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = f'<h1>{escape(title)}</h1>\n<main id="page"></main>\n<noscript>This page needs JavaScript.</noscript>'
    page = f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}{LAYOUT}</style></head>\n<body>\n{body}\n'
    page += f'<script type="application/json" id="data">{data}</script>\n<script>\n{script}</script>\n</body></html>\n'
    atomic.write_text(path, page)


def content(result: Comparison, axis: str) -> dict[str, Any]:
    """Return everything that the page can show."""
    plain = result.plain(axis)
    for series, entry in zip(result.series, plain["series"], strict=True):
        entry["curves"] = {metric: _curves(result, series, metric) for metric in result.metrics}
    plain["labels"] = [{"label": label, **_look(result, label)} for label in result.labels]
    plain["axes"] = {name: AXIS_NAMES[name] for name in AXES if name == axis or _has_points(plain, name)}
    plain["profiles"] = {metric: _profiles(result, metric) for metric in result.metrics}
    plain["environments"] = result.environments
    plain["notes"] = result.notes_along("time")  # the reader can select that axis
    return plain


def _look(result: Comparison, label: str) -> dict[str, str]:
    """Return the colour of a label, its dashes as SVG's `stroke-dasharray`, and the marker of a curve of one point."""
    style = look(result, label)
    dashes = () if style["linestyle"] == "-" else style["linestyle"][1]
    strokes = " ".join(f"{LINE_WIDTH * length:g}" for length in dashes)
    return {"colour": style["color"], "dash": strokes or "none", "marker": marker_of(result, label, 1)}


def _curves(result: Comparison, series: Series, metric: str) -> dict[str, Any]:
    curves = {axis: result.curve(series, metric, axis) for axis in AXES}
    return {
        axis: {
            "x": curve.x,
            "y": curve.middle,
            "low": curve.low,
            "high": curve.high,
            "seeds": [_thin(x, y) for x, y in curve.seeds],
        }
        for axis, curve in curves.items()
        if curve is not None
    }


def _thin(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return at most SEED_POINTS points of a curve, equally spaced."""
    index = np.unique(np.linspace(0, len(x) - 1, min(len(x), SEED_POINTS)).astype(int))
    return {"x": x[index], "y": y[index]}


def _has_points(plain: dict[str, Any], axis: str) -> bool:
    """Return whether some curve extends along an axis; not every algorithm counts updates, for example."""
    curves = [curves[axis] for one in plain["series"] for curves in one["curves"].values() if axis in curves]
    return any(len(curve["x"]) > 1 and curve["x"][-1] > curve["x"][0] for curve in curves)


def _profiles(result: Comparison, metric: str) -> dict[str, Any]:
    lines = {
        label: {"y": share, "low": low, "high": high} for label, (share, low, high) in profiles(result, metric).items()
    }
    return {"x": result.thresholds(metric), "lines": lines}
