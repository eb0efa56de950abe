"""Charts drawn as SVG text."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from cadenza.lab.svg_charts import BLUE, INK, POINTS, Chart, Line, learning_curve, svg, thinned, ticks


@pytest.mark.parametrize(
    ("low", "high", "units", "texts"),
    [
        (0, 100_000, True, ["0", "20k", "40k", "60k", "80k", "100k"]),
        (0, 2_500_000, True, ["0.0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M"]),
        (-0.013, 0.029, False, ["-0.01", "0.00", "0.01", "0.02"]),
        (9.3, 529.7, False, ["200", "400"]),
        (1000.01, 1000.05, False, ["1,000.01", "1,000.02", "1,000.03", "1,000.04", "1,000.05"]),
        (0, 1.0, True, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (1e12, 1e12 + 4, False, [f"{10**12 + step}" for step in range(5)]),
    ],
)
def test_ticks_are_round_and_differ(low: float, high: float, units: bool, texts: list[str]) -> None:
    assert [tick.text for tick in ticks(low, high, 5, units)] == texts


@pytest.mark.parametrize(
    "points", [[(0, 5.0)], [(0, 0.0)], [(1, -1e30), (2, 1e30)], [(10, 1e-9), (20, 2e-9)], [(0, 0.0), (1, 5e-323)]]
)
def test_any_numbers_become_an_image(points: list[tuple[float, float]]) -> None:
    text = svg([Chart("a <b> & $c", [Line(points, BLUE, "x", marks=points)])])
    assert "nan" not in text
    assert "a <b> & $c" in "".join(ElementTree.fromstring(text).itertext())


def test_a_long_curve_keeps_its_extremes_and_its_order() -> None:
    points = [(step, math.sin(step)) for step in range(100_000)]
    points[70_001] = (70_001, 9.0)
    few = thinned(points)
    assert len(few) <= POINTS + 2
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert (70_001, 9.0) in few
    assert few == sorted(few)


def test_a_page_gives_its_own_colours() -> None:
    chart = Chart("title", [Line([(0, 0.0), (1, 1.0)], BLUE)])
    assert INK in svg([chart])
    page = svg([chart, chart], columns=2, page=True)
    assert INK not in page
    assert 'viewBox="0 0 1536 432"' in page


def test_a_threshold_that_cannot_be_drawn_is_left_out() -> None:
    rows = [{"env_steps": 1, "eval/return_mean": 1.0}]
    for threshold, count in ((475.0, 3), (1.7e308, 2), (None, 2)):
        chart = learning_curve(rows, "title", threshold)
        assert chart is not None
        assert len(chart.curves) == count
