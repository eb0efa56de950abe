from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from cadenza.config import environments
from cadenza.config.families import FAMILIES, Family
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.catalog import TimeLimited
from cadenza.envs.families.gym import Gym
from cadenza.errors import ConfigError, MissingExtraError, NotFoundError
from cadenza.lab.view.play import fps_of

OWN = """
import gymnasium
from gymnasium import spaces

class Odd(gymnasium.Env):
    def __init__(self, low=1):
        self.observation_space = spaces.Tuple((spaces.Discrete(3, start=2), spaces.Box(-1, 1, (2,))))
        self.action_space = spaces.Discrete(2, start=low)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return (2, self.np_random.uniform(-1, 1, 2)), {}
    def step(self, action):
        assert self.action_space.contains(action) and type(action) is int
        return (4, self.np_random.uniform(-1, 1, 2)), float(action), False, False, {}

def limited():
    return gymnasium.wrappers.TimeAwareObservation(gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 7))

def bare():
    return gymnasium.make("CartPole-v1").unwrapped

def wrong_space():
    env = Odd()
    env.observation_space = spaces.Text(5)
    return env
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_environment.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_resolve_returns_the_exact_id_or_its_newest_version() -> None:
    assert environments.resolve("CartPole-v0") == "CartPole-v0"
    assert environments.resolve("CartPole") == "CartPole-v1"
    assert environments.resolve("toy/chain") == "toy/chain"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("CartPoole-v1", "CartPole-v1"),
        ("Taxi-v3", "Taxi-v4"),
        ("toy/cain", "toy/chain"),
        ("PushT-v0", "gym_pusht/PushT-v0"),  # its family left out, installed or not
    ],
)
def test_an_unknown_id_names_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(NotFoundError, match=rf"unknown environment '{wrong}'; did you mean '{right}'\?.*cadenza envs"):
        environments.resolve(wrong)


def test_a_known_family_without_its_packages_names_the_line_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "ghost", Family("ghost", "", "packages_that_are_not_there", extra="ghost"))
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[ghost\]'"):
        environments.resolve("ghost/castle")
    assert environments.resolve("CartPole") == "CartPole-v1"


def test_specs_come_from_gymnasiums_registry_and_can_be_overridden() -> None:
    spec = catalog.make(EnvironmentConfig(id="CartPole-v1")).spec
    assert (spec.max_episode_steps, spec.return_threshold, spec.restore) == (500, 475.0, "replay")
    env = catalog.make(EnvironmentConfig(id="CartPole-v1", max_episode_steps=3))
    assert env.spec.max_episode_steps == 3
    env.reset(0)
    ends = [env.step({"agent": np.array([action])}).truncated for action in (0, 1, 0)]
    assert ends == [False, False, True]


def test_unknown_keyword_arguments_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.is_slipery: .*did you mean 'is_slippery'"):
        catalog.make(EnvironmentConfig(id="FrozenLake-v1", kwargs={"is_slipery": True}))


def test_refused_values_of_keyword_arguments_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"environment\.kwargs: FrozenLake-v1 refuses .*KeyError: '5x5'"):
        catalog.make(EnvironmentConfig(id="FrozenLake-v1", kwargs={"map_name": "5x5"}))


def test_an_environment_of_ones_own_by_import_path(own: None) -> None:
    env = catalog.make(EnvironmentConfig(id="own_environment:Odd", kwargs={"low": 5}))
    frame = env.reset(1)
    obs = frame.obs["agent"]
    assert obs["0"].tolist() == [2]
    assert obs["0"].dtype == np.int64
    assert obs["1"].shape == (1, 2)
    assert obs["1"].dtype == np.float32
    space: Any = env.spec.groups["agent"].observation
    assert space["0"].start == 2
    assert env.step({"agent": np.array([6])}).reward["agent"].tolist() == [6.0]


def test_broken_import_paths_and_unsupported_spaces_are_config_errors(own: None) -> None:
    with pytest.raises(ConfigError, match="cannot import 'own_environment:Even'"):
        catalog.make(EnvironmentConfig(id="own_environment:Even"))
    with pytest.raises(ConfigError, match="Text spaces are not supported"):
        catalog.make(EnvironmentConfig(id="own_environment:wrong_space"))


def test_clip_actions_clips_actions_into_their_bounds() -> None:
    def reward(clip: bool) -> float:
        env = catalog.make(EnvironmentConfig(id="toy/identity_box", clip_actions=clip))
        env.reset(0)
        return float(env.step({"agent": np.array([[100.0]], np.float32)}).reward["agent"][0])

    assert reward(True) >= -4
    assert reward(False) < -9000


def test_render_true_makes_the_environment_return_pictures() -> None:
    env = catalog.make(EnvironmentConfig(id="CartPole-v1"), render=True)
    env.reset(0)
    picture = env.render()
    env.close()
    assert picture is not None
    assert picture.shape == (400, 600, 3)


def test_the_listing_has_spaces_families_and_tuned_variants() -> None:
    rows = {row["id"]: row for row in catalog.listing()}
    assert "ppo" in rows["CartPole-v1"]["variants"]
    assert rows["CartPole-v0"]["variants"] == []
    assert rows["Pendulum-v1"]["action"] == "Box(1) float32"
    assert rows["toy/pair"]["action"] == "runner: Discrete(3); shooter: Box(2) float32"
    assert {row["id"] for row in catalog.listing("frozen")} == {"FrozenLake-v1", "FrozenLake8x8-v1"}
    assert {row["family"] for row in catalog.listing("toy_text")} == {"toy_text"}


def test_a_time_limit_inside_ones_own_environment_cannot_be_raised(own: None) -> None:
    def limit(name: str, steps: int | None) -> int | None:
        config = EnvironmentConfig(id=f"own_environment:{name}", max_episode_steps=steps)
        return catalog.make(config).spec.max_episode_steps

    assert [limit("limited", steps) for steps in (None, 3)] == [7, 3]
    with pytest.raises(ConfigError, match=r"max_episode_steps=9: own_environment:limited .*TimeLimit of 7 steps; give"):
        limit("limited", 9)
    assert [limit("bare", steps) for steps in (None, 900)] == [None, 900]  # nothing inside ends its episodes


def test_a_time_limit_hides_nothing_of_the_environment_inside() -> None:
    inner = SimpleNamespace(metadata={"render_fps": 7})
    env: Any = SimpleNamespace(
        spec=catalog.make(EnvironmentConfig(id="toy/identity")).spec, env=inner, render=None, close=None
    )
    assert fps_of(TimeLimited(env, 3)) == 7
    assert copy.copy(TimeLimited(env, 3)).env is inner


def test_unknown_arguments_of_ones_own_environment_name_the_nearest(own: None) -> None:
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.lo: own_environment:Odd takes no such .*mean 'low'"):
        catalog.make(EnvironmentConfig(id="own_environment:Odd", kwargs={"lo": 2}))


class Wrapped(gymnasium.Env[Any, Any]):
    """An environment whose rewards are arrays of one number."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), np.array([1.5]), False, False, {}


def test_a_reward_may_be_an_array_of_one_number() -> None:
    env = Gym(Wrapped(), EnvironmentConfig(id="own"))
    env.reset(0)
    assert env.step({"agent": np.zeros(1, np.int64)}).reward["agent"].tolist() == [1.5]
