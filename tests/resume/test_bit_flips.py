"""A flipped bit in a file of a run never changes a training silently (a sample; all files: benchmarks/bit_flips.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.flipping import RUNS, Flips

FLIPS = 3  # in each file, and two of the commands


@pytest.mark.parametrize("name", RUNS)
def test_flipped_bit_is_harmless_refused_or_reported(name: str, tmp_path: Path) -> None:
    flips = Flips(RUNS[name], tmp_path)
    counts = {file: flips.count(file, FLIPS) for file in flips.files()}
    assert flips.silent == []
    assert counts["decisions.json"]["refused"] == FLIPS
    assert counts["config.yaml"]["refused"] == FLIPS
