from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cadenza.lab.diff import first_divergence, first_episode
from cadenza.records.episodes import EpisodeLog
from cadenza.records.folder import RunFolder
from cadenza.types import Episode
from harness.command import cadenza


def played(folder: RunFolder, *actions: list[int], group: str = "agent") -> RunFolder:
    log = EpisodeLog(folder)
    log.add(
        [
            Episode(
                env=0,
                number=number,
                seed=number,
                length=len(action),
                returns={group: np.array([float(len(action))])},
                actions={group: np.array(action)[:, None]},
            )
            for number, action in enumerate(actions)
        ]
    )
    log.seal(100)
    return folder


def test_diff_names_the_first_different_step_and_quantity(tmp_path: Path, make_curve: Callable[..., RunFolder]) -> None:
    a = make_curve([1.0, 2.0, 3.0])
    b = make_curve([1.0, 2.5, 3.0], gamma=0.9, pace=7.0)
    expected = {"row": 1, "env_steps": 200, "quantity": "eval/return_mean", "a": 2.0, "b": 2.5}
    assert first_divergence(a, b) == expected
    assert first_divergence(a, a) is None
    root = tmp_path / "runs"
    result = json.loads(cadenza("diff", a.id, b.id, "--first", "--runs-dir", root, "--json").succeeded().out)
    expected_result = {"identical": False, "first_difference": expected, "episodes_compared": False}
    assert result == {"a": a.id, "b": b.id} | expected_result
    text = cadenza("diff", a.id, b.id, "--runs-dir", root).succeeded().out
    assert "algorithm.gamma" in text
    assert "they first differ at step 200 in eval/return_mean: 2.0 and 2.5" in text
    alone = cadenza("diff", a.id, a.id, "--runs-dir", root).succeeded().out
    assert alone == f"metrics are identical; episodes cannot be compared: {a.id} recorded none\n"
    played(a, [0, 1])
    assert cadenza("diff", a.id, a.id, "--runs-dir", root).succeeded().out == "metrics and episodes are identical\n"


def test_diff_names_the_episode_and_step_of_the_first_different_action(make_curve: Callable[..., RunFolder]) -> None:
    a = played(make_curve([1.0]), [0, 1, 0], [1, 1, 0, 1])
    b = played(make_curve([2.0]), [0, 1, 0], [1, 1, 1, 1])
    assert first_episode(a, b) == {"index": 1, "env": 0, "number": 1, "quantity": "actions", "step": 2}
    assert first_divergence(a, b)["episode"]["step"] == 2
    assert first_episode(a, a) is None
    longer = played(make_curve([1.0]), [0, 1, 0], [1, 1, 0, 1], [0])
    assert first_episode(a, longer)["quantity"] == "existence"
    assert first_episode(a, make_curve([1.0])) is None, "one of them kept no episodes"


def test_other_groups_are_a_difference_from_either_side(tmp_path: Path, make_curve: Callable[..., RunFolder]) -> None:
    team, apart = played(make_curve([1.0]), [0, 1], group="team"), played(make_curve([1.0]), [0, 1])
    assert first_episode(team, apart)["quantity"] == first_episode(apart, team)["quantity"] == "groups"
    text = cadenza("diff", team.id, apart.id, "--first", "--runs-dir", tmp_path / "runs").succeeded().out
    assert text.startswith("metrics are identical, episodes are not\nfirst of the finished episodes to differ")


def test_a_shorter_run_differs_where_it_ends(make_curve: Callable[..., RunFolder]) -> None:
    difference = first_divergence(make_curve([1.0, 2.0]), make_curve([1.0, 2.0, 3.0]))
    assert (difference["env_steps"], difference["quantity"], difference["a"], difference["b"]) == (300, "rows", 2, 3)
