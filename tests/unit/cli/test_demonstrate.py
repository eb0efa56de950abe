"""`cadenza demonstrate`: scripted experts by name and by import path, and invalid ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from cadenza.config.load import load
from cadenza.data.datasets import open_dataset
from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, NotFoundError
from cadenza.tools.demonstrate import demonstrate
from cadenza.tools.export import EpisodeSelection
from harness.command import cadenza

COUNTING = """
class Counting:
    def __init__(self):
        self.count = 0

    def __call__(self, obs, random):
        self.count += 1
        return [self.count / 100, random.random()]

def shapeless(obs, random):
    return 0.5

class Needy(Counting):
    def __init__(self, strength):
        pass

class Mute:
    pass

def beyond(obs, random):
    return 2

def between(obs, random):
    return 0.7

def whole(obs, random):
    return 1.0

answer = 42
"""


def rows(out: Path) -> dict[str, np.ndarray]:
    (piece,) = open_dataset(str(out)).pieces()
    return piece


def test_the_fork_expert_passes_the_obstacle_on_both_sides(tmp_path: Path) -> None:
    outcome = cadenza(
        "demonstrate", "toy/fork", "fork", "--episodes", 40, "--out", tmp_path / "a", "--json"
    ).succeeded()
    facts = json.loads(outcome.out.splitlines()[-1])
    assert (facts["expert"], facts["episodes"], facts["return_min"]) == ("fork", 40, 1.0)
    place = rows(tmp_path / "a")["groups.agent.obs"][:, 0]
    halfway = place[np.abs(place[:, 1]) < 0.05, 0]
    assert 5 < np.count_nonzero(halfway < -0.5) < len(halfway) - 5
    again = demonstrate(load("toy/fork:diffusion_policy"), "fork", tmp_path / "b", EpisodeSelection(40))
    assert again["digest"] == facts["digest"]


def test_an_expert_class_gets_a_new_instance_for_each_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_experts.py").write_text(COUNTING)
    monkeypatch.chdir(tmp_path)
    config = load("toy/fork:diffusion_policy", ["environment.max_episode_steps=5"])
    demonstrate(config, "own_experts:Counting", tmp_path / "out", EpisodeSelection(10))
    counted = rows(tmp_path / "out")["groups.agent.action"][:, 0, 0]
    np.testing.assert_allclose(counted, np.tile([0.01, 0.02, 0.03, 0.04, 0.05, 0], 10), rtol=1e-6)


def test_an_expert_may_return_discrete_actions_as_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_experts.py").write_text(COUNTING)
    monkeypatch.chdir(tmp_path)
    demonstrate(load("CartPole-v1:diffusion_policy"), "own_experts:whole", tmp_path / "out", EpisodeSelection(1))
    actions = rows(tmp_path / "out")["groups.agent.action"][:, 0]
    assert actions[:-1].all()  # in the last row nothing is done
    assert actions.dtype == np.int64


@pytest.mark.parametrize(
    ("environment", "expert", "kind", "message"),
    [
        ("toy/fork", "frok", NotFoundError, "did you mean 'fork'"),
        ("toy/fork", "own_experts:shapeless", ConfigError, r"shape \(\), not \(2,\)"),
        ("toy/fork", "own_experts:answer", ConfigError, "must be a function"),
        ("toy/fork", "own_experts:nobody", ConfigError, "nobody"),
        ("toy/pair", "fork", ConfigError, "one agent; toy/pair has 3"),
        ("CartPole-v1", "fork", ConfigError, r"expert fork cannot play CartPole-v1 \(ValueError"),
        ("CartPole-v1", "own_experts:Needy", ConfigError, "cannot be called without arguments.*'strength'"),
        ("CartPole-v1", "own_experts:Mute", ConfigError, "instances of the class must be callable"),
        ("CartPole-v1", "own_experts:beyond", ConfigError, r"2 is not an action of Discrete\(2\)"),
        ("CartPole-v1", "own_experts:between", ConfigError, r"0\.7 is not an action of Discrete\(2\)"),
    ],
)
def test_invalid_experts_and_options_are_refused_in_one_line(
    environment: str,
    expert: str,
    kind: type[CadenzaError],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own_experts.py").write_text(COUNTING)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        demonstrate(load(f"{environment}:diffusion_policy"), expert, tmp_path / "out", EpisodeSelection(2))
    assert not (tmp_path / "out").exists()


def test_an_expert_of_a_missing_extra_names_the_line_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gym_pusht", "gym_pusht.envs", "gym_pusht.envs.pusht"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"the expert pusht needs an extra: pip install 'cadenza\[pusht\]'"):
        demonstrate(load("toy/fork:diffusion_policy"), "pusht", tmp_path / "out", EpisodeSelection(1))
    assert not (tmp_path / "out").exists()


def test_demonstrate_refuses_a_spec_with_an_algorithm(tmp_path: Path) -> None:
    outcome = cadenza("demonstrate", "toy/fork:ppo", "fork", "--out", tmp_path / "forks")
    assert outcome.code == 2
    assert "the expert acts, not an algorithm; give toy/fork alone" in outcome.err
