"""ViZDoom: scenarios, repeatable episodes, restore in mid-episode."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.cli.main import run
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families import vizdoom
from cadenza.envs.families.gym import Gym
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError

pytest.importorskip("vizdoom", reason="the extra vizdoom is not installed")


def scenarios() -> Path:
    package = find_spec("vizdoom")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "scenarios"


def made(id: str = "VizDoom-basic", max_episode_steps: int | None = None, **kwargs: Any) -> Gym:
    env = catalog.make(EnvironmentConfig(id=id, kwargs=kwargs, max_episode_steps=max_episode_steps))
    assert isinstance(env, Gym)
    return env


def play(env: Gym, seed: int, steps: int = 25) -> list[bytes]:
    rng, frame, frames = np.random.default_rng(seed), env.reset(seed), []
    for _ in range(steps):
        frames.append(frame.obs["agent"].tobytes() + frame.reward["agent"].tobytes())
        if frame.terminated:
            break
        frame = env.step({"agent": rng.integers(0, env.spec.groups["agent"].action.n, 1)})  # type: ignore[attr-defined]
    return frames


def test_a_used_doom_plays_the_same_episode_as_a_fresh_one_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    used, fresh = made("VizDoom-defend_the_center"), made("VizDoom-defend_the_center")
    play(used, 1)
    assert play(used, 2) == play(fresh, 2)
    for env in (used, fresh):
        env.close()
    assert not list(tmp_path.iterdir())


def test_a_new_doom_vector_is_restored_in_mid_episode() -> None:
    config = EnvironmentConfig(id="VizDoom-basic", grayscale=True, resize=42, frame_stack=2)
    old = make_vector(config, EpisodeSeeds(5, TRAIN), num_envs=1)
    rng = np.random.default_rng(0)
    actions = [random_actions(old.spec.groups, old.current, rng) for _ in range(20)]
    for action in actions[:12]:
        old.step(action)
    new = make_vector(config, EpisodeSeeds(5, TRAIN), num_envs=1)
    new.load_state_dict(old.state_dict())
    for action in actions[12:]:
        one, two = (env.step(action) for env in (old, new))
        assert one.obs["agent"].tobytes() == two.obs["agent"].tobytes()
        assert one.reward["agent"].tobytes() == two.reward["agent"].tobytes()
    for env in (old, new):
        env.close()


def test_the_scenarios_time_limit_truncates_with_the_last_observation() -> None:
    env = made(max_episode_steps=2)
    assert made().spec.max_episode_steps == 75  # 300 tics, four to an action
    env.reset(0)
    frames = [env.step({"agent": np.array([0])}) for _ in range(2)]
    assert [(frame.terminated, frame.truncated) for frame in frames] == [(False, False), (False, True)]
    assert frames[-1].obs["agent"].std() > 0
    env.close()


def test_scenarios_are_found_in_a_folder_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for end in ("cfg", "wad"):
        shutil.copy(scenarios() / f"simpler_basic.{end}", tmp_path)
    (tmp_path / "simpler_basic.cfg").rename(tmp_path / "mine.cfg")
    monkeypatch.setenv("VIZDOOM_SCENARIOS_DIR", str(tmp_path))
    assert "VizDoom-mine" in vizdoom.ids("vizdoom")
    for env in (
        made("VizDoom-mine", max_buttons=2),
        made("VizDoom-custom", max_buttons=2, config_path=str(tmp_path / "mine.cfg")),
    ):
        assert env.spec.groups["agent"].action.n == 1 + 3 + 3  # type: ignore[attr-defined]
    shutil.copy(scenarios() / "basic.cfg", tmp_path)
    with pytest.raises(ConfigError, match=r"VizDoom-basic: .*basic\.cfg has the name of a scenario of the package"):
        made("VizDoom-basic")
    (tmp_path / "simpler_basic.wad").unlink()
    with pytest.raises(ConfigError, match=r"mine\.cfg names simpler_basic\.wad, which is neither beside it nor"):
        made("VizDoom-mine")
    with pytest.raises(ConfigError, match=r"config_path: VizDoom-custom needs it"):
        made("VizDoom-custom")
    with pytest.raises(ConfigError, match=r"config_path: no file '.*min\.cfg'; did you mean 'mine\.cfg'"):
        made("VizDoom-custom", config_path=str(tmp_path / "min.cfg"))


def test_a_scenario_can_set_game_rules_but_no_program(tmp_path: Path) -> None:
    shutil.copy(scenarios() / "simpler_basic.wad", tmp_path)
    started, program = tmp_path / "started", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    text = (scenarios() / "simpler_basic.cfg").read_text()
    more = "vizdoom_path = program\ndoom_config_path = e.ini\ngame_args = +exec evil.cfg +sv_noautoaim 1 -file e.wad\n"
    (tmp_path / "e.cfg").write_text(f"{text}\n{more}")
    env = made("VizDoom-custom", config_path=str(tmp_path / "e.cfg"))
    game: Any = env.env.unwrapped
    assert game._game.get_game_args() == "+sv_noautoaim 1"
    assert env.reset(0).obs["agent"].std() > 0  # ViZDoom itself was started
    env.close()
    assert not started.exists()
    assert not (tmp_path / "e.ini").exists()


def test_game_variables_are_returned_beside_the_screen() -> None:
    env = made("VizDoom-health_gathering", variables=True)
    observation = env.reset(1).obs["agent"]
    assert observation["variables"].tolist() == [[92.0]]  # the floor has hurt already
    assert observation["screen"].shape == (1, 3, 120, 160)
    env.close()


def test_an_id_without_the_extra_names_the_line_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vizdoom", None)
    assert run(["train", "VizDoom-anything:ppo"]) == 69
    assert capsys.readouterr().err == "error: vizdoom environments need an extra: pip install 'cadenza[vizdoom]'\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_doom_dies_with_a_killed_run(tmp_path: Path) -> None:
    code = """
import psutil, signal
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
env = catalog.make(EnvironmentConfig(id="VizDoom-basic"))
env.reset(0)
print(*(child.pid for child in psutil.Process().children()), flush=True)
signal.pause()
"""
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed run cannot clear up
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        games = [os.pidfd_open(int(game)) for game in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
    assert len(games) == 1
    assert select.select(games, [], [], 30)[0] == games  # gone
    os.close(games[0])
