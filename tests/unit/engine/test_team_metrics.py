"""Returns of teams by group and agent, in evaluations and during training; the settings of `pace`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza.config.load import load
from cadenza.records import metrics
from harness.command import cadenza, last, train


def test_metrics_of_a_team_are_split_by_group_and_agent(tmp_path: Path) -> None:
    assert train(tmp_path, "toy/pair:ppo", "pace=debug").code == 0
    outcome = cadenza("evaluate", "@last", "--episodes", 3, "--runs-dir", tmp_path, "--json")
    figures = json.loads(outcome.out)
    runners = figures["runner/runner_0/return_mean"] + figures["runner/runner_1/return_mean"]
    assert runners == pytest.approx(figures["runner/return_mean"])
    assert figures["runner/return_mean"] + figures["shooter/return_mean"] == pytest.approx(figures["return_mean"])
    assert "shooter/shooter_0/return_mean" not in figures  # its group is all of it
    assert "of which runner" in cadenza("evaluate", "@last", "--runs-dir", tmp_path).out
    row = next(row for row in metrics.read(last(tmp_path).metrics) if "collect/return_mean" in row)
    assert row["collect/runner/return_mean"] + row["collect/shooter/return_mean"] == pytest.approx(
        row["collect/return_mean"]
    )
    assert row["collect/runner/runner_0/return_mean"] >= 0


def test_a_single_agent_has_no_metrics_by_group(tmp_path: Path) -> None:
    assert train(tmp_path, "toy/identity:ppo", "pace=debug").code == 0
    assert not [name for name in metrics.names(metrics.read(last(tmp_path).metrics)) if "/agent/" in name]


def test_pace_overrides_a_spec_and_is_overridden_by_settings() -> None:
    quick = load("mpe/simple_spread:happo", ["pace=debug", "environment.num_envs=3", "algorithm.batch_size=1.0"])
    assert (quick.environment.num_envs, quick.algorithm.n_steps) == (3, 64)
    assert quick.algorithm.learning_rate == load("mpe/simple_spread:happo").algorithm.learning_rate
    assert load("skirmish/3m:ppo", ["pace=throughput"]).environment.num_envs == 256
