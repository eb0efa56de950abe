"""`environment.groups` and `environment.teams`: members of groups, and the arrays that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.load import load
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families.pettingzoo import adapted
from cadenza.envs.grouping import Regrouping
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.translation import translate_vector
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.trees import leaves
from cadenza.types import GroupSpec
from harness.teams import Relay

SEEDS = EpisodeSeeds(3, TRAIN)
SPLIT = {"late": ("runner_1",), "gun": ("shooter_0",), "early": ("runner_0",)}


def members(id: str, **settings: Any) -> Any:
    groups = catalog.make(EnvironmentConfig(id=id, **settings)).spec.groups
    return {name: list(group.agents) for name, group in groups.items()}


@pytest.mark.parametrize(
    ("id", "groups", "expected"),
    [
        ("mpe/simple_spread", "auto", {"agent": ["agent_0", "agent_1", "agent_2"]}),
        ("mpe/simple_adversary", "auto", {"adversary": ["adversary_0"], "agent": ["agent_0", "agent_1"]}),
        ("mamujoco/Hopper-3x1", "auto", {"agent_0": ["agent_0", "agent_2"], "agent_1": ["agent_1"]}),
        ("toy/pair", "auto", {"runner": ["runner_0", "runner_1"], "shooter": ["shooter_0"]}),
        ("classic/tictactoe", "auto", {"player_1": ["player_1"], "player_2": ["player_2"]}),
        ("mpe/simple_crypto", "space", {"eve": ["eve_0"], "bob_0": ["bob_0", "alice_0"]}),
        ("classic/tictactoe", "space", {"player": ["player_1", "player_2"]}),
        ("mpe/simple_adversary", "agent", {name: [name] for name in ("adversary_0", "agent_0", "agent_1")}),
        ("toy/pair", "agent", {name: [name] for name in ("runner_0", "runner_1", "shooter_0")}),
        ("mpe/simple_spread", "one", {"agent": ["agent_0", "agent_1", "agent_2"]}),
        ("CartPole-v1", "agent", {"agent": ["agent"]}),
        ("butterfly/knights_archers_zombies", "one", {"all": ["archer_0", "archer_1", "knight_0", "knight_1"]}),
        ("toy/pair", SPLIT, {name: list(agents) for name, agents in SPLIT.items()}),
    ],
)
def test_groups_hold_the_agents_that_the_setting_asks_for(id: str, groups: Any, expected: Any) -> None:
    result = members(id, groups=groups)
    assert result == expected
    assert list(result) == list(expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": "one"}, r"environment\.groups=one: runner_0 sees Box\(3\) float32 and shooter_0 Box\(5\) float32"),
        (
            {"groups": {"a": ("runner_0", "runer_1"), "b": ("shooter_0",)}},
            r"environment\.groups\.a: unknown agent 'runer_1'; did you mean 'runner_1'\? \(agents: runner_0, ",
        ),
        (
            {"groups": {"a": ("runner_0", "runner_1"), "b": ("shooter_0", "runner_0")}},
            r"environment\.groups\.b: agent 'runner_0' is in a already",
        ),
        ({"groups": {"a": ("runner_0", "runner_1")}}, r"environment\.groups: shooter_0 missing"),
        ({"groups": {"a": ("runner_0",), "b": ()}}, r"environment\.groups\.b: is empty"),
        (
            {"groups": {"a": ("runner_0", "shooter_0"), "b": ("runner_1",)}},
            r"environment\.groups\.a: runner_0 sees Box\(3\) float32 and shooter_0 Box\(5\)",
        ),
        (
            {"teams": {"red": ("runners",), "blue": ("shooter",)}},
            r"environment\.teams\.red: unknown group 'runners'; did you mean 'runner'\? \(groups: runner, shooter\)",
        ),
        ({"teams": {"red": ("runner",)}}, r"environment\.teams: shooter missing; every group must be named once"),
    ],
)
def test_an_impossible_grouping_is_a_config_error_with_the_key(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        catalog.make(EnvironmentConfig(id="toy/pair", **settings))


def test_a_single_agent_is_never_translated() -> None:
    plain = catalog.make(EnvironmentConfig(id="CartPole-v1"))
    for groups in ("auto", "space", "agent", "one"):
        assert type(catalog.make(EnvironmentConfig(id="CartPole-v1", groups=groups))) is type(plain)


def test_groups_and_teams_come_from_yaml_and_the_command_line() -> None:
    grouping = "environment.groups={front: [runner_0], rear: [runner_1], guns: [shooter_0]}"
    config = load("toy/pair:ppo", [grouping, "environment.teams={red: [front, guns], blue: [rear]}"])
    groups = catalog.make(config.environment).spec.groups
    assert {name: (group.agents, group.team) for name, group in groups.items()} == {
        "front": (("runner_0",), "red"),
        "rear": (("runner_1",), "blue"),
        "guns": (("shooter_0",), "red"),
    }
    with pytest.raises(ConfigError, match=r"environment\.groups='spce': .*did you mean 'space'"):
        load("toy/pair:ppo", ["environment.groups=spce"])


def test_a_group_of_several_teams_is_a_team_named_after_both() -> None:
    groups = catalog.make(EnvironmentConfig(id="classic/tictactoe", groups="one")).spec.groups
    assert groups["player"].team == "player_1+player_2"


def by_agent(groups: Any, arrays: Any, axis: Any) -> Any:
    return {
        agent: {path: np.take(leaf, row, axis) for path, leaf in leaves(arrays[name])}
        for name, group in groups.items()
        for row, agent in enumerate(group.agents)
    }


@pytest.mark.parametrize("groups", ["agent", SPLIT, {"all": ("runner_1", "runner_0"), "gun": ("shooter_0",)}])
@pytest.mark.parametrize("way", ["one by one", "together"])
def test_another_grouping_plays_the_same_episodes(groups: Any, way: str) -> None:
    config = EnvironmentConfig(id="toy/pair", groups=groups)
    plain = make_vector(EnvironmentConfig(id="toy/pair"), SEEDS, num_envs=3)
    if way == "together":
        other = translate_vector(make_vector(EnvironmentConfig(id="toy/pair"), SEEDS, num_envs=3), config)
    else:
        other = make_vector(config, SEEDS, num_envs=3)
    regrouping = Regrouping(plain.spec.groups, other.spec.groups)
    random, died = np.random.default_rng(0), 0
    for _ in range(35):
        action = random_actions(plain.spec.groups, plain.current, random)
        one, two = plain.step(action), other.step(regrouping.per_agent(action, axis=1))
        died += int(one.died["runner"].sum())
        for field in ("obs", "final_obs", "reward", "active", "died"):
            mine = by_agent(plain.spec.groups, getattr(one, field), 1)
            theirs = by_agent(other.spec.groups, getattr(two, field), 1)
            assert mine.keys() == theirs.keys()
            for agent, parts in mine.items():
                for path, array in parts.items():
                    assert array.tobytes() == theirs[agent][path].tobytes(), (field, agent)
        for field in ("terminated", "truncated", "is_first", "state", "final_state"):
            assert np.array_equal(getattr(one, field), getattr(two, field))
    assert died > 0
    mine, theirs = plain.episodes(), other.episodes()
    assert len(mine) == len(theirs) > 3
    for ours, its in zip(mine, theirs, strict=True):
        assert by_agent(plain.spec.groups, ours.returns, 0) == by_agent(other.spec.groups, its.returns, 0)
        for agent, actions in by_agent(plain.spec.groups, ours.actions, 1).items():
            assert np.array_equal(actions[""], by_agent(other.spec.groups, its.actions, 1)[agent][""])
    if way == "together":
        again = translate_vector(make_vector(EnvironmentConfig(id="toy/pair"), SEEDS, num_envs=3), config)
        again.load_state_dict(other.state_dict())
        for (_, a), (_, b) in zip(leaves(again.current.obs), leaves(other.current.obs), strict=True):
            assert a.tobytes() == b.tobytes()


def test_regrouping_moves_masks_and_dict_observations_with_their_agents() -> None:
    frame = adapted(Relay(), EnvironmentConfig(id="own")).reset(0)
    spaces = adapted(Relay(), EnvironmentConfig(id="own")).spec.groups["b"]
    old = {"a": GroupSpec(("a_0",), spaces.observation, spaces.action), "b": spaces}
    agents = {"mixed": ("b_1", "a_0"), "b_0": ("b_0",)}
    new = {name: GroupSpec(some, spaces.observation, spaces.action) for name, some in agents.items()}
    regrouping = Regrouping(old, new)
    moved = regrouping.observations(frame.obs, axis=0)
    assert moved["mixed"]["numbers"].tolist() == [[0, 2], [0, 0]]
    assert moved["mixed"]["picture"].shape == (2, 3, 5, 4)
    masks = regrouping.masks({"a": np.array([[True, False, True]])}, frame.reward, axis=0)  # the others have none
    assert masks["mixed"].tolist() == [[True, True, True], [True, False, True]]
    assert "b_0" not in masks
    assert regrouping.actions(moved, axis=0)["b"]["numbers"].tolist() == frame.obs["b"]["numbers"].tolist()


def test_groups_of_one_agent_have_the_masks_states_and_deaths_of_the_types() -> None:
    own = catalog.make(EnvironmentConfig(id="toy/trio"))
    apart = catalog.make(EnvironmentConfig(id="toy/trio", groups="agent"))
    before, after = own.reset(3), apart.reset(3)
    random = np.random.default_rng(0)
    for _ in range(12):
        assert set(after.mask or ()) == {"scout_0", "scout_1"}
        for name, group in own.spec.groups.items():
            for row, agent in enumerate(group.agents):
                assert after.obs[agent].tolist() == [before.obs[name][row].tolist()]
                assert after.active[agent].tolist() == [before.active[name][row]]
                assert after.died[agent].tolist() == [before.died[name][row]]
                if name in before.mask:
                    assert after.mask[agent].tolist() == [before.mask[name][row].tolist()]
        np.testing.assert_array_equal(after.state, before.state)
        action = {"scout": random.integers(0, 4, 2), "engineer": random.integers(0, 2, (2, 2))}
        action["gunner"] = random.uniform(-1, 1, (1, 2)).astype(np.float32)
        split = {
            agent: action[name][[row]] for name, g in own.spec.groups.items() for row, agent in enumerate(g.agents)
        }
        before, after = own.step(action), apart.step(split)
        for name, group in own.spec.groups.items():
            assert [float(after.reward[agent][0]) for agent in group.agents] == before.reward[name].tolist()
