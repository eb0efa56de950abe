"""The commands and programs of docs/export.md run, on runs of two settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.page_snippets import command, run_page

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
SMALL = ["algorithm.n_steps=16", "algorithm.n_epochs=1", "evaluation.episodes=2", "--max-timesteps", "256"]


def test_every_snippet_works(tmp_path: Path) -> None:
    for package in ("onnxruntime", "onnxscript", "pyarrow", "seaborn"):
        pytest.importorskip(package)
    for gamma in (0.98, 0.5):
        command(["train", "CartPole-v1:ppo", f"algorithm.gamma={gamma}", "--tag", "paper", *SMALL, "-q"], tmp_path)
    run_page(PAGE, tmp_path)
    for name in ("run.json", "metrics.parquet", "table.tex", "expert", "curves.png", "policy.onnx", "policy.pt"):
        assert (tmp_path / name).exists()
