"""Skirmish in real runs: win rates, resuming, groupings, PettingZoo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cadenza
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.records.episodes import load
from cadenza.records.folder import find
from cadenza.records.metrics import read
from harness.killing import assert_kills_leave_no_trace

QUICK: dict[str, Any] = {
    "environment.num_envs": 8,
    "algorithm.n_steps": 32,
    "algorithm.n_epochs": 1,
    "training.max_timesteps": 1024,
    "evaluation.episodes": 4,
}


def test_win_rates_are_in_metrics_evaluations_and_episode_records(tmp_path: Path) -> None:
    # an enemy whose hits take a point, and little time: random marines win about as often as not
    settings: dict[str, Any] = {**QUICK, "environment.kwargs": {"strength": 0.1}, "environment.max_episode_steps": 25}
    run = cadenza.train("skirmish/3m_vs_1m:ppo", runs_dir=tmp_path, **settings)
    folder = find(tmp_path, run.id)
    rows = read(folder.metrics)
    episodes = list(load(folder))
    assert {episode.won for episode in episodes} == {True, False}
    rates = [row["collect/win_rate"] for row in rows if "collect/win_rate" in row]
    assert any(0 < rate < 1 for rate in rates)
    assert rows[-1]["eval/win_rate"] in (0, 0.25, 0.5, 0.75, 1)
    assert run.evaluate(episodes=3)["win_rate"] in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)


def test_environments_without_wins_record_no_win_rate(tmp_path: Path) -> None:
    run = cadenza.train("toy/pair:ppo", runs_dir=tmp_path, **QUICK)
    folder = find(tmp_path, run.id)
    assert not [name for row in read(folder.metrics) for name in row if "win_rate" in name]
    assert {episode.won for episode in load(folder)} == {None}
    assert "win_rate" not in run.evaluate(episodes=2)


@pytest.mark.parametrize("groups", ["agent", {"front": ["bruiser_0"], "rear": ["marine_1", "marine_0"]}])
def test_regrouped_battles_have_the_same_episodes(groups: Any) -> None:
    config = EnvironmentConfig(id="skirmish/2m1x", groups=groups, vectorize="native")
    regrouped = make_vector(config, EpisodeSeeds(1, TRAIN), num_envs=4)
    plain = make_vector(EnvironmentConfig(id="skirmish/2m1x", vectorize="native"), EpisodeSeeds(1, TRAIN), num_envs=4)
    rows = {agent: (name, k) for name, group in regrouped.spec.groups.items() for k, agent in enumerate(group.agents)}
    rng = np.random.default_rng(0)
    for _ in range(80):
        action = random_actions(plain.spec.groups, plain.current, rng)
        theirs = {name: np.zeros((4, len(group.agents)), np.int64) for name, group in regrouped.spec.groups.items()}
        for name, group in plain.spec.groups.items():
            for k, agent in enumerate(group.agents):
                theirs[rows[agent][0]][:, rows[agent][1]] = action[name][:, k]
        one, two = plain.step(action), regrouped.step(theirs)
        assert one.state.tobytes() == two.state.tobytes()
        assert one.won.tobytes() == two.won.tobytes()
    ours, others = plain.episodes(), regrouped.episodes()
    assert ours
    assert [(e.seed, e.length, e.won) for e in ours] == [(e.seed, e.length, e.won) for e in others]


def test_a_killed_skirmish_run_resumes_bit_identical(tmp_path: Path) -> None:
    command = ["skirmish/2m1x1h:ppo", "environment.num_envs=8", "algorithm.n_steps=32", "algorithm.n_epochs=1"]
    assert_kills_leave_no_trace([*command, "algorithm.rewards=team", "--max-timesteps", "12000"], tmp_path, kills=3)


@pytest.mark.parametrize("map", ["3m", "2m1x1h"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_skirmish_passes_pettingzoos_api_tests(map: str) -> None:
    testing = pytest.importorskip("pettingzoo.test")
    from pettingzoo.utils.conversions import parallel_to_aec

    from cadenza.envs.skirmish.parallel import parallel_env

    testing.parallel_api_test(parallel_env(map), 200)
    testing.parallel_seed_test(lambda: parallel_env(map), 100)
    testing.api_test(parallel_to_aec(parallel_env(map)), 100)
    turns = parallel_to_aec(parallel_env(map))
    turns.reset(seed=0)
    testing.state_test(turns, parallel_env(map))


def test_in_pettingzoo_fallen_units_leave_and_living_ones_get_the_teams_reward() -> None:
    pytest.importorskip("pettingzoo")
    from cadenza.envs.skirmish.parallel import parallel_env

    env = parallel_env("3m", render_mode="rgb_array")
    observations, _ = env.reset(seed=4)
    infos: dict[str, Any] = {}
    sizes, earned = [], 0.0
    while env.agents:
        masks = {agent: observations[agent]["action_mask"] for agent in env.agents}
        assert all(env.observation_space(agent).contains(observations[agent]) for agent in env.agents)
        # the last that is allowed: an attack where one is
        observations, rewards, _, _, infos = env.step(
            {agent: int(np.flatnonzero(mask)[-1]) for agent, mask in masks.items()}
        )
        assert len(set(rewards.values())) == 1
        earned += next(iter(rewards.values()))
        sizes.append(len(env.agents))
    assert sorted(sizes, reverse=True) == sizes
    assert infos
    assert {info["won"] for info in infos.values()} <= {True, False}
    assert 0 < earned <= 20
    assert env.render().shape == (416, 416, 3)
    assert env.state().shape == env.state_space.shape
