"""Wrappers around teams: around each agent, and around a whole ParallelEnv."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.trees import map_tree

PAIR = "harness.teams:dying_pair"
HALVED = {"id": "harness.teams:Halved"}
SCALED = {"id": "ScaleReward", "factor": 0.1}
STILL = {"x": np.zeros(2, np.int64), "y": np.zeros(1, np.int64)}


def made(id: str = PAIR, **settings: Any) -> Any:
    return catalog.make(EnvironmentConfig(id=id, **settings))


def test_each_agent_has_a_frame_stack_and_scaled_rewards_of_its_own() -> None:
    env, bare = made(frame_stack=2, wrappers=(SCALED,)), made()
    assert {name: group.observation.shape for name, group in env.spec.groups.items()} == {"x": (2, 2), "y": (2, 3)}
    first, expected = env.reset(0), bare.reset(0)
    before = expected.obs
    for name in ("x", "y"):
        np.testing.assert_array_equal(first.obs[name], np.stack([before[name]] * 2, 1))
    for _ in range(2):  # and again in a second episode
        for _ in range(6):
            frame, expected = env.step(STILL), bare.step(STILL)
            for name in ("x", "y"):
                np.testing.assert_array_equal(frame.obs[name], np.stack([before[name], expected.obs[name]], 1))
                np.testing.assert_array_equal(frame.raw_reward[name], expected.reward[name])
                np.testing.assert_allclose(frame.reward[name], 0.1 * expected.reward[name], rtol=1e-6)
            assert (frame.truncated, frame.terminated) == (expected.truncated, expected.terminated)
            before = expected.obs
        env.reset(1)
        before = bare.reset(1).obs


def test_gymnasiums_wrappers_of_observations_change_spaces_and_values() -> None:
    env = made(wrappers=({"id": "RescaleObservation", "min_obs": 0, "max_obs": 1},))
    assert env.spec.groups["x"].observation.high.tolist() == [1, 1]
    assert env.reset(0).obs["y"].tolist() == [[pytest.approx(0.01)] * 3]


def test_a_wrapper_of_pettingzoos_kind_goes_around_the_team_and_returns_stay_raw() -> None:
    vector = make_vector(EnvironmentConfig(id=PAIR, wrappers=(HALVED, SCALED)), EpisodeSeeds(0, TRAIN), num_envs=1)
    assert vector.spec.groups["y"].observation.shape == (2,)
    step = vector.step(map_tree(lambda x: x[None], STILL))
    np.testing.assert_allclose(step.raw_reward["x"], [[10, 11]])
    np.testing.assert_allclose(step.reward["x"], [[0.5, 0.55]])
    for _ in range(5):
        vector.step(map_tree(lambda x: x[None], STILL))
    assert vector.episodes()[0].returns["x"].tolist() == [210, 63]
    vector.close()


@pytest.mark.parametrize(
    ("id", "settings"),
    [("mpe/simple_spread", {"wrappers": (SCALED,)}), ("skirmish/3m", {"frame_stack": 3}), (PAIR, {"frame_stack": 2})],
)
def test_wrapped_teams_are_restored_in_mid_episode(id: str, settings: Any) -> None:
    def vector() -> Any:
        return make_vector(EnvironmentConfig(id=id, **settings), EpisodeSeeds(3, TRAIN), num_envs=2)

    def walk(env: Any, steps: int) -> list[Any]:
        random, seen = np.random.default_rng(5), []
        for _ in range(steps):
            step = env.step(random_actions(env.spec.groups, env.current, random))
            seen.append(map_tree(np.copy, {"obs": step.obs, "reward": step.reward}))
        return seen

    one, other = vector(), vector()
    walk(one, 4)
    other.load_state_dict(one.state_dict())
    for left, right in zip(walk(one, 8), walk(other, 8), strict=True):
        map_tree(np.testing.assert_array_equal, left, right)
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("id", "settings", "words"),
    [
        (PAIR, {"rescale_actions": True}, "actions stay as they are"),
        (
            PAIR,
            {"wrappers": ({"id": "StickyAction", "repeat_action_probability": 0.5},)},
            "StickyAction changes actions",
        ),
        (PAIR, {"wrappers": ({"id": "AddRenderObservation"},)}, "needs a picture of its own for every agent"),
        (PAIR, {"wrappers": (SCALED, HALVED)}, r"wrappers\[1\].*put it before those of agents"),
        (PAIR, {"wrappers": ({"id": "harness.user_wrappers:nothing"},)}, "must return a ParallelEnv, not NoneType"),
        ("skirmish/3m", {"wrappers": (HALVED,)}, "is no gymnasium.Wrapper; only environments of PettingZoo"),
        ("classic/tictactoe", {"wrappers": (HALVED,)}, "only environments of PettingZoo whose agents act at the"),
        (PAIR, {"grayscale": True}, "shows no images"),
    ],
)
def test_what_a_team_cannot_have_is_refused(id: str, settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(id, **settings)


def test_a_wrapper_that_steps_several_times_is_refused_at_its_first_step() -> None:
    env = made(wrappers=({"id": "RepeatAction", "num_repeats": 2},))
    env.reset(0)
    with pytest.raises(ConfigError, match="steps several times at once"):
        env.step(STILL)
