"""DeepMind Control: equality with the suite, in states and pixels."""

from __future__ import annotations

import math
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
from cadenza.envs.families import dmc, mujoco
from cadenza.envs.families.gym import Gym
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, MissingExtraError

mujoco.choose_renderer()  # the suite looks at it when it is imported
suite = pytest.importorskip("dm_control.suite")
drawn = pytest.mark.skipif(not (find_library("EGL") or find_library("OSMesa")), reason="no library to draw with")


def made(id: str, max_episode_steps: int | None = None, **kwargs: Any) -> Gym:
    env = catalog.make(EnvironmentConfig(id=id, kwargs=kwargs, max_episode_steps=max_episode_steps))
    assert isinstance(env, Gym)
    return env


def test_every_task_of_the_suite_has_an_id_and_its_own_time_limit() -> None:
    assert dmc.ids("dmc") == [f"dmc/{domain}-{task}" for domain, task in suite.ALL_TASKS]
    for domain, task in (("walker", "walk"), ("swimmer", "swimmer6"), ("acrobot", "swingup"), ("lqr", "lqr_2_1")):
        limit = suite.load(domain, task)._step_limit
        own = None if math.isinf(limit) else math.ceil(round(limit, 6))
        assert made(f"dmc/{domain}-{task}").spec.max_episode_steps == own
    assert made("dmc/walker-walk", action_repeat=2).spec.max_episode_steps == 500


@pytest.mark.parametrize(("domain", "task", "repeat"), [("walker", "walk", 1), ("manipulator", "bring_ball", 3)])
def test_a_dmc_episode_equals_the_suites_bit_for_bit(domain: str, task: str, repeat: int) -> None:
    env = made(f"dmc/{domain}-{task}", action_repeat=repeat)
    theirs = suite.load(domain, task)
    theirs.task.random.seed(np.random.SeedSequence(11).generate_state(8))
    expected, frame, rng = theirs.reset(), env.reset(11), np.random.default_rng(0)
    for _ in range(10):
        measured = np.concatenate([np.ravel(part) for part in expected.observation.values()])
        assert np.array_equal(frame.obs["agent"][0], measured.astype(np.float32))
        action = rng.uniform(-1, 1, (1, *theirs.action_spec().shape)).astype(np.float32)
        frame, earned = env.step({"agent": action}), 0.0
        for _ in range(repeat):
            expected = theirs.step(action[0].astype(np.float64))
            earned += expected.reward
        assert float(frame.reward["agent"][0]) == pytest.approx(earned, rel=1e-6)


def test_a_time_limit_truncates_and_a_tasks_own_end_terminates() -> None:
    env: Any = made("dmc/lqr-lqr_2_1", max_episode_steps=3)
    still = {"agent": np.zeros((1, 1), np.float32)}
    env.reset(0)
    ends = [(frame.terminated, frame.truncated) for frame in (env.step(still) for _ in range(3))]
    assert ends == [(False, False), (False, False), (False, True)]
    env.reset(1)
    with env.env.unwrapped.suite.physics.reset_context() as physics:
        physics.data.qpos[:] = 0  # the goal itself
    frame = env.step(still)
    assert (frame.terminated, frame.truncated) == (True, False)


@drawn
def test_pixels_are_returned_alone_or_beside_the_state() -> None:
    both, pixels, state = (made("dmc/cartpole-swingup", sees=sees) for sees in ("both", "pixels", "state"))
    push = {"agent": np.ones((1, 1), np.float32)}
    frames = [(env.reset(5), env.step(push)) for env in (both, pixels, state)]
    for b, p, s in zip(*frames, strict=True):
        assert np.array_equal(b.obs["agent"]["pixels"], p.obs["agent"])
        assert np.array_equal(b.obs["agent"]["state"], s.obs["agent"])
    first, second = frames[1][0].obs["agent"], frames[1][1].obs["agent"]
    assert first.shape == (1, 3, 64, 64)
    assert first.dtype == np.uint8
    assert first.std() > 10
    assert (first != second).any()
    assert (
        made("dmc/cartpole-swingup", sees="pixels", size=32, camera="lookatcart").reset(5).obs["agent"].shape[-1] == 32
    )


@drawn
def test_pixels_are_restored_bit_for_bit_in_mid_episode() -> None:
    config = EnvironmentConfig(id="dmc/point_mass-hard", kwargs={"sees": "both", "size": 16, "action_repeat": 2})
    old, new = (make_vector(config, EpisodeSeeds(5, TRAIN), num_envs=2) for _ in range(2))
    rng = np.random.default_rng(0)
    actions = [random_actions(old.spec.groups, old.current, rng) for _ in range(8)]
    for action in actions[:5]:
        old.step(action)
    new.load_state_dict(old.state_dict())
    for action in actions[5:]:
        one, two = (env.step(action).obs["agent"] for env in (old, new))
        assert all(np.array_equal(one[key], two[key]) for key in ("pixels", "state"))
    for env in (old, new):
        env.close()


@drawn
def test_a_process_without_a_screen_renders_without_output(tmp_path: Path) -> None:
    code = """
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
catalog.make(EnvironmentConfig(id="dmc/cheetah-run")).reset(0)
env = catalog.make(EnvironmentConfig(id="dmc/cheetah-run"))
env.reset(0)
print(env.render().shape)
"""
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    process = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=plain, capture_output=True, text=True)
    assert (process.stdout, process.stderr) == ("(480, 480, 3)\n", "")
    assert not list(tmp_path.iterdir())


def test_states_work_without_opengl_and_pixels_name_what_is_missing() -> None:
    code = """
from cadenza.cli.main import run
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
catalog.make(EnvironmentConfig(id="dmc/cartpole-balance")).reset(0)
print(run(["train", "dmc/cartpole-balance:sac", "environment.kwargs.sees=pixels"]))
"""
    nothing = {"PATH": "/usr/bin:/bin", "MUJOCO_GL": "off"}
    process = subprocess.run([sys.executable, "-c", code], env=nothing, capture_output=True, text=True)
    assert process.stdout == "70\n"
    assert process.stderr.startswith(
        "error: environment.kwargs.sees=pixels: pictures need OpenGL, and there is neither"
    )
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"sees": "pixel"}, "sees=pixel: must be one of state, pixels, both; did you mean 'pixels'"),
        ({"size": 0}, "size=0: must be a whole number, at least 1"),
        ({"action_repeat": 1.5}, "action_repeat=1.5: must be a whole number"),
        ({"camera": 9}, "camera=9: must be a number below 2, or of"),
        ({"repeat": 2}, "repeat: dmc/cartpole-balance takes no such argument; did you mean 'action_repeat'"),
    ],
)
def test_invalid_arguments_are_config_errors_with_the_key(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"environment\.kwargs\.{message}"):
        made("dmc/cartpole-balance", **kwargs)


def test_a_task_without_the_extra_names_the_line_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[dmc\]'"):
        environments.resolve("dmc/walker-walk")


def test_dmc_rows_of_the_listing_have_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs", "dmc/walker-walk"]) == 0
    output = capsys.readouterr().out
    assert "dmc/walker-walk" in output
    assert "1000" in output
    assert "replay" in output
