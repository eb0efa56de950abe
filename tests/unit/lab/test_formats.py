from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cadenza.lab.formats import escape
from cadenza.records.folder import RunFolder, find
from harness.command import cadenza


@pytest.fixture
def root(tmp_path: Path, make_curve: Callable[..., RunFolder]) -> Path:
    for seed in range(2):
        make_curve([10.0, 100.0 + seed], seed=seed)
        make_curve([5.0, 40.5 + seed], seed=seed, gamma=0.9)
    return tmp_path / "runs"


def exported(root: Path, *arguments: object) -> str:
    return cadenza("export", "CartPole-v1:ppo", "--runs-dir", root, *arguments).succeeded().out


def test_csv_has_a_row_for_each_row_of_metrics(root: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(exported(root, "--format", "csv", "-m", "val/return_mean"))))
    assert list(rows[0]) == ["run", "environment", "algorithm", "seed", "env_steps", "updates", "eval/return_mean"]
    assert len(rows) == 8
    assert sorted(float(row["eval/return_mean"]) for row in rows if row["env_steps"] == "200") == [40.5, 41.5, 100, 101]
    whole = exported(root, "--format", "csv").splitlines()[0]
    assert "train/loss" in whole
    assert "digest" not in whole


def test_json_has_the_config_and_metrics_of_each_run(root: Path) -> None:
    runs = json.loads(exported(root, "--format", "json"))["runs"]
    assert len(runs) == 4
    assert {run["config"]["algorithm"]["gamma"] for run in runs} == {0.99, 0.9}
    assert all(run["status"]["status"] == "finished" and len(run["metrics"]) == 2 for run in runs)


def test_parquet_has_typed_columns(root: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `parquet` is not installed")
    out = root / "metrics.parquet"
    result = json.loads(exported(root, "--format", "parquet", "--out", out, "--json"))
    assert (result["out"], len(result["runs"]), result["bytes"]) == (str(out), 4, out.stat().st_size)
    table = parquet.read_table(out)
    assert (table.num_rows, str(table.schema.field("env_steps").type)) == (8, "int64")
    assert sorted(table.filter(table["env_steps"].to_numpy() == 200)["eval/return_mean"].to_pylist())[-1] == 101
    assert sum(key.startswith(b"cadenza.config.") for key in table.schema.metadata) == 4


def test_latex_has_a_table_of_scores(root: Path, make_curve: Callable[..., RunFolder]) -> None:
    text = exported(root, "--format", "latex")
    assert r"gamma=0.99 & $\mathbf{100.5}$ {\scriptsize $[100.0, 101.0]$} \\" in text
    assert r"gamma=0.9 & $41.0$" in text
    assert r"eval/return\_mean" in text
    assert r"over 2 seeds and its 95\% bootstrap interval" in text
    assert text.count("{") == text.count("}")
    make_curve([1.0, 2.0], env="Acrobot-v1")
    both = cadenza("export", "-f", "seed>=0", "--runs-dir", root, "--format", "latex").succeeded().out
    assert "& CartPole-v1 & Acrobot-v1" in both
    assert "--" in both, "what was not tried in an environment"


def test_runs_with_equal_names_in_two_folders_are_distinguished(root: Path, tmp_path: Path) -> None:
    folder = find(root, "@last")
    copy = shutil.copytree(folder.path, tmp_path / "copies" / folder.id)
    result = json.loads(
        cadenza("export", folder.path, folder.id, copy, "--runs-dir", root, "--format", "json").succeeded().out
    )
    assert [(run["run"], len(run["metrics"])) for run in result["runs"]] == [(folder.id, 2)] * 2


def test_latex_escapes_special_characters() -> None:
    assert escape(r"a_b%c&d\e{f}") == r"a\_b\%c\&d\textbackslash{}e\{f\}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "cvs"], "did you mean 'csv'"),
        ([], "--format is missing"),
        (["--format", "csv", "--json"], "--out FILE"),
        (["--format", "csv", "--episodes", "3"], "need --format dataset"),
        (["--format", "csv", "--checkpoint", "best"], "--checkpoint needs --format onnx, torchscript, or dataset"),
        (["--format", "csv", "--by", "seed"], "needs --format latex"),
        (["--format", "dataset"], "--out DIR"),
        (["--format", "csv", "--out", "nodir/x.csv"], "there is no folder nodir"),
        (["--format", "csv", "-m", "eval/retrun_mean"], "did you mean 'eval/return_mean'"),
    ],
)
def test_invalid_arguments_of_export_are_refused(root: Path, arguments: list[str], words: str) -> None:
    cadenza("export", "@last", "--runs-dir", root, *arguments).refused(2, words)
