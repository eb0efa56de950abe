"""A wrong bit in any file that decides how a run goes on trains nothing else in silence (all of it: benchmarks)."""

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
