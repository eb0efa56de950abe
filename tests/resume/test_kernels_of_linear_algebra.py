"""A run goes on with the kernels of linear algebra that it began with, whatever the variable of OpenBLAS says now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.base import blas
from cadenza.records.decisions import BLAS_CHANGES
from cadenza.records.folder import find
from cadenza.tools.verify import compare
from harness.command import TOY

CHOICES = ("Haswell", "SkylakeX")
if blas.processor_flags() < blas.AVX512 or blas.loaded() not in CHOICES:
    pytest.skip("needs OpenBLAS and a processor with AVX-512", allow_module_level=True)


def command(root: Path, kernels: str, *arguments: str, **variables: str) -> str:
    """Run a command with these kernels; return what it printed to stderr."""
    environment = {**os.environ, blas.VARIABLE: kernels, **variables}
    line = [sys.executable, "-m", "cadenza", *arguments, "--runs-dir", str(root)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stderr


def test_a_run_is_resumed_and_verified_with_the_kernels_it_began_with(tmp_path: Path) -> None:
    began, other = CHOICES
    command(tmp_path / "whole", began, "train", *TOY)
    command(tmp_path, began, "train", *TOY[:-1], "1024")
    assert "linear algebra" not in command(tmp_path, other, "resume", "@last", "--max-timesteps", TOY[-1])
    assert compare(find(tmp_path / "whole", "@last"), find(tmp_path, "@last")) is None
    command(tmp_path, other, "verify", "@last")


def test_a_run_that_has_to_go_on_with_other_kernels_says_so_once_and_records_it(tmp_path: Path) -> None:
    began, other = CHOICES
    command(tmp_path, began, "train", *TOY[:-1], "512")
    in_vain = {blas.STARTED_FOR: began}  # as where this processor lacks them
    message = command(tmp_path, other, "resume", "@last", "--max-timesteps", "768", **in_vain)
    assert "no longer bit for bit the same" in message
    change = {"before": began, "now": other, "from_cycle": 4}
    assert find(tmp_path, "@last").read_decisions()[BLAS_CHANGES] == [change]
    assert "linear algebra" not in command(tmp_path, other, "resume", "@last", "--max-timesteps", "1024", **in_vain)
    assert find(tmp_path, "@last").read_decisions()[BLAS_CHANGES] == [change]
