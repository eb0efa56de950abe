"""Bandits: the same arms in every episode, with different noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.errors import ConfigError


def make(id: str, **kwargs: Any) -> Any:
    return catalog.make(EnvironmentConfig(id=id, kwargs=kwargs))


def pull(env: Any, seed: int, arm: int, times: int) -> tuple[list[int], np.ndarray]:
    """Pull arms; return the observation before each pull and its reward."""
    frame, contexts, rewards = env.reset(seed), [], []
    for _ in range(times):
        contexts.append(int(frame.obs["agent"][0]))
        frame = env.step({"agent": np.array([arm])})
        rewards.append(frame.reward["agent"][0])
    return contexts, np.array(rewards)


def test_arm_means_are_equal_within_a_problem_and_differ_between_problems() -> None:
    env, again, other = make("Bandit/ten_armed"), make("Bandit/ten_armed"), make("Bandit/ten_armed", problem=1)
    means = env.env.means.copy()
    pull(env, 5, 0, 20)
    np.testing.assert_array_equal(env.env.means, means)
    np.testing.assert_array_equal(again.env.means, means)
    assert not np.isin(other.env.means, means).any()
    assert means.shape == (1, 10)


@pytest.mark.parametrize("arm", [0, 3])
def test_bandit_rewards_are_normal_around_the_arms_mean(arm: int) -> None:
    env = make("Bandit/ten_armed", pulls=20_000)
    _, rewards = pull(env, 1, arm, 20_000)
    assert rewards.mean() == pytest.approx(env.env.means[0, arm], abs=0.03)  # four standard errors
    assert rewards.std() == pytest.approx(1, abs=0.03)


def test_a_bandit_episode_is_truncated_after_its_pulls() -> None:
    env = make("Bandit/ten_armed", pulls=3, arms=2)
    assert env.spec.max_episode_steps == 3
    env.reset(0)
    ends = [(frame.terminated, frame.truncated) for frame in (env.step({"agent": np.array([1])}) for _ in range(3))]
    assert ends == [(False, False), (False, False), (False, True)]


def test_nonstationary_means_start_at_the_problems_and_step_by_walk() -> None:
    env = make("Bandit/nonstationary", arms=500, walk=0.1, pulls=200)
    start = make("Bandit/ten_armed", arms=500).env.means
    for seed in (1, 2):
        env.reset(seed)
        np.testing.assert_array_equal(env.env.means, start)
        pull(env, seed, 0, 100)
        assert (env.env.means - start).std() == pytest.approx(0.1 * 10, rel=0.15)


def test_contexts_are_uniform_and_have_different_arms() -> None:
    env = make("Bandit/contextual", contexts=3, pulls=6000)
    contexts, rewards = pull(env, 4, 2, 6000)
    for context in range(3):
        here = np.array(contexts) == context
        assert here.mean() == pytest.approx(1 / 3, abs=0.03)
        assert rewards[here].mean() == pytest.approx(env.env.means[context, 2], abs=0.1)


@pytest.mark.parametrize(
    ("id", "kwargs", "words"),
    [
        ("Bandit/ten_armed", {"arms": 0}, "environment.kwargs.arms=0: must be a whole number, at least 1"),
        ("Bandit/ten_armed", {"pulls": 2.5}, "environment.kwargs.pulls=2.5"),
        ("Bandit/contextual", {"contexts": 0}, "environment.kwargs.contexts=0"),
        ("Bandit/nonstationary", {"walk": -1.0}, "environment.kwargs.walk=-1.0: cannot be negative"),
        ("Bandit/ten_armed", {"arm": 3}, "takes no such argument; did you mean 'arms'?"),
    ],
)
def test_impossible_bandits_are_refused(id: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make(id, **kwargs)
    assert words in str(refusal.value)
