"""MiniGrid: ids, observations, time limits."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from cadenza.cli.main import run
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families import minigrid
from cadenza.envs.families.gym import Gym
from cadenza.errors import ConfigError

pytest.importorskip("minigrid", reason="the extra minigrid is not installed")


def made(max_episode_steps: int | None = None, id: str = "MiniGrid-DoorKey-5x5-v0", **kwargs: Any) -> Gym:
    config = EnvironmentConfig(id=id, kwargs=kwargs, max_episode_steps=max_episode_steps)
    env = catalog.make(config)
    assert isinstance(env, Gym)
    return env


def test_every_environment_of_the_package_has_an_id() -> None:
    import gymnasium
    import minigrid as package

    assert package
    theirs = [id for id in gymnasium.registry if id.startswith("MiniGrid-") and "-WFC-" not in id]
    assert sorted(minigrid.ids("minigrid")) == sorted(theirs)


def test_flat_observations_equal_the_packages() -> None:
    import gymnasium
    from minigrid.wrappers import FlatObsWrapper

    id = "MiniGrid-GoToDoor-5x5-v0"  # its mission is another in every episode
    theirs, env, rng = FlatObsWrapper(gymnasium.make(id)), made(id=id), np.random.default_rng(0)
    for number in range(30):
        if number % 10 == 0:
            expected, frame = theirs.reset(seed=number)[0], env.reset(number)
        assert np.array_equal(frame.obs["agent"][0], expected)
        action = rng.integers(0, 7, 1)
        expected, reward, *_ = theirs.step(int(action[0]))
        frame = env.step({"agent": action})
        assert float(frame.reward["agent"][0]) == pytest.approx(float(reward))


@pytest.mark.parametrize(
    ("sees", "shape"), [("grid", (148,)), ("pixels", (3, 56, 56)), ("pixels_full", (3, 40, 40)), ("flat", (2835,))]
)
def test_observation_shapes_follow_sees(sees: str, shape: tuple[int, ...]) -> None:
    env = made(sees=sees)
    assert env.spec.groups["agent"].observation.shape == shape
    assert env.reset(1).obs["agent"].shape == (1, *shape)


def test_a_time_limit_is_passed_to_the_environment_which_scales_rewards_by_it() -> None:
    env = made(max_episode_steps=3)
    assert env.spec.max_episode_steps == env.bare.unwrapped.max_steps == 3  # type: ignore[attr-defined]
    env.reset(0)
    frames = [env.step({"agent": np.array([6])}) for _ in range(3)]
    assert [frame.truncated for frame in frames] == [False, False, True]
    assert not frames[-1].terminated


def test_invalid_arguments_are_config_errors_with_the_key() -> None:
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.sees=pixel: must be one of .* mean 'pixels'"):
        made(sees="pixel")


def test_an_id_without_the_extra_names_the_line_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    assert run(["train", "MiniGrid-DoorKey-5x5-v0:ppo"]) == 69
    assert capsys.readouterr().err == "error: minigrid environments need an extra: pip install 'cadenza[minigrid]'\n"
