"""The Python interface for teams of agents."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cadenza
from cadenza.envs.ledger import EVAL, EpisodeSeeds

SMALL: dict[str, Any] = {
    "algorithm.n_steps": 16,
    "algorithm.n_epochs": 1,
    "evaluation.episodes": 2,
    "training.max_timesteps": 256,
    "quiet": True,
}
SPEC = "toy/pair:mappo"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cadenza.Run:
    """A trained team of two groups."""
    return cadenza.train(SPEC, runs_dir=tmp_path_factory.mktemp("runs"), **SMALL)


def test_a_team_acts_by_group(run: cadenza.Run) -> None:
    policy = run.load()
    frame = policy.make_env().reset(0)
    actions = policy(frame.obs)
    assert actions.keys() == policy.spec.groups.keys()
    for name, group in policy.spec.groups.items():
        assert len(actions[name]) == len(group.agents)
        assert all(group.action.contains(action) for action in actions[name])
    same = policy(frame)
    assert all(np.array_equal(actions[name], same[name]) for name in actions)
    assert repr(policy).startswith(f"<Policy {run.id} at step-")
    assert all(name in repr(policy) and name in policy._repr_html_() for name in actions)


def test_a_team_plays_as_it_was_evaluated(run: cadenza.Run) -> None:
    measured = run.evaluate(episodes=2, seed=5)
    policy = run.load()
    env = policy.make_env()
    for index in range(2):
        policy.reset()
        frame, total = env.reset(EpisodeSeeds(5, EVAL)(index, 0)), 0.0
        while not (frame.terminated or frame.truncated):
            frame = env.step(policy(frame))
            total += float(sum(reward.sum() for reward in frame.reward.values()))
        assert total == pytest.approx(measured["returns"][index])


def test_wrong_groups_and_numbers_of_agents_are_refused_by_name(run: cadenza.Run) -> None:
    policy = run.load()
    obs = policy.make_env().reset(0).obs
    first = next(iter(obs))
    with pytest.raises(ValueError, match=f"are a dict of .*'{first}'.*, not ndarray"):
        policy(obs[first])
    with pytest.raises(ValueError, match=f"did you mean '{first}'"):
        policy({f"{first}s" if name == first else name: part for name, part in obs.items()})
    with pytest.raises(ValueError, match=rf"group '{first}' has \d agents? .*, not 5 observations"):
        policy({**obs, first: np.repeat(obs[first], 5, 0)[:5]})


def test_one_group_of_several_agents_is_a_team(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"environment.max_episode_steps": 8}
    run = cadenza.train("skirmish/3m:ippo", runs_dir=tmp_path, **SMALL, **changes)
    policy = run.load()
    frame = policy.make_env().reset(0)
    actions = policy(frame.obs, mask=frame.mask)
    for name, action in actions.items():
        assert frame.mask[name][np.arange(len(action)), action].all()  # allowed


def test_teams_are_built_verified_and_compared(run: cadenza.Run, tmp_path: Path) -> None:
    settings = {key: value for key, value in SMALL.items() if key != "quiet"}
    with contextlib.closing(cadenza.build(SPEC, **settings)) as parts:
        assert len(parts.spec.groups) == 2
    assert cadenza.evaluate(run, episodes=1)["episodes"] == 1
    assert cadenza.verify(run)["identical"]
    other = cadenza.train(SPEC, runs_dir=tmp_path, seed=1, **SMALL)
    (series,) = cadenza.compare(run, other).series
    assert len(series.members) == 2


def test_teams_are_swept_and_tuned(tmp_path: Path) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(f"base: {SPEC}\nseeds: [0]\nsweep: {{algorithm.clip_range: [0.1, 0.2]}}\n")
    assert len(cadenza.sweep(file, runs_dir=tmp_path / "runs", **SMALL)["trials"]) == 2
    pytest.importorskip("optuna")
    space = tmp_path / "space.yaml"
    space.write_text("algorithm.clip_range: {min: 0.1, max: 0.3}\n")
    result = cadenza.tune(SPEC, space, trials=1, seeds=[0], runs_dir=tmp_path / "runs", **SMALL)
    assert result["status"] == "finished"
