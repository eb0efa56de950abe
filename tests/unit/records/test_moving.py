"""A run whose config names code, opened where that code is not."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.config import registry
from harness.command import cadenza, last, train

ENVIRONMENT = """
import gymnasium as gym

class Env(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, True, False, {}

def make():
    return Env()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of an environment, which is the current folder."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "house_env.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "ORIGINS", {})
    yield tmp_path / "home"
    sys.modules.pop("house_env", None)


def test_a_run_by_import_path_says_elsewhere_where_it_was_made(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(home / "runs", "house_env:make:ppo", "pace=debug", "environment.max_episode_steps=5").succeeded()
    run = last(home / "runs")
    assert run.read_manifest()["modules"] == {"house_env": None}
    shutil.copytree(home / "runs", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(home)])
    sys.modules.pop("house_env")
    advice = f"{run.id} needs it: work in the folder {home}, where the run was made, or add it to PYTHONPATH"
    for command in ("evaluate", "resume"):
        cadenza(command, "@last", "--runs-dir", tmp_path / "elsewhere").refused(
            2, "No module named 'house_env'", advice
        )


def test_a_package_is_named_with_its_version(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(home / "runs", "house_env:make:ppo", "pace=debug", "environment.max_episode_steps=5").succeeded()
    run = last(home / "runs")
    manifest = {"modules": {"house_env": "house 1.2", "house/Env-v0": "house 1.2"}}
    assert run._origins(manifest)["house_env"].startswith(
        f"{run.id} needs it: install house 1.2, or work in its folder"
    )
    registry.ORIGINS.update(run._origins(manifest))
    train(home / "runs", "house/Env-v0:ppo").refused(2, "unknown environment 'house/Env-v0'", "install house 1.2")


def test_a_run_without_code_of_its_own_records_no_folder(tmp_path: Path) -> None:
    train(tmp_path, "toy/identity:ppo", "pace=debug").succeeded()
    assert {"modules", "folder"}.isdisjoint(last(tmp_path).read_manifest())
