"""The summary of skipped tests at the end of a run."""

from __future__ import annotations

import pytest

from harness.skips import skip_lines


def skipped(text: str) -> pytest.TestReport:
    where = ("test_x.py", 3, text)
    return pytest.TestReport("test_x.py::test", ("test_x.py", 3, "test"), {}, "skipped", where, "setup")


def test_equal_reasons_are_counted_on_one_line_the_most_frequent_first() -> None:
    module = pytest.CollectReport("test_y.py", "skipped", ("test_y.py", 1, "Skipped: no CUDA\nhere"), None)
    reports: list[pytest.TestReport | pytest.CollectReport] = [
        skipped("Skipped: no Chromium"),
        skipped("Skipped: no CUDA here"),
        module,
    ]
    assert skip_lines(reports) == ["skipped: 2  no CUDA here", "skipped: 1  no Chromium"]


def test_without_skips_nothing_is_printed() -> None:
    assert skip_lines([]) == []
