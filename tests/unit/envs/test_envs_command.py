from __future__ import annotations

import json

import pytest

from cadenza.cli.main import run
from cadenza.config.families import FAMILIES


def test_envs_lists_the_ids_that_match_a_filter(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs", "cartpole"]) == 0
    out = capsys.readouterr().out
    assert "CartPole-v1" in out
    assert "snapshot" in out
    assert "Pendulum" not in out
    assert run(["envs", "Pendulum"]) == 0
    assert "replay" in capsys.readouterr().out


def test_envs_without_a_filter_is_a_line_for_each_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs"]) == 0
    _, _, *lines = capsys.readouterr().out.rstrip().splitlines()
    assert [line.split()[0] for line in lines][: len(FAMILIES)] == list(FAMILIES)
    assert max(map(len, lines)) <= 120
    assert lines[0].split()[:2] == ["classic", "6"]


@pytest.mark.parametrize("family", ["classic", "mpe", "skirmish"])
def test_the_table_of_a_family_fits_120_columns(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    if run(["envs", family]) == 69:
        pytest.skip("its extra is not installed")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120


def test_envs_json_has_the_facts_of_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs", "CartPole-v1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["environments"]
    assert "ppo" in row.pop("variants")
    assert row == {
        "id": "CartPole-v1",
        "family": "classic",
        "observation": "Box(4) float32",
        "action": "Discrete(2)",
        "max_episode_steps": 500,
        "threshold": 475.0,
        "reward_range": None,
        "restore": "snapshot",
        "error": None,
    }


def test_a_filter_that_matches_nothing_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs", "CratPole-v1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "did you mean 'CartPole-v1'?" in captured.err
