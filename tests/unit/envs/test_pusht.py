"""PushT: observations, repeatable episodes, the scripted expert."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from cadenza.config import environments
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.families.gym import Gym
from cadenza.envs.families.pusht_expert import AHEAD, GOAL, Expert, goal_distance, nearest_on
from cadenza.errors import ConfigError, MissingExtraError
from cadenza.trees import leaves, map_tree

ID = "gym_pusht/PushT-v0"


def play(env: Gym, seed: int) -> list[bytes]:
    rng, frame = np.random.default_rng(seed), env.reset(seed)
    frames = [leaf.tobytes() for _, leaf in leaves(frame.obs)]
    for _ in range(20):
        frame = env.step({"agent": rng.uniform(0, 512, (1, 2)).astype(np.float32)})
        frames += [leaf.tobytes() for _, leaf in leaves({"obs": frame.obs, "reward": frame.reward})]
    return frames


@pytest.mark.parametrize("obs_type", ["state", "environment_state_agent_pos", "pixels"])
def test_a_used_pusht_plays_the_same_episode_as_a_fresh_one(obs_type: str) -> None:
    pytest.importorskip("gym_pusht", reason="the extra pusht is not installed")
    used, fresh = (catalog.make(EnvironmentConfig(id=ID, kwargs={"obs_type": obs_type})) for _ in range(2))
    assert isinstance(used, Gym)
    assert isinstance(fresh, Gym)
    play(used, 1)
    assert play(used, 2) == play(fresh, 2)
    assert used.spec.max_episode_steps == 300


def test_pusht_actions_are_clipped_only_under_clip_actions() -> None:
    pytest.importorskip("gym_pusht", reason="the extra pusht is not installed")
    beyond, at = np.full((1, 2), 900, np.float32), np.full((1, 2), 512, np.float32)

    def pushed(action: np.ndarray, clip: bool) -> bytes:
        env = catalog.make(EnvironmentConfig(id=ID, clip_actions=clip))
        env.reset(3)
        return b"".join(leaf.tobytes() for _, leaf in leaves(env.step({"agent": action}).obs))

    assert pushed(beyond, clip=True) == pushed(at, clip=True) == pushed(at, clip=False)
    assert pushed(beyond, clip=False) != pushed(at, clip=False)


def test_an_id_without_the_extra_names_the_line_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gym_pusht", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[pusht\]'"):
        environments.resolve(ID)


@pytest.mark.parametrize("obs_type", ["state", "environment_state_agent_pos"])
def test_the_pusht_expert_reaches_the_goal(obs_type: str) -> None:
    pytest.importorskip("gym_pusht", reason="the extra pusht is not installed")
    env = catalog.make(EnvironmentConfig(id=ID, kwargs={"obs_type": obs_type}))
    frame, expert, random = env.reset(4), Expert(), np.random.default_rng(0)
    while not (frame.terminated or frame.truncated):
        obs = map_tree(lambda x: x[0], frame.obs["agent"])
        frame = env.step({"agent": expert(obs, random)[None].astype(np.float32)})
    assert frame.terminated
    assert frame.reward["agent"][0] == 1


def test_the_pusht_expert_reads_the_same_pose_from_both_observations() -> None:
    pytest.importorskip("gym_pusht", reason="the extra pusht is not installed")
    kinds = ("state", "environment_state_agent_pos")
    envs = [catalog.make(EnvironmentConfig(id=ID, kwargs={"obs_type": kind})) for kind in kinds]
    (agent, pose), (same, corners) = (
        Expert()._parse(map_tree(lambda x: x[0], env.reset(5).obs["agent"])) for env in envs
    )
    np.testing.assert_allclose(agent, same)
    np.testing.assert_allclose(pose[:2], corners[:2], atol=1e-3)
    assert np.cos(pose[2] - corners[2]) == pytest.approx(1)


def test_the_pusht_expert_refuses_pixels() -> None:
    pytest.importorskip("gym_pusht", reason="the extra pusht is not installed")
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.obs_type"):
        Expert()(np.zeros((3, 96, 96), np.uint8), np.random.default_rng(0))


def test_goal_distance_is_the_mean_distance_of_the_corners() -> None:
    moved, turned = GOAL + np.array([3, 4, 0]), GOAL + np.array([0, 0, np.pi])
    place, beside, round_about = goal_distance(np.array([GOAL, moved, turned]))
    assert (place, beside) == (pytest.approx(0), pytest.approx(5))
    assert round_about > 100


def test_nearest_on_never_goes_back_on_the_path() -> None:
    way, lengths = np.array([(0.0, 0.0), (100.0, 0.0), (100.0, 100.0)]), np.array([0.0, 100.0, 200.0])
    assert nearest_on(way, lengths, np.array([30.0, 5.0]), 0.0) == pytest.approx(30)
    assert nearest_on(way, lengths, np.array([10.0, 5.0]), 30.0) == pytest.approx(30)
    assert nearest_on(way, lengths, np.array([97.0, 20.0]), 110.0 - AHEAD) == pytest.approx(120)
