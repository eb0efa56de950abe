from __future__ import annotations

import math

import pytest

from cadenza.base.formatting import ASCII, duration, number, sparkline


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([5.0], "▅"),
        ([1.0, 1.0], "▅▅"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([0.0, math.nan, 1.0], "▁ █"),
        ([math.nan], ""),
        ([-1e308, 1e308], ""),
    ],
)
def test_sparklines_scale_from_lowest_to_highest(values: list[float], expected: str) -> None:
    assert sparkline(values) == expected


def test_sparklines_show_the_latest_values_also_in_ascii() -> None:
    assert sparkline([1000.0, 0.0, 1.0], width=2) == "▁█"
    assert sparkline([0.0, 1.0], levels=ASCII) == "_@"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0, "0"),
        (12345, "12,345"),
        (12345.6, "12,346"),
        (0.00012345, "0.0001234"),
        (-3.14159, "-3.142"),
        (1e12, "1e+12"),
    ],
)
def test_numbers_are_short_with_significant_digits(value: float | None, expected: str) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, "-"), (0.4, "0:00:00"), (75, "0:01:15"), (90061, "1 day, 1:01:01")]
)
def test_durations_have_at_most_two_units(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected
