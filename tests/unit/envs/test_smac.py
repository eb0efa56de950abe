"""StarCraft's battles with a stand-in of the published packages (tests/harness/starcraft)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.random_actions import random_actions
from cadenza.envs.seeds import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, MissingExtraError
from harness.command import cadenza

STANDIN = Path(__file__).parents[2] / "harness" / "starcraft"
PACKAGES = ("smac", "smacv2", "pysc2")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(STANDIN))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def battles(id: str, num_envs: int = 3, **settings: Any) -> Any:
    config = EnvironmentConfig(id=id, **settings)
    return make_vector(config, EpisodeSeeds(1, TRAIN), num_envs=num_envs)


def fight(env: Any, steps: int, seed: int = 0) -> Iterator[Any]:
    random = np.random.default_rng(seed)
    for _ in range(steps):
        yield env.step(random_actions(env.spec.groups, env.current, random))


def test_smac_battles_run_and_dead_units_take_action_0(installed: None) -> None:
    env = battles("smac/3m")
    assert env.spec.groups["agent"].agents == ("agent_0", "agent_1", "agent_2")
    died = 0
    for step in fight(env, 60):
        alive = step.active["agent"]
        assert np.array_equal(step.mask["agent"][..., 0], ~alive)
        assert not (step.died["agent"] & alive).any()
        assert not step.obs["agent"][~alive].any()
        died += int(step.died["agent"].sum())
    episodes = env.episodes()
    assert died
    assert len(episodes) > 3
    assert {episode.won for episode in episodes} == {True, False}
    for episode in episodes:  # a full victory is 20, whoever lives to see it
        assert episode.total == pytest.approx(20, abs=1e-4) if episode.won else episode.total < 20
    env.close()


def test_a_time_limit_or_a_crash_truncates_a_battle(installed: None) -> None:
    env = catalog.make(EnvironmentConfig(id="smac/3m", max_episode_steps=4))
    stop = {"agent": np.ones(3, np.int64)}
    env.reset(0)
    frames = [env.step(stop) for _ in range(4)]
    assert [(frame.terminated, frame.truncated) for frame in frames] == [(False, False)] * 3 + [(False, True)]
    broken = catalog.make(EnvironmentConfig(id="smac/3m", kwargs={"break_at": 2}))
    broken.reset(0)
    broken.step(stop)
    frame = broken.step(stop)
    assert (frame.terminated, frame.truncated, frame.won) == (False, True, False)


def test_the_game_is_launched_once_by_the_first_episodes_seed(installed: None) -> None:
    env: Any = catalog.make(EnvironmentConfig(id="smac/8m"))
    from smac.env import StarCraft2Env

    before = StarCraft2Env.launches
    env.reset(7)
    for _ in range(40):
        frame = env.step({"agent": np.argmax(env._game.get_avail_actions(), -1)})
        if frame.terminated:
            break
    env.reset(8)
    assert StarCraft2Env.launches == before + 1
    assert env._game._seed == 7


def test_a_resumed_run_begins_the_next_episodes(installed: None) -> None:
    old, new = battles("smac/3m"), battles("smac/3m")
    assert old.spec.restore == "restart"
    list(fight(old, 5))
    new.load_state_dict(old.state_dict())
    assert new.current.is_first.all()
    assert (new.state_dict()["numbers"] == 1).all()


def test_smacv2_ids_draw_armies_of_any_size(installed: None) -> None:
    env = battles("smacv2/zerg_4_vs_6", num_envs=2)
    group = env.spec.groups["agent"]
    assert (len(group.agents), int(group.action.n)) == (4, 12)
    list(fight(env, 10))


def test_reserved_smac_arguments_are_config_errors(installed: None) -> None:
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.map_name: is set by the id smac/3m"):
        battles("smac/3m", kwargs={"map_name": "8m"})
    with pytest.raises(ConfigError, match=r"dificulty"):
        battles("smac/3m", kwargs={"dificulty": "3"})


def test_an_id_without_starcraft_names_what_to_install() -> None:
    if "pysc2" in sys.modules:
        pytest.skip("StarCraft is installed here")
    for id, package in (("smac/3m", "oxwhirl/smac"), ("smacv2/terran_5_vs_5", "oxwhirl/smacv2")):
        with pytest.raises(MissingExtraError, match=f"StarCraft II.*{package}"):
            environments.resolve(id)


def test_train_without_starcraft_names_what_to_install() -> None:
    assert cadenza("train", "smac/3m:mappo").code == 69
