"""`verify RUN`: the first difference by step, quantity and episode, and changes since the run was made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cadenza.base.atomic import write_json
from harness.command import TOY, cadenza, last, train


def test_verify_lists_changes_of_packages_and_machine(tmp_path: Path) -> None:
    train(tmp_path, *TOY).succeeded()
    folder = last(tmp_path)
    manifest = folder.read_manifest()
    manifest["versions"]["mujoco"] = "0.1"
    manifest["machine"]["cpu"] = "Difference Engine"
    manifest["variables"] = {"MKL_CBWR": "SSE4_1"}
    write_json(folder.manifest, manifest)
    answer = json.loads(cadenza("verify", "@last", "--steps", 600, "--json", "--runs-dir", tmp_path).succeeded().out)
    assert (answer["identical"], answer["first_difference"]) == (True, None)
    changed = answer["made_with"]
    assert changed["versions.mujoco"][0] == "0.1"
    assert changed["machine.cpu"][0] == "Difference Engine"
    assert changed["variables.MKL_CBWR"] == ["SSE4_1", None]
    assert "versions.torch" not in changed
    output = cadenza("verify", "@last", "--steps", 600, "--runs-dir", tmp_path).succeeded().out
    assert "machine.cpu" in output
    assert "is identical bit for bit" in output


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="no vector instructions to go without")
def test_verify_detects_different_arithmetic_and_names_a_cause(tmp_path: Path) -> None:
    """torch without vector instructions sums in another order."""
    train(tmp_path, *TOY, "runtime.kernels=torch", "algorithm.learning_rate=0.01").succeeded()
    command = [sys.executable, "-m", "cadenza", "verify", "@last", "--json", "--runs-dir", str(tmp_path)]
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    answer = json.loads(process.stdout)
    assert (process.returncode, answer["identical"]) == (1, False)
    assert answer["first_difference"]["env_steps"] == 128
    assert answer["made_with"]["variables.ATEN_CPU_CAPABILITY"] == [None, "default"]
