from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.toys.toy import chain_values
from cadenza.envs.vector import make_vector


def best_return(id: str, answer: Any) -> float:
    """Return the return of an episode of a policy that knows the answer."""
    env = catalog.make(EnvironmentConfig(id=id))
    frame, total = env.reset(0), 0.0
    while not (frame.terminated or frame.truncated):
        frame = env.step({"agent": answer(frame)})
        total += float(frame.reward["agent"][0])
    return total


def test_the_optimal_policies_reach_the_toys_thresholds() -> None:
    assert best_return("toy/identity", lambda frame: frame.obs["agent"]) == 16
    assert best_return("toy/identity_box", lambda frame: frame.obs["agent"]) == 0
    assert best_return("toy/dict", lambda frame: frame.obs["agent"]["useful"].argmax(-1)) == 16
    assert best_return("toy/image", lambda frame: frame.obs["agent"][:, 0, 0].argmax(-1) // 2) == 16
    assert best_return("toy/masked", lambda frame: frame.mask["agent"].argmax(-1)) == 16


def middle_of_the_dot(frame: Any) -> np.ndarray:
    """Return the position relative to the middle of the image in pixels: across, down."""
    rows, columns = np.nonzero(frame.obs["agent"][0, 0] > 0)
    return np.array([columns.mean(), rows.mean()]) - 31.5


def test_a_scripted_policy_solves_toy_dot() -> None:
    def push(frame: Any) -> Any:
        return np.clip(-middle_of_the_dot(frame) / 52 / 0.15, -1, 1).astype(np.float32)[None]

    assert 20 < best_return("toy/dot", push) <= 25
    env = catalog.make(EnvironmentConfig(id="toy/dot", kwargs={"discrete": True}))
    frame = next(frame for frame in map(env.reset, range(99)) if abs(middle_of_the_dot(frame)).max() < 10)
    for action, axis, sign in ((1, 0, -1), (2, 0, 1), (3, 1, -1), (4, 1, 1), (0, 0, 0)):
        before = middle_of_the_dot(frame)
        frame = env.step({"agent": np.array([action])})
        moved = middle_of_the_dot(frame) - before
        assert moved[axis] == pytest.approx(sign * 0.15 * 52, abs=1)
        assert moved[1 - axis] == 0
    where = middle_of_the_dot(frame)
    expected = max(0.0, 1 - 3 * float(np.hypot(*where)) / 52)
    assert float(frame.reward["agent"][0]) == pytest.approx(expected, abs=0.05)


def test_toy_masked_allows_one_action_and_its_observation_is_constant() -> None:
    env = make_vector(EnvironmentConfig(id="toy/masked"), EpisodeSeeds(0, TRAIN), num_envs=4)
    rewards = []
    for _ in range(40):
        mask = env.current.mask["agent"]
        assert (mask.sum(-1) == 1).all()
        assert not env.current.obs["agent"].any()
        rewards.append(env.step({"agent": mask.argmin(-1)}).reward["agent"].sum())
    assert sum(rewards) == 0


def test_chain_values_equal_simulated_returns() -> None:
    values = chain_values(0.5, length=3)
    assert values.tolist() == [1.75, 1.5, 1.0, 0.0]


def test_the_second_runner_of_toy_pair_dies_once() -> None:
    env = make_vector(EnvironmentConfig(id="toy/pair"), EpisodeSeeds(0, TRAIN), num_envs=2)
    deaths = np.zeros(2, int)
    for step_number in range(1, 11):
        before = env.current.active["runner"].copy()
        action = {"runner": env.current.obs["runner"].argmax(-1), "shooter": env.current.obs["shooter"][..., :2].copy()}
        step = env.step(action)
        assert (step.reward["runner"] == before).all()  # a hit for the living, nothing for the dead
        assert np.abs(step.reward["shooter"]).max() < 1e-6
        deaths += step.died["runner"][:, 1]
        assert not step.died["runner"][:, 0].any()
        if step_number < 10:
            dead = ~step.active["runner"][:, 1]
            assert (deaths == dead).all()
            assert not step.obs["runner"][dead, 1].any()
            assert step.obs["runner"][~dead, 1].all()
    assert deaths.tolist() == [1, 1]
    assert step.truncated.all()
    assert step.active["runner"].all()  # the next episode has begun
    assert not step.final_obs["runner"][:, 1].any()
    assert [episode.returns["runner"][0] for episode in env.episodes()] == [10.0, 10.0]
