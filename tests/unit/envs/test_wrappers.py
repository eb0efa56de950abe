from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from cadenza.config import registry
from cadenza.config.convert import build, to_dict
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, MissingExtraError, NotFoundError
from harness.user_wrappers import Doubled

SEEDS = EpisodeSeeds(run_seed=7, stream=TRAIN)


def made(id: str = "CartPole-v1", **settings: Any) -> Any:
    return catalog.make(EnvironmentConfig(id=id, **settings))


def walk(env: Any, steps: int, seed: int = 0) -> Any:
    rng, observations = np.random.default_rng(seed), []
    for _ in range(steps):
        step = env.step(random_actions(env.spec.groups, env.current, rng))
        obs, reward, raw = (tree["agent"].copy() for tree in (step.obs, step.reward, step.raw_reward))
        observations.append((obs, reward, raw))
    return observations, env.episodes()


def test_a_name_alone_is_short_for_a_wrapper_without_arguments() -> None:
    config = build(EnvironmentConfig, {"id": "CartPole-v1", "wrappers": ["SignReward", {"id": "HideVelocity"}]})
    assert config.wrappers == ({"id": "SignReward"}, {"id": "HideVelocity"})
    assert build(EnvironmentConfig, to_dict(config)) == config


def test_wrappers_are_applied_in_order_and_the_facts_are_those_after_them() -> None:
    env = made(
        "MountainCar-v0",
        wrappers=["HideVelocity", {"id": "RescaleObservation", "min_obs": 0, "max_obs": 1}, "FlattenObservation"],
    )
    space = env.spec.groups["agent"].observation
    assert (space.low.tolist(), space.high.tolist()) == ([0.0], [1.0])
    assert space.contains(env.reset(1).obs["agent"][0])


@pytest.mark.parametrize(
    ("id", "positions"),
    [
        ("CartPole-v1", [0, 2]),
        ("Pendulum-v1", [0, 1]),
        ("Acrobot-v1", [0, 1, 2, 3]),
        ("MountainCar-v0", [0]),
        ("MountainCarContinuous-v0", [0]),
        ("LunarLander-v3", [0, 1, 4, 6, 7]),
    ],
)
def test_hide_velocity_removes_velocities(id: str, positions: list[int]) -> None:
    bare, masked = made(id), made(id, wrappers=["HideVelocity"])
    assert np.array_equal(masked.reset(3).obs["agent"], bare.reset(3).obs["agent"][:, positions])
    for env in (bare, masked):
        env.close()


def test_hide_velocity_takes_indices_where_it_knows_none() -> None:
    env = made("InvertedPendulum-v5", wrappers=[{"id": "HideVelocity", "indices": [2, 3]}])
    assert env.spec.groups["agent"].observation.shape == (2,)
    with pytest.raises(
        ConfigError, match=r"wrappers\[0\]: HideVelocity does not know the velocities of Inv.* set indices"
    ):
        made("InvertedPendulum-v5", wrappers=["HideVelocity"])


def test_the_native_version_is_not_chosen_under_wrappers() -> None:
    decisions: dict[str, Any] = {}
    env = make_vector(EnvironmentConfig(id="CartPole-v1", wrappers=("HideVelocity",)), SEEDS, decisions=decisions)
    assert decisions["environment.vectorize"]["value"] == "in_process"
    assert env.spec.groups["agent"].observation.shape == (2,)
    env.close()
    with pytest.raises(
        ConfigError, match=r"vectorize=native: CartPole-v1 has no native version under environment\.fra"
    ):
        make_vector(EnvironmentConfig(id="CartPole-v1", vectorize="native", frame_stack=2), SEEDS)


CLIPPED = ({"id": "ClipReward", "min_reward": -0.1, "max_reward": 0.1},)


@pytest.mark.parametrize("way", ["in_process", "workers"])
def test_episodes_report_the_environments_own_rewards(way: Any) -> None:
    config = EnvironmentConfig(id="LunarLander-v3", vectorize=way, workers=2, wrappers=CLIPPED, max_episode_steps=60)
    env = make_vector(config, SEEDS, num_envs=3)
    observations, episodes = walk(env, 130)
    env.close()
    assert len(episodes) >= 3
    assert all(np.abs(reward).max() <= np.float32(0.1) for _, reward, _ in observations)
    first = next(episode for episode in episodes if (episode.env, episode.number) == (1, 0))
    raw = np.sum([raw[1] for _, _, raw in observations[: first.length]], axis=0, dtype=np.float64)
    assert np.array_equal(first.returns["agent"], raw)

    again, bare = made("LunarLander-v3", wrappers=CLIPPED), made("LunarLander-v3")
    for episode in episodes:
        again.reset(episode.seed)
        bare.reset(episode.seed)
        total = np.zeros(1)
        for action in episode.actions["agent"]:
            frame, plain = again.step({"agent": action}), bare.step({"agent": action})
            assert frame.raw_reward is not None
            assert np.array_equal(frame.raw_reward["agent"], plain.reward["agent"])
            assert plain.raw_reward is None
            total += frame.raw_reward["agent"]
        assert np.array_equal(total, episode.returns["agent"])
    for made_env in (again, bare):
        made_env.close()


def test_environments_without_wrappers_have_no_raw_reward() -> None:
    env = make_vector(
        EnvironmentConfig(id="CarRacing-v3", grayscale=True, resize=16, vectorize="in_process"), SEEDS, num_envs=1
    )
    assert env.current.raw_reward == {}
    env.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"id": "Pendulum-v1", "wrappers": ("HideVelocity",), "frame_stack": 3, "rescale_actions": True},
        {"id": "CartPole-v1", "wrappers": ({"id": "StickyAction", "repeat_action_probability": 0.4}, "SignReward")},
        {"id": "CartPole-v1", "wrappers": ({"id": "RepeatAction", "num_repeats": 3},)},
        {"id": "MountainCar-v0", "wrappers": ("TimeAwareObservation", {"id": "DelayObservation", "delay": 2})},
        {"id": "toy/image", "wrappers": ({"id": "FrameStackObservation", "stack_size": 2},), "resize": 5},
    ],
)
def test_wrapped_environments_are_restored_exactly_also_in_workers(settings: Any) -> None:
    config = EnvironmentConfig(**settings, vectorize="in_process")
    here = make_vector(config, SEEDS, num_envs=3)
    apart = make_vector(EnvironmentConfig(**settings, vectorize="workers", workers=2), SEEDS, num_envs=3)
    ours, theirs = walk(here, 23), walk(apart, 23)
    new = make_vector(config, SEEDS, num_envs=3)
    new.load_state_dict(here.state_dict())
    for env in (here, new):
        env.episodes()
    for one, two in zip(ours[0], theirs[0], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    after, after_new = walk(here, 40, seed=1), walk(new, 40, seed=1)
    for one, two in zip(after[0], after_new[0], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert [e.returns["agent"].tolist() for e in after[1]] == [e.returns["agent"].tolist() for e in after_new[1]]
    for env in (here, apart, new):
        env.close()


def test_the_time_limit_counts_the_environments_own_steps() -> None:
    env = made("Pendulum-v1", wrappers=[{"id": "RepeatAction", "num_repeats": 4}])
    env.reset(0)
    ends = [env.step({"agent": np.zeros((1, 1), np.float32)}).truncated for _ in range(50)]
    assert ends == [False] * 49 + [True]
    assert env.spec.max_episode_steps == 200


def test_rewards_of_repeated_actions_are_all_counted() -> None:
    env = made("Pendulum-v1", wrappers=[{"id": "RepeatAction", "num_repeats": 4}, "SignReward"])
    bare = made("Pendulum-v1")
    env.reset(5)
    bare.reset(5)
    action = {"agent": np.ones((1, 1), np.float32)}
    frame = env.step(action)
    assert frame.reward["agent"].tolist() == [-1.0]
    each = [float(bare.step(action).reward["agent"][0]) for _ in range(4)]
    assert frame.raw_reward["agent"][0] == pytest.approx(sum(each), rel=1e-6)


def test_actions_from_minus_one_to_one_reach_the_bounds() -> None:
    env = made("harness.user_wrappers:Camera", rescale_actions=True)
    space = env.spec.groups["agent"].action
    assert (space.low.tolist(), space.high.tolist()) == ([-1, -1], [1, 1])
    env.reset(0)
    for action, expected in (((-1, -1), (-1, 0)), ((1, 1), (3, 10)), ((0, 0), (1, 5)), ((-7, 7), (-1, 10))):
        env.step({"agent": np.array([action], np.float32)})
        assert env.bare.unwrapped.last_action.tolist() == list(expected)
    with pytest.raises(ConfigError, match=r"environment\.rescale_actions: needs continuous actions with finite bounds"):
        made("CartPole-v1", rescale_actions=True)


def test_add_render_observation_returns_pictures() -> None:
    env = made("CartPole-v1", wrappers=["AddRenderObservation"], grayscale=True, resize=(40, 60))
    picture = env.reset(1).obs["agent"]
    assert picture.shape == (1, 1, 40, 60)
    assert picture.std() > 0
    env.close()


@pytest.mark.parametrize("wrapper", ["gymnasium.wrappers:AddRenderObservation", "harness.user_wrappers:Pictured"])
def test_render_mode_is_set_for_wrappers_that_render_by_any_name(wrapper: str) -> None:
    env = made("CartPole-v1", wrappers=[wrapper])
    assert env.reset(1).obs["agent"].shape == (1, 3, 400, 600)
    env.close()


def test_a_wrapper_of_ones_own_by_import_path_and_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EnvironmentConfig(id="CartPole-v1", wrappers=({"id": "harness.user_wrappers:Doubled", "factor": 3},))
    env = catalog.make(config)
    env.reset(0)
    frame = env.step({"agent": np.array([0])})
    assert (frame.reward["agent"].tolist(), frame.raw_reward["agent"].tolist()) == ([3.0], [1.0])

    monkeypatch.setattr(registry, "WRAPPERS", dict(registry.WRAPPERS))
    registry.register_wrapper("Doubled")(Doubled)
    vector = make_vector(
        EnvironmentConfig(id="CartPole-v1", vectorize="workers", workers=1, wrappers=("Doubled",)), SEEDS, num_envs=1
    )
    assert walk(vector, 1)[0][0][1].tolist() == [[2.0]]
    vector.close()

    @registry.register_wrapper("Local")
    class Local(Doubled):
        pass

    assert catalog.make(EnvironmentConfig(id="CartPole-v1", wrappers=("Local",))).reset(0).raw_reward is not None
    with pytest.raises(ConfigError, match="wrapper 'Local' cannot be imported by another process"):
        make_vector(EnvironmentConfig(id="CartPole-v1", vectorize="workers", wrappers=("Local",)), SEEDS, num_envs=1)


@pytest.mark.parametrize(
    ("wrapper", "error", "message"),
    [
        ("ClipRewrd", NotFoundError, r"wrappers\[0\]: unknown wrapper 'ClipRewrd'; did you mean 'ClipReward'\?"),
        ("HideVelocities", NotFoundError, "did you mean 'HideVelocity'"),
        (
            {"id": "ClipReward", "min_rewrd": 1},
            ConfigError,
            r"wrappers\[0\]\.min_rewrd: ClipReward takes no such argument; did you mean 'min_reward'",
        ),
        ({"id": "ClipReward", "min_reward": 2, "max_reward": 1}, ConfigError, "cannot be made with .*InvalidBound"),
        ("NormalizeObservation", ConfigError, r"set algorithm\.normalize_obs"),
        ("NormalizeReward", ConfigError, r"set algorithm\.normalize_reward"),
        ("RecordVideo", ConfigError, r"set evaluation\.video"),
        ("TimeLimit", ConfigError, r"set environment\.max_episode_steps"),
        ("gymnasium.wrappers:TimeLimit", ConfigError, r"set environment\.max_episode_steps"),
        ("RecordEpisodeStatistics", ConfigError, r"logging\.episodes"),
        ("Autoreset", ConfigError, "the engine resets"),
        ("TransformReward", ConfigError, "takes a function, which a config cannot hold"),
        ("nowhere.at_all:Wrapper", ConfigError, "cannot import 'nowhere.at_all:Wrapper'"),
        ("harness.user_wrappers:nothing", ConfigError, r"must return a gymnasium\.Env, not NoneType"),
        ("harness.user_wrappers:gymnasium", ConfigError, "must be a wrapper class"),
    ],
)
def test_wrapper_errors_name_the_wrapper_and_its_key(wrapper: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        made(wrappers=[wrapper])
    assert "\n" not in str(caught.value)
    assert "environment.wrappers[0]" in str(caught.value) or "cannot import" in str(caught.value)


def test_a_wrapper_without_its_package_is_a_missing_extra_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=r"ResizeObservation needs a package .*environment\.resize needs none"):
        made("CarRacing-v3", wrappers=[{"id": "ResizeObservation", "shape": [8, 8]}])


@pytest.mark.parametrize("entry", [3, {"name": "SignReward"}, {"id": ""}, ["SignReward"]])
def test_an_entry_without_an_id_is_refused(entry: Any) -> None:
    with pytest.raises(ConfigError, match=r"environment\.wrappers\[1\]: needs an id"):
        EnvironmentConfig(id="CartPole-v1", wrappers=("SignReward", entry))


def test_wrappers_in_gymnasiums_vector_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"vectorize=gymnasium: cannot be used with environment\.wrappers"):
        make_vector(EnvironmentConfig(id="CartPole-v1", vectorize="gymnasium", wrappers=("SignReward",)), SEEDS)
