"""What a run records of its environment, and the switches of what is written and printed."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest

from cadenza.config.load import load
from harness import command

SHORT = ("algorithm.n_steps=8", "environment.num_envs=2", "evaluation.episodes=1", "--max-timesteps", "16")


class Declared(gymnasium.Wrapper):
    """CartPole, which declares the range of its rewards."""

    reward_range = (0.0, 1.0)

    @property
    def unwrapped(self) -> gymnasium.Env:
        return self


def declared() -> gymnasium.Env:
    return Declared(gymnasium.make("CartPole-v1"))


def test_spaces_and_rewards_are_recorded_and_shown(tmp_path: Path) -> None:
    command.train(tmp_path, f"{__name__}:declared:ppo", *SHORT).succeeded()
    facts = json.loads(command.last(tmp_path).manifest.read_bytes(1 << 20))["facts"]
    assert facts["reward_range"] == [0.0, 1.0]
    assert (facts["action"], facts["max_episode_steps"]) == ("Discrete(2)", 500)
    assert command.last(tmp_path).read_status()["reward_range"] == [1.0, 1.0]
    shown = command.cadenza("show", "@last", "--runs-dir", tmp_path).succeeded().out
    assert "acts     Discrete(2)" in shown
    assert "rewards  from 0 to 1 a step, observed 1 to 1, solved at a return of 475" in shown
    assert "episodes at most 500 steps" in shown
    command.last(tmp_path).update_status(reward_range=[1.0])  # by whatever damaged it
    assert (
        "rewards  from 0 to 1 a step, solved"
        in command.cadenza("show", "@last", "--runs-dir", tmp_path).succeeded().out
    )


def test_the_log_can_be_switched_off(tmp_path: Path) -> None:
    command.train(tmp_path, "toy/identity:ppo", *SHORT, "logging.run_log=false").succeeded()
    assert not command.last(tmp_path).log.exists()
    command.train(tmp_path, "toy/identity:ppo", *SHORT).succeeded()
    assert command.last(tmp_path).log.exists()


def test_a_variable_makes_commands_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("train", "toy/identity:ppo", *SHORT, "--runs-dir", tmp_path)
    assert command.cadenza(*arguments).succeeded().err
    monkeypatch.setenv("CADENZA_QUIET", "1")
    assert command.cadenza(*arguments).succeeded().err == ""


def test_the_project_of_wandb_is_called_like_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    file = tmp_path / "CartPole.yaml"
    file.write_text("spec: CartPole-v1:ppo\n")
    assert load(str(file)).logging.wandb_project is None
    assert load(str(file), ["logging.wandb=offline"]).logging.wandb_project == "CartPole"
    assert load(str(file), ["logging.wandb=offline", "logging.wandb_project=mine"]).logging.wandb_project == "mine"
    assert load("CartPole-v1:ppo", ["logging.wandb=offline"]).logging.wandb_project is None
    monkeypatch.setenv("WANDB_PROJECT", "other")
    assert load(str(file), ["logging.wandb=offline"]).logging.wandb_project is None


def test_smoke_tries_at_most_so_many() -> None:
    tried = json.loads(command.cadenza("smoke", "--envs", "--filter", "toy/", "--limit", "2", "--json").succeeded().out)
    assert len(tried["tried"]) == tried["ok"] == 2


def test_a_new_package_keeps_datasets_out_of_git(tmp_path: Path) -> None:
    command.cadenza("new", "package", "my-parts", "--out", tmp_path / "package").succeeded()
    ignored = (tmp_path / "package" / ".gitignore").read_text().split()
    assert {"/runs/", "/datasets/"} <= set(ignored)
