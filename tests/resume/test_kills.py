"""A run killed again and again equals one that was left alone: weights, optimizer, metrics, episodes, everything.

Four kills each, with all moments of saving among them; `python benchmarks/kills.py` kills twenty times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.killing import assert_kills_leave_no_trace
from harness.resume_runs import RUNS


@pytest.mark.parametrize("subject", RUNS)
def test_kills_leave_no_trace(subject: str, tmp_path: Path) -> None:
    number = list(RUNS).index(subject)  # other moments for each
    assert_kills_leave_no_trace([*RUNS[subject], "--max-timesteps", "12000"], tmp_path, seed=number)
