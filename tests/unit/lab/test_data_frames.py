"""Tables of runs and metrics, for pandas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cadenza
from cadenza.errors import MissingExtraError
from cadenza.lab.data_frames import Rows
from unit.conftest import MakeRun


@pytest.fixture
def runs(make_curve: MakeRun, tmp_path: Path) -> cadenza.api.Runs:
    """Two runs with two rows each, which differ in gamma and seed."""
    make_curve([1.0, 2.0], seed=1, gamma=0.9)
    make_curve([3.0, 4.0], seed=2, gamma=0.99)
    return cadenza.runs(tmp_path / "runs", sort="return")


def test_metrics_of_several_runs_begin_with_their_identity(runs: cadenza.api.Runs) -> None:
    rows = runs.metrics
    assert [list(row)[:4] for row in rows] == [["run", "environment", "algorithm", "seed"]] * 4
    assert [(row["seed"], row["env_steps"], row["eval/return_mean"]) for row in rows] == [
        (2, 100, 3.0),
        (2, 200, 4.0),
        (1, 100, 1.0),
        (1, 200, 2.0),
    ]


def test_a_run_without_rows_hides_no_others(runs: cadenza.api.Runs) -> None:
    (runs[0].folder.path / "metrics.jsonl").unlink()
    assert [row["seed"] for row in runs.metrics] == [1, 1]


def test_data_frames_have_a_row_for_each_run_and_each_step(runs: cadenza.api.Runs) -> None:
    pytest.importorskip("pandas")
    table = runs.to_pandas().set_index("seed")
    assert list(table["algorithm.gamma"]) == [0.99, 0.9]  # it differs
    assert "algorithm.gae_lambda" not in table
    assert list(table["eval/return_mean"]) == [4.0, 2.0]
    assert list(table["status"]) == ["finished", "finished"]
    assert runs.metrics.to_pandas().groupby("run")["eval/return_mean"].max().max() == 4.0
    assert list(runs[0].metrics.to_pandas()["env_steps"]) == [100, 200]


def test_a_missing_pandas_is_one_line(runs: cadenza.api.Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for frame in (runs.to_pandas, runs.metrics.to_pandas, runs[0].metrics.to_pandas):
        with pytest.raises(MissingExtraError, match=r"^to_pandas\(\) needs an extra: pip install 'cadenza\[pandas\]'$"):
            frame()


def test_a_notebook_shows_the_end_of_a_table() -> None:
    page = Rows({"step": step, "<loss>": step / 3} for step in range(9))._repr_html_()
    assert "9 rows, 2 columns; the last 5 rows:" in page
    assert page.count("<tr>") == 6
    assert "<th>&lt;loss&gt;</th>" in page
    assert "<td>2.667</td>" in page
