"""StarCraft's battles: the stand-ins that ship, also under the published packages' names (tests/harness/starcraft)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.config import environments
from cadenza.config.load import load
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
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
    """Play at random, but in the first environment hit the last enemy within reach or go west, which mostly wins."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        action = random_actions(env.spec.groups, env.current, random)
        for name, mask in env.current.mask.items():
            action[name][0] = mask.shape[-1] - 1 - mask[0, :, ::-1].argmax(-1)
        yield env.step(action)


def test_smac_battles_run_and_dead_units_take_action_0(installed: None) -> None:
    env = battles("smac/3m")
    assert env.spec.groups["marine"].agents == ("marine_0", "marine_1", "marine_2")
    died = 0
    for step in fight(env, 120):
        alive = step.active["marine"]
        assert np.array_equal(step.mask["marine"][..., 0], ~alive)
        assert not (step.died["marine"] & alive).any()
        assert not step.obs["marine"][~alive].any()
        died += int(step.died["marine"].sum())
    episodes = env.episodes()
    assert died
    assert len(episodes) > 3
    assert {episode.won for episode in episodes} == {True, False}
    for episode in episodes:  # a full victory is 20, whoever lives to see it
        assert episode.total == pytest.approx(20, abs=1e-4) if episode.won else episode.total < 20
    env.close()


def test_a_time_limit_or_a_crash_truncates_a_battle(installed: None) -> None:
    env = catalog.make(EnvironmentConfig(id="smac/3m", max_episode_steps=4))
    stop = {"marine": np.ones(3, np.int64)}
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
        frame = env.step({"marine": np.argmax(env._game.get_avail_actions(), -1)})
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
    env = battles("smacv2/zerg_4_vs_6", num_envs=2, groups="one")
    group = env.spec.groups["agent"]
    assert (len(group.agents), int(group.action.n)) == (4, 12)
    list(fight(env, 10))


# observations, states and actions of the published maps
SIZES = {
    "smac_dummy/3m": (30, 48, 9),
    "smac_dummy/2s3z": (80, 120, 11),
    "smac_dummy/1c3s5z": (162, 270, 15),
    "smac_dummy/MMM2": (176, 322, 18),
    "smac_dummy/corridor": (156, 282, 30),
    "smac_dummy/2c_vs_64zg": (332, 342, 70),
    "smacv2_dummy/terran_5_vs_5": (82, 120, 11),
    "smacv2_dummy/protoss_5_vs_5": (92, 130, 11),
}


@pytest.mark.parametrize("id", SIZES)
def test_stand_ins_have_the_sizes_of_the_published_maps(id: str) -> None:
    spec: Any = catalog.make(EnvironmentConfig(id=id)).spec
    first = next(iter(spec.groups.values()))
    assert (*first.observation.shape, *spec.state.shape, int(first.action.n)) == SIZES[id]


def test_every_map_can_be_played_with_its_stand_in() -> None:
    for id in environments.families()["smac_dummy"]:
        list(fight(battles(id, num_envs=1), 2))


def test_types_of_units_are_groups_with_actions_of_their_own() -> None:
    groups: Any = catalog.make(EnvironmentConfig(id="smac_dummy/MMM")).spec.groups
    shapes = {name: (len(group.agents), int(group.action.n)) for name, group in groups.items()}
    assert shapes == {"marauder": (2, 16), "marine": (7, 16), "medivac": (1, 15)}
    assert groups["medivac"].action_names[-1] == "heal 8"
    assert groups["marine"].action_names[-1] == "attack 9"


def test_one_group_of_all_units_works_with_padding() -> None:
    env = battles("smac_dummy/MMM", groups="one", padding="spaces")
    ((name, group),) = env.spec.groups.items()
    assert (name, len(group.agents), int(group.action.n)) == ("all", 10, 16)
    list(fight(env, 5))


def test_each_group_shows_the_units_of_its_type() -> None:
    env: Any = catalog.make(EnvironmentConfig(id="smacv2_dummy/terran_5_vs_5"))
    kinds = ("marine", "marauder", "medivac")
    assert {name: len(group.agents) for name, group in env.spec.groups.items()} == dict(
        zip(kinds, (5, 5, 4), strict=True)
    )
    seen = set()
    for seed in range(8):
        frame = env.reset(seed)
        assert sum(int(active.sum()) for active in frame.active.values()) == 5
        for number, name in enumerate(kinds):
            rows = frame.obs[name][frame.active[name]]
            assert not frame.obs[name][~frame.active[name]].any()
            assert (frame.mask[name][~frame.active[name]] == ([True] + [False] * (frame.mask[name].shape[1] - 1))).all()
            assert (rows[:, 77:80].argmax(1) == number).all()  # its type in its own observation
            seen.add((name, len(rows)))
    assert len(seen) > 4


def test_agents_without_a_unit_die_in_the_first_step_and_earn_nothing() -> None:
    env: Any = catalog.make(EnvironmentConfig(id="smacv2_dummy/zerg_3_vs_3"))
    first = env.reset(3)
    absent = {name: ~active for name, active in first.active.items()}
    frame = env.step({name: np.argmax(mask, -1) for name, mask in first.mask.items()})
    for name, rows in absent.items():
        assert frame.died[name][rows].all()
        assert not frame.reward[name][rows].any()
    again = env.step({name: np.argmax(mask, -1) for name, mask in frame.mask.items()})
    assert again.died is None or not any(again.died[name][rows].any() for name, rows in absent.items())


def test_orders_reach_the_units_of_the_agents_that_gave_them() -> None:
    env: Any = catalog.make(EnvironmentConfig(id="smacv2_dummy/terran_5_vs_5"))
    for seed in range(4):
        frame = env.reset(seed)
        orders: list[list[int]] = []
        play = env._game.step
        env._game.step = lambda actions, play=play, orders=orders: (orders.append(list(actions)), play(actions))[1]
        wanted = {"marine": 1, "marauder": 2, "medivac": 3}
        env.step({name: np.full(len(active), wanted[name]) for name, active in frame.active.items()})
        kinds = {number: name for name, number in env._game.ally_unit_map.items()}
        assert orders == [[wanted[kinds[env._game.agents[unit].unit_type]] for unit in range(5)]]


def test_medivacs_heal_and_cannot_win_alone() -> None:
    from cadenza.envs.families.starcraft_dummy import StarCraft2Env

    game = StarCraft2Env("MMM", seed=0)
    game.reset()
    game._place[:10] = 16.0
    game._points[3, 0] = 20.0
    assert game.get_avail_agent_actions(9)[6:] == [1] * 9 + [0]
    game._place[10:] = 0.0
    game.step([1] * 9 + [6 + 3])
    assert game._points[3, 0] == 29.0
    game._points[:9, 0] = 0.0
    _, over, info = game.step([0] * 9 + [1])
    assert over
    assert not info["battle_won"]


def test_reserved_smac_arguments_are_config_errors(installed: None) -> None:
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.map_name: is set by the id smac/3m"):
        battles("smac/3m", kwargs={"map_name": "8m"})
    with pytest.raises(ConfigError, match=r"dificulty"):
        battles("smac/3m", kwargs={"dificulty": "3"})


def own_learning_rates(spec: str, *overrides: str) -> dict[str, bool]:
    """Return for each group whether its learning rate is 1e-5."""
    config: Any = load(spec, overrides)
    env = catalog.make(config.environment).spec
    config.algorithm.check(env, 8)
    return {name: settings.learning_rate == 1e-5 for name, settings in config.algorithm.by_group(env.groups).items()}


@pytest.mark.parametrize("spec", ["smac_dummy/MMM:happo", "smac_dummy/MMM:mappo", "smacv2_dummy/terran_4_vs_5:mappo"])
def test_settings_of_a_type_reach_every_group_of_its_agents(spec: str) -> None:
    own = own_learning_rates(spec, "algorithm.groups={marine: {learning_rate: 1e-5, actor: {hidden_sizes: [8]}}}")
    assert own == {name: name.startswith("marine") for name in own}
    assert sum(own.values()) == (7 if "happo" in spec else 1)


def test_settings_under_a_name_that_a_group_has_are_that_groups_alone() -> None:
    groups = "environment.groups={marine: [marine_0, marine_1], rear: [marine_2]}"
    own = own_learning_rates("smac_dummy/3m:mappo", groups, "algorithm.groups={marine: {learning_rate: 1e-5}}")
    assert own == {"marine": True, "rear": False}


def test_a_type_that_no_group_consists_of_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.groups\.medivac: no such group or type.*environment\.groups"):
        own_learning_rates("smacv2_dummy/terran_5_vs_5:happo", "algorithm.groups={medivac: {learning_rate: 1e-5}}")


def test_an_id_without_starcraft_names_what_to_install() -> None:
    if "pysc2" in sys.modules:
        pytest.skip("StarCraft is installed here")
    for id, package in (("smac/3m", "oxwhirl/smac"), ("smacv2/terran_5_vs_5", "oxwhirl/smacv2")):
        with pytest.raises(MissingExtraError, match=f"StarCraft II.*{package}"):
            environments.resolve(id)


def test_train_without_starcraft_names_what_to_install() -> None:
    assert cadenza("train", "smac/3m:mappo").code == 69
