"""Start-up times of commands; each figure is the best of several tries."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadenza.config.schema import EnvironmentConfig, RunConfig
from cadenza.records.folder import create
from cadenza.workflows.ppo_config import PPOConfig

pytestmark = pytest.mark.timing


def best(command: list[str], tries: int = 7) -> float:
    seconds = []
    for _ in range(tries):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def test_import_is_quick_and_does_not_import_torch() -> None:
    code = "import cadenza, sys; heavy = {'torch', 'hydra', 'gymnasium', 'numpy'} & set(sys.modules); assert not heavy"
    bare = best([sys.executable, "-c", "pass"])
    assert best([sys.executable, "-c", code]) - bare < 0.15


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["algorithms"]])
def test_help_is_quick(arguments: list[str]) -> None:
    assert best([sys.executable, "-m", "cadenza", *arguments]) < 0.5


def test_list_is_quick(tmp_path: object) -> None:
    assert best([sys.executable, "-m", "cadenza", "list", "--runs-dir", str(tmp_path)]) < 0.5


def test_a_mistake_is_reported_without_importing_torch() -> None:
    code = (
        "import sys; from cadenza.cli.main import run;"
        "assert run(['train', 'CartPole-v1:ppo', 'algorithm.batch_size=7']) == 2; assert 'torch' not in sys.modules"
    )
    assert best([sys.executable, "-c", code], tries=3) < 1.5


def test_five_thousand_runs_are_listed_in_a_second(tmp_path: Path) -> None:
    config = RunConfig(algorithm=PPOConfig(), environment=EnvironmentConfig(id="CartPole-v1"))
    first = create(tmp_path, config, ["cadenza", "train", "CartPole-v1:ppo"])
    first.update_status(status="finished", **{"eval/return_mean": 1.0})
    texts = {name: (first.path / name).read_text() for name in ("config.yaml", "manifest.json", "status.json")}
    for number in range(4999):
        folder = tmp_path / f"CartPole-v1-ppo-s{number}-copy"
        folder.mkdir()
        for name, text in texts.items():
            changed = text.replace("gamma: 0.99", f"gamma: 0.{90 + number % 10}").replace(": 1.0", f": {number}.0")
            (folder / name).write_text(changed)
    command = [sys.executable, "-m", "cadenza", "list", "--runs-dir", str(tmp_path)]
    assert best([*command, "--rebuild", "--limit", "1"], tries=1) < 30
    query = [*command, "--filter", "algorithm.gamma=0.95", "--sort", "return"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len([line for line in lines if line.startswith("CartPole")]) == 500
    assert "s4995-copy" in lines[2]
    assert best(query, tries=3) < 1
