from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.config.load import load
from cadenza.data.datasets import Dataset, open_dataset
from cadenza.data.ring_steps import LAST
from cadenza.tools.export import EpisodeSelection, whole_episodes
from cadenza.types import SINGLE_GROUP, Acted, Mode, Step, Tree
from harness.command import TOY, Outcome, cadenza, last, train
from harness.datasets import SMALL_DQN

PENDULUM = [
    "Pendulum-v1:ppo",
    "environment.num_envs=2",
    "environment.max_episode_steps=300",
    "algorithm.n_steps=32",
    "algorithm.batch_size=64",
    "evaluation.episodes=2",
    "--max-timesteps",
    "64",
]


def export(root: Path, out: Path, *arguments: object) -> Outcome:
    return cadenza("export", "@last", "--format", "dataset", "--out", out, "--runs-dir", root, *arguments)


def summary(outcome: Outcome) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(outcome.succeeded().out.splitlines()[-1])
    return result


def rows_of(dataset: Dataset) -> dict[str, np.ndarray]:
    pieces = list(dataset.pieces())
    return {path: np.concatenate([piece[path] for piece in pieces]) for path in pieces[0]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(root, "toy/identity:dqn", *SMALL_DQN, "--max-timesteps", "602").succeeded()
    return root


def test_the_replay_of_the_latest_checkpoint_is_written(trained: Path, tmp_path: Path) -> None:
    line = export(trained, tmp_path / "a").succeeded().out
    assert line.count("\n") == 1
    assert "604 transitions in 40 episodes (4 of them incomplete), return " in line
    facts = summary(export(trained, tmp_path / "b", "--json"))
    assert facts["run"] == last(trained).id
    assert (facts["transitions"], facts["episodes"], facts["unfinished"]) == (604, 40, 4)
    assert facts["return_min"] <= facts["return_mean"] <= facts["return_max"] <= 16
    dataset = open_dataset(str(tmp_path / "a"))
    assert dataset.digest == facts["digest"] == open_dataset(str(tmp_path / "b")).digest
    assert dataset.facts["source"]["what"] == "replay"


def test_episodes_of_any_policy_are_written_the_same_each_time(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    train(root, *TOY).succeeded()
    export(root, tmp_path / "replay").refused(2, "ppo has no replay", "--episodes N")
    first = summary(export(root, tmp_path / "a", "--episodes", 13, "--json"))
    assert (first["episodes"], first["transitions"], first["unfinished"]) == (13, 13 * 16, 0)
    assert summary(export(root, tmp_path / "b", "--episodes", 13, "--json"))["digest"] == first["digest"]
    assert summary(export(root, tmp_path / "c", "--episodes", 13, "--seed", 1, "--json"))["digest"] != first["digest"]
    exploring = summary(export(root, tmp_path / "d", "--episodes", 13, "--explore", "--json"))
    assert exploring["return_mean"] < first["return_mean"]
    assert set(rows_of(open_dataset(str(tmp_path / "a")))) == {
        "flags",
        *(f"groups.agent.{name}" for name in ("obs", "active", "action", "reward", "died")),
    }


def test_executed_actions_and_whole_long_episodes_are_written(tmp_path: Path) -> None:
    train(tmp_path / "runs", *PENDULUM).succeeded()
    facts = summary(export(tmp_path / "runs", tmp_path / "a", "--episodes", 3, "--explore", "--json"))
    assert (facts["transitions"], facts["episodes"]) == (3 * 300, 3)
    dataset = open_dataset(str(tmp_path / "a"))
    rows = rows_of(dataset)
    action = rows["groups.agent.action"][rows["flags"] & LAST == 0]
    assert np.abs(action).max() == 2  # the policy went beyond
    assert dataset.lengths.tolist() == [301] * 3
    returns = [part.sum() for part in np.split(rows["groups.agent.reward"], dataset.lengths.cumsum()[:-1])]
    assert facts["return_mean"] == pytest.approx(np.mean(returns), rel=1e-5)


def test_executed_actions_of_a_replay_are_written(tmp_path: Path) -> None:
    """Dreamer v3 stores samples beyond the bounds, which other learners would take for possible actions."""
    sizes = [f"algorithm.model.{key}" for key in ("deter=8", "hidden=8", "stoch=3", "classes=4", "units=8")]
    short = ["algorithm.batch_size=2", "algorithm.batch_length=8", "algorithm.warmup_steps=16", "algorithm.horizon=2"]
    rare = ["algorithm.train_ratio=1", "environment.num_envs=2", "evaluation.episodes=2", "--max-timesteps", "200"]
    train(tmp_path / "runs", "toy/identity_box:dreamer_v3", *sizes, *short, *rare).succeeded()
    export(tmp_path / "runs", tmp_path / "a").succeeded()
    dataset = open_dataset(str(tmp_path / "a"))
    rows = rows_of(dataset)
    action = rows["groups.agent.action"][rows["flags"] & LAST == 0]
    space = dataset.facts["groups"]["agent"]["action"]
    assert (action.min(), action.max()) == (space["low"], space["high"])  # the policy went beyond


def test_invalid_arguments_of_export_are_refused_in_one_line(trained: Path, tmp_path: Path) -> None:
    where = ("--runs-dir", trained)
    cadenza("export", "@last", "--format", "datset", *where).refused(2, "did you mean 'dataset'?", "there are: csv")
    cadenza("export", "@last", "--format", "xlsx", *where).refused(2, "xlsx", "there are: csv")
    cadenza("export", "@last", "--format", "dataset", *where).refused(2, "--out DIR")
    export(trained, tmp_path / "a", "--explore").refused(2, "--episodes N")
    export(trained, tmp_path).refused(2, "exists")
    export(trained, tmp_path / "a", "--episodes", 2, "--checkpoint", "17").refused(2, "no checkpoint '17'")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_replay_is_not_exported(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    train(root, "toy/identity:dqn", *SMALL_DQN, "--max-timesteps", "100").succeeded()
    path = next(last(root).replay.path.glob("*/*.safetensors"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    export(root, tmp_path / "a").refused(78, path.name)
    assert not (tmp_path / "a").exists()


class Counting:
    """A policy with constant actions."""

    calls = 0

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        self.calls += 1
        return Acted({SINGLE_GROUP: np.zeros(step.active[SINGLE_GROUP].shape, np.int64)}, {SINGLE_GROUP: {}}, carry)


def test_finished_episodes_are_written_while_others_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadenza.tools.export.ROWS", 32)
    policy, config = Counting(), load("toy/identity:ppo", ["evaluation.num_envs=2"])
    episodes = whole_episodes(policy, config, EpisodeSelection(41))
    lengths = [len(next(episodes)["flags"])]
    assert policy.calls <= 33
    lengths += [len(rows["flags"]) for rows in episodes]
    assert lengths == [17] * 41
    assert policy.calls == 21 * 16
