"""Skipped tests counted by reason, for the end of a test run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason of a skipped test or module, without pytest's prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split())


def skip_lines(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Return one line for each reason, the most frequent first: `skipped: 3  there is no Chromium here`."""
    counts = Counter(skip_reason(report) for report in reports)
    return [
        f"skipped: {count}  {reason}" for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
