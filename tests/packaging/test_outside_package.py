"""An installed package outside cadenza adds an algorithm, environments, wrappers and sinks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.records.folder import find
from cadenza.records.metrics import read
from cadenza.tools.verify import KILLS, compare, uninterrupted
from harness.command import episode_records
from harness.processes import call

SOURCE = Path(__file__).parents[1] / "outside"
CLIMB = [
    "outside/corridor:climb",  # the newest version
    "environment.wrappers=[{id: Mirrored}]",
    "environment.num_envs=4",
    "checkpoint.every_steps=80",
    "evaluation.every_steps=800",
    "evaluation.episodes=4",
    "--max-timesteps",
    "2400",
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package with pip, built from a copy; return its folder."""
    root = tmp_path_factory.mktemp("outside")
    shutil.copytree(SOURCE, root / "source", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", root / "site", root / "source"], check=True)
    shutil.rmtree(root / "source")
    return root / "site"


@pytest.fixture(autouse=True)
def on_the_path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package importable in processes that are started, but not in this one."""
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)


def cadenza(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cadenza", *map(str, arguments)]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True)


def answer(*arguments: object) -> dict[str, list[dict[str, object]]]:
    outcome = cadenza(*arguments, "--json")
    assert outcome.returncode == 0, outcome.stderr
    result: dict[str, list[dict[str, object]]] = json.loads(outcome.stdout.splitlines()[-1])
    return result


def test_an_outside_package_is_listed() -> None:
    assert {"name": "climb", "summary": "Hill climbing on a linear policy."} in answer("algorithms")["algorithms"]
    (row,) = answer("envs", "outside")["environments"]
    assert (row["id"], row["family"], row["observation"]) == ("outside/corridor-v1", "outside", "Box(2) float32")


def test_an_outside_package_trains_is_killed_and_resumes_exactly(installed: Path, tmp_path: Path) -> None:
    whole = uninterrupted(CLIMB, tmp_path / "whole")
    root = tmp_path / "killed"
    for kill in KILLS:
        arguments = ["resume", "@last"] if (root / "@last").exists() else ["train", *CLIMB]
        code, errors = call(arguments, root, kill, installed)
        assert code == -signal.SIGKILL, errors
    assert call(["resume", "@last"], root, packages=installed)[0] == 0
    killed = find(root, "@last")
    assert compare(whole, killed) is None
    assert episode_records(whole) == episode_records(killed)
    assert read(whole.metrics)[-1]["eval/return_mean"] > 0.5  # it learns: the door is found before long
    assert answer("verify", whole.id, "--runs-dir", tmp_path / "whole")["identical"] is True


def test_outside_environments_and_wrappers_work_in_workers_with_built_in_algorithms(tmp_path: Path) -> None:
    small = ["algorithm.n_steps=16", "environment.wrappers=[Mirrored]", "--max-timesteps", "256"]
    ways = ["environment.vectorize=in_process"], ["environment.vectorize=workers", "environment.workers=2"]
    here, there = (
        uninterrupted(["outside/corridor-v1:ppo", *small, *way], tmp_path / str(index))
        for index, way in enumerate(ways)
    )
    assert read(here.metrics)[-1]["digest/weights"] == read(there.metrics)[-1]["digest/weights"]


def test_an_outside_sink_receives_every_row(tmp_path: Path) -> None:
    run = uninterrupted([*CLIMB, "logging.sinks=[{id: tally, name: counts.json}]"], tmp_path)
    counts = json.loads((run.path / "counts.json").read_text())
    assert (counts["Started"], counts["Row"], counts["Ended"]) == (1, len(read(run.metrics)), 1)


PARTS = [
    "outside/corridor-v1:dqn",
    "algorithm.torso.encoder=waves",
    "algorithm.optimizer={name: signs, kwargs: {decay: 0.8}}",
    "algorithm.learning_rate=halving",
    "training.buffers={replay: {id: clipped, limit: 0.5}}",
    "algorithm.warmup_steps=64",
    "checkpoint.every_steps=80",
    "evaluation.episodes=2",
    "--max-timesteps",
    "1200",
]


def test_a_run_with_outside_parts_is_killed_and_resumes_exactly(installed: Path, tmp_path: Path) -> None:
    whole = uninterrupted(PARTS, tmp_path / "whole")
    root = tmp_path / "killed"
    for kill in KILLS:
        arguments = ["resume", "@last"] if (root / "@last").exists() else ["train", *PARTS]
        code, errors = call(arguments, root, kill, installed)
        assert code == -signal.SIGKILL, errors
    assert call(["resume", "@last"], root, packages=installed)[0] == 0
    assert compare(whole, find(root, "@last")) is None


def test_outside_commands_are_listed_and_run(tmp_path: Path) -> None:
    described = cadenza("--help").stdout
    assert re.search(r"count-runs +Print the number of runs\.", described)
    assert re.search(r"unfinished +\(cannot be loaded", described)
    counted = cadenza("count-runs", "--runs-dir", tmp_path)
    assert (counted.returncode, counted.stdout) == (0, "0\n")
    broken = cadenza("unfinished", "--anything")
    assert broken.returncode == 2
    assert broken.stderr.startswith("error: entry point 'unfinished = outside_lab.nowhere:command' in cadenza.commands")
    assert "No such command 'count-run'" in cadenza("count-run").stderr


def test_errors_of_an_outside_package_are_reported_like_built_in_ones(installed: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["outside/corridr:climb"], "unknown environment 'outside/corridr'; did you mean 'outside/corridor-v1'?"),
        (["outside/corridor:clim"], "unknown algorithm 'clim'; did you mean 'climb'?"),
        (["outside/corridor:climb", "algorithm.nois=1"], "'algorithm.nois'; did you mean 'algorithm.noise'?"),
        (["outside/corridor:climb", "environment.wrappers=[Mirored]"], "did you mean 'Mirrored'?"),
        (["outside/corridor:climb", "logging.sinks=[taly]"], "must be tally, or an import path"),
        (["toy/identity:climb"], "climb takes Box observations and Discrete actions; toy/identity has others"),
    ):
        code, errors = call(["train", *arguments], tmp_path, packages=installed)
        assert code == 2, errors
        assert message in errors
        assert len(errors.splitlines()) == 1
