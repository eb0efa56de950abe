from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.config.load import load
from cadenza.lab.inspector import comparison
from cadenza.lab.inspector.rows import curve, thinned
from cadenza.records.folder import create


def test_no_spike_is_lost_by_thinning() -> None:
    y = [0.0] * 10_000
    y[6543], y[1234] = 50.0, -3.0
    kept_x, kept = thinned([float(i) for i in range(10_000)], y, 400)
    assert len(kept) <= 400
    assert {50.0, -3.0} <= set(kept)
    assert kept_x == sorted(kept_x)
    assert kept_x[kept.index(50.0)] == 6543.0


def test_curves_contain_only_numbers() -> None:
    odd = [{"env_steps": i, "m": value} for i, value in enumerate([1, None, "x", True, 2.5])]
    assert curve(odd, "m", "env_steps") == ([0, 4], [1, 2.5])


def test_a_long_run_that_only_learns_is_compared_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without collection has env_steps of 0 in every row."""
    monkeypatch.setattr(comparison, "WHOLE", 0)
    folder = create(tmp_path, load("toy/identity:ppo"), ["test"])
    rows = ({"env_steps": 0, "updates": 10 * i, "eval/return_mean": float(i)} for i in range(50))
    folder.metrics.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (series,) = comparison.comparison([folder], ["eval/return_mean"], "updates")["series"]
    assert series["scores"]["eval/return_mean"]["values"] == [49.0]
    assert len(series["curves"]["eval/return_mean"]["updates"]["x"]) > 1
