"""Minari's datasets, if the library is installed: every step is read, and a run can learn from them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from cadenza.data.datasets import open_dataset
from cadenza.data.ring_steps import FIRST, LAST, TERMINATED, TRUNCATED
from harness.command import last, train
from harness.datasets import SMALL_DQN, phases

here = pytest.mark.skipif(find_spec("minari") is None, reason="minari is not installed")


@pytest.mark.skipif(find_spec("minari") is not None, reason="minari is installed")
def test_without_minari_the_error_names_the_line_to_install(tmp_path: Path) -> None:
    outcome = train(tmp_path, "CartPole-v1:dqn", "training.dataset=minari:a/b-v0")
    outcome.refused(69, "training.dataset=minari:a/b-v0", "pip install 'cadenza[minari]'")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cartpole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Store twelve episodes of random actions, the last one truncated, with Minari."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    import minari
    from minari.data_collector import EpisodeBuffer

    env, buffers = gymnasium.make("CartPole-v1"), []
    env.action_space.seed(0)
    for number in range(12):
        steps: list[Any] = []
        observations = [env.reset(seed=number)[0]]
        while not (steps and (steps[-1][2] or steps[-1][3])) and (number < 11 or len(steps) < 5):
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            observations.append(obs)
            steps.append((action, reward, terminated, truncated))
        actions, rewards, terminations, truncations = (list(column) for column in zip(*steps, strict=True))
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=np.array(observations),
                actions=np.array(actions),
                rewards=rewards,
                terminations=terminations,
                truncations=truncations,
            )
        )
    made = minari.create_dataset_from_buffers("cartpole/random-v0", buffers, env=env, algorithm_name="random")
    env.close()
    return list(made.iterate_episodes())


@here
def test_every_step_of_minari_arrives(cartpole: list[Any]) -> None:
    dataset = open_dataset("minari:cartpole/random-v0")
    assert dataset.lengths.tolist() == [len(episode) + 1 for episode in cartpole]
    (rows,) = dataset.pieces()
    ends = dataset.lengths.cumsum()
    for episode, length, end in zip(cartpole, dataset.lengths, ends, strict=True):
        mine = {path: array[end - length : end] for path, array in rows.items()}
        assert np.array_equal(mine["groups.agent.obs"][:, 0], episode.observations)
        assert np.array_equal(mine["groups.agent.action"][:-1, 0], episode.actions)
        assert np.array_equal(mine["groups.agent.reward"][:-1, 0], episode.rewards)
        how = TERMINATED if episode.terminations[-1] else TRUNCATED
        assert mine["flags"].tolist()[-2:] == [how, LAST | how]
        assert mine["flags"][0] == FIRST
    totals = [float(episode.rewards.sum()) for episode in cartpole]
    assert dataset.facts["return_max"] == max(totals)
    assert open_dataset("minari:cartpole/random-v0").digest == dataset.digest


@here
def test_a_run_learns_from_minari(cartpole: list[Any], tmp_path: Path) -> None:
    offline = "{name: fit, type: offline, hooks: [{name: update, times: 10}], duration_updates: 40}"
    settings = [*SMALL_DQN, "training.dataset=minari:cartpole/random-v0", phases(offline)]
    train(tmp_path / "runs", "CartPole-v1:dqn", *settings).succeeded()
    assert last(tmp_path / "runs").read_status()["updates"] == 40
    assert last(tmp_path / "runs").read_decisions()["training.dataset"]["episodes"] == 12
    train(tmp_path / "other", "Acrobot-v1:dqn", *settings).refused(2, "environment.id", "CartPole-v1", "Acrobot-v1")


@here
def test_an_unknown_minari_dataset_is_refused_in_one_line(cartpole: list[Any], tmp_path: Path) -> None:
    outcome = train(tmp_path / "runs", "CartPole-v1:dqn", "training.dataset=minari:cartpole/expert-v0")
    outcome.refused(2, "minari:cartpole/expert-v0", "minari download cartpole/expert-v0")
    assert not (tmp_path / "runs").exists()
