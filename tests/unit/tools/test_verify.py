"""`verify RUN`: the first difference by step, quantity and episode, and what has changed since the run was made."""

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


def test_what_has_changed_since_is_listed_beside_the_verdict(tmp_path: Path) -> None:
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
    shown = cadenza("verify", "@last", "--steps", 600, "--runs-dir", tmp_path).succeeded().out
    assert "machine.cpu" in shown
    assert "is identical bit for bit" in shown


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="no vector instructions to go without")
def test_other_arithmetic_is_found_and_its_cause_stands_beside_it(tmp_path: Path) -> None:
    """torch without vector instructions adds up in another order."""
    train(tmp_path, *TOY, "runtime.kernels=torch", "algorithm.learning_rate=0.01").succeeded()
    command = [sys.executable, "-m", "cadenza", "verify", "@last", "--json", "--runs-dir", str(tmp_path)]
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["identical"]) == (1, False)
    assert answer["first_difference"]["env_steps"] == 128
    assert answer["made_with"]["variables.ATEN_CPU_CAPABILITY"] == [None, "default"]
