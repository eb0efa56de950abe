"""How long a user waits. Each figure is the best of several tries: the rest is the machine's other work."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.timing


def best(command: list[str], tries: int = 7) -> float:
    seconds = []
    for _ in range(tries):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def test_importing_is_quick_and_brings_no_torch() -> None:
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
