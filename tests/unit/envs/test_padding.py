"""`environment.padding`: agents with padded spaces play the same game, and one policy can control them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.padding import Padding
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.types import GroupSpec

SEEDS = EpisodeSeeds(3, TRAIN)
BATTLE = "skirmish/2m1x1h"  # marines, a bruiser and a healer, unlike in what they see and do
SPEAKER = "mpe/simple_speaker_listener"  # no masks of its own


def vector(id: str, way: Any, **settings: Any) -> Any:
    return make_vector(EnvironmentConfig(id=id, vectorize=way, **settings), SEEDS, num_envs=3)


@pytest.mark.parametrize("padding", ["spaces", "types"])
@pytest.mark.parametrize(("id", "way"), [(BATTLE, "native"), (BATTLE, "in_process"), (SPEAKER, "in_process")])
def test_padded_episodes_are_the_same_plus_zeros_types_and_masks(id: str, way: str, padding: str) -> None:
    plain, padded = vector(id, way), vector(id, way, padding=padding)
    groups, random, ended = plain.spec.groups, np.random.default_rng(0), 0
    widest = max(group.observation.shape[0] for group in groups.values())
    most = max(group.action.n for group in groups.values())
    kinds = np.eye(len(groups), dtype=np.float32) if padding == "types" else np.zeros((len(groups), 0), np.float32)
    one, two = plain.current, padded.current
    for _ in range(45):
        for (name, group), kind in zip(groups.items(), kinds, strict=True):
            assert padded.spec.groups[name].action == Discrete(most)
            for bare_obs, padded_obs in ((one.obs, two.obs), (one.final_obs, two.final_obs)):
                assert padded_obs[name].shape == (3, len(group.agents), widest + kinds.shape[1])
                assert padded_obs[name].dtype == bare_obs[name].dtype
                assert all(
                    padded.spec.groups[name].observation.contains(row)
                    for row in padded_obs[name].reshape(-1, padded_obs[name].shape[-1])
                )
                own = bare_obs[name].shape[-1]
                assert np.array_equal(padded_obs[name][..., :own], bare_obs[name])
                assert not padded_obs[name][..., own:widest].any()
                assert (padded_obs[name][..., widest:] == kind).all()
            own = int(group.action.n)
            assert (two.mask[name][..., :own] == one.mask.get(name, True)).all()
            assert not two.mask[name][..., own:].any()
            assert np.array_equal(one.reward[name], two.reward[name])
        action = random_actions(padded.spec.groups, two, random)
        one, two = plain.step(action), padded.step(action)
        ended += int(one.is_first.sum())
    assert ended > 0
    for ours, its in zip(plain.episodes(), padded.episodes(), strict=True):
        assert ours.seed == its.seed
        assert ours.total == its.total


@pytest.mark.parametrize("way", ["native", "in_process"])
def test_a_padded_group_of_all_is_restored_exactly_in_mid_episode(way: str) -> None:
    env, again = (vector(BATTLE, way, padding="types", groups="one") for _ in range(2))
    assert {name: len(group.agents) for name, group in env.spec.groups.items()} == {"all": 4}
    random = np.random.default_rng(1)
    for _ in range(20):
        env.step(random_actions(env.spec.groups, env.current, random))
    again.load_state_dict(env.state_dict())
    for _ in range(20):
        action = random_actions(env.spec.groups, env.current, random)
        one, two = env.step(action), again.step(action)
        for field in ("obs", "final_obs", "reward", "active", "mask"):
            assert getattr(one, field)["all"].tobytes() == getattr(two, field)["all"].tobytes(), field


def test_padded_agents_may_be_grouped_and_put_into_teams_as_listed() -> None:
    groups = {"front": ("marine_0", "bruiser_0"), "rear": ("marine_1", "healer_0")}
    config = EnvironmentConfig(id=BATTLE, padding="spaces", groups=groups, teams={"red": ("front",), "blue": ("rear",)})
    group_specs = catalog.make(config).spec.groups
    assert {name: (group.agents, group.team) for name, group in group_specs.items()} == {
        "front": (("marine_0", "bruiser_0"), "red"),
        "rear": (("marine_1", "healer_0"), "blue"),
    }


def test_equal_spaces_are_padded_only_by_types() -> None:
    alone = EnvironmentConfig(id="CartPole-v1", padding="types")
    assert type(catalog.make(alone)) is type(catalog.make(EnvironmentConfig(id="CartPole-v1")))
    observation, action = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
    groups = {name: GroupSpec((f"{name}_0",), observation, action) for name in "ab"}
    same = Padding(groups, add_types=False)
    assert same.groups == groups
    assert same.masks({}, {name: np.zeros(1) for name in groups}, axis=0) == {}
    typed = Padding(groups, add_types=True)
    assert typed.groups["a"].action == action
    assert typed.observations({"a": np.ones((1, 2)), "b": np.ones((1, 2))}, axis=0)["b"].tolist() == [[1, 1, 0, 1]]


@pytest.mark.parametrize(
    ("one", "other", "add_types", "message"),
    [
        (
            (Box(-1, 1, (3,), np.float32), Discrete(3)),
            (Box(-1, 1, (5,), np.float32), Box(-1, 1, (2,), np.float32)),
            False,
            r"environment\.padding: actions .* one acts in Discrete\(3\), other acts in Box\(2\) float32",
        ),
        (
            (Box(0, 255, (3, 8, 8), np.uint8), Discrete(3)),
            (Box(0, 255, (3, 9, 9), np.uint8), Discrete(3)),
            False,
            r"environment\.padding: observations .* one sees Box\(3x8x8\) uint8, other sees Box\(3x9x9\) uint8",
        ),
        (
            (Dict({"a": Discrete(2)}), Discrete(3)),
            (Dict({"a": Discrete(2)}), Discrete(3)),
            True,
            r"environment\.padding: observations .* one sees \{a: Discrete\(2\)\}",
        ),
        (
            (Box(-1, 1, (3,), np.float32), Discrete(3)),
            (Box(-1, 1, (3,), np.float64), Discrete(3)),
            False,
            r"vectors of one kind of numbers, and one sees Box\(3\) float32, other sees Box\(3\) float64",
        ),
    ],
)
def test_spaces_of_unlike_kinds_are_refused(one: Any, other: Any, add_types: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Padding({"one": GroupSpec(("one_0",), *one), "other": GroupSpec(("other_0",), *other)}, add_types)


def test_types_of_byte_observations_are_255() -> None:
    spaces = {name: Box(0, 255, (size,), np.uint8) for name, size in (("a", 3), ("b", 2))}
    groups = {name: GroupSpec((f"{name}_0",), space, Discrete(2)) for name, space in spaces.items()}
    padded = Padding(groups, add_types=True).observations(
        {"a": np.full((1, 3), 7, np.uint8), "b": np.full((1, 2), 7, np.uint8)}, axis=0
    )
    assert {name: array[0].tolist() for name, array in padded.items()} == {
        "a": [7, 7, 7, 255, 0],
        "b": [7, 7, 0, 0, 255],
    }
