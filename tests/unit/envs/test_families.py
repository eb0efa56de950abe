"""Families with an extra: Box2D and MuJoCo."""

from __future__ import annotations

import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.cli.main import run
from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.errors import MissingExtraError


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("Box2D", "mujoco", "dm_control"):
        monkeypatch.setitem(sys.modules, package, None)


def test_ids_without_a_version_mean_the_newest_and_mujocos_old_ones_are_not_offered() -> None:
    assert environments.resolve("LunarLander") == "LunarLander-v3"
    assert environments.resolve("HalfCheetah") == "HalfCheetah-v5"
    names = environments.families()["mujoco"]
    assert len(names) == 11
    assert all(name.endswith("-v5") for name in names)


@pytest.mark.parametrize(
    ("id", "extra"),
    [("LunarLander-v3", "box2d"), ("BipedalWalker", "box2d"), ("Hopper-v5", "mujoco"), ("mujoco/Hopper", "mujoco")],
)
def test_a_known_id_without_its_packages_names_the_line_to_install(
    id: str, extra: str, nothing_installed: None
) -> None:
    with pytest.raises(MissingExtraError, match=rf"pip install 'cadenza\[{extra}\]'"):
        environments.resolve(id)


def test_commands_end_with_69_where_an_extra_is_missing(
    nothing_installed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "LunarLander-v3:ppo"]) == 69
    assert capsys.readouterr().err == "error: box2d environments need an extra: pip install 'cadenza[box2d]'\n"
    assert run(["envs", "lunar"]) == 69
    capsys.readouterr()
    assert run(["envs", "pendulum"]) == 0
    captured = capsys.readouterr()
    assert "Pendulum-v1" in captured.out
    assert "InvertedPendulum" not in captured.out
    note = "note: {0} environments need an extra: pip install 'cadenza[{0}]'\n"
    assert captured.err == note.format("mujoco") + note.format("dmc") + note.format("brax")


@pytest.mark.skipif(not (find_library("EGL") or find_library("OSMesa")), reason="no library to draw with")
def test_mujoco_renders_without_a_screen_and_writes_no_log(tmp_path: Path) -> None:
    code = """
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
config = EnvironmentConfig(id="HalfCheetah-v5")
catalog.make(config).reset(0)  # mujoco is imported before anyone wants a picture
env = catalog.make(config, render=True)
env.reset(0)
picture = env.render()
env.close()
print(picture.shape, picture.std() > 0)
"""
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    process = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=plain, capture_output=True, text=True)
    assert process.stdout.strip() == "(480, 480, 3) True", process.stderr
    assert "settotalmass" not in process.stderr
    assert not list(tmp_path.glob("MUJOCO_LOG*"))


def test_an_environment_that_a_user_makes_gets_fresh_worlds_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_walker.py").write_text("import gymnasium\ndef walk(): return gymnasium.make('BipedalWalker-v3')\n")
    monkeypatch.syspath_prepend(tmp_path)
    env: Any = catalog.make(EnvironmentConfig(id="own_walker:walk"))
    env.reset(0)
    world = env.bare.unwrapped.world
    env.reset(1)
    assert env.bare.unwrapped.world is not world
    assert env.bare.unwrapped.world.gravity == world.gravity
    assert np.isfinite(env.step({"agent": np.zeros((1, 4), np.float32)}).obs["agent"]).all()
    env.close()
