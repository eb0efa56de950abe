"""PPO in published multi-agent environments trains and resumes bit for bit."""

from __future__ import annotations

import pytest

from cadenza.config.load import load
from cadenza.records.metrics import read
from cadenza.tools.verify import compare
from harness.lab import Lab

SMALL = [
    "training.max_timesteps=400",
    "environment.num_envs=2",
    "algorithm.n_steps=50",
    "algorithm.n_epochs=1",
    "evaluation.episodes=2",
    "evaluation.every_steps=200",
]


@pytest.mark.parametrize(
    ("id", "settings"),
    [
        ("mpe/simple_spread", ["environment.groups=agent"]),
        ("mpe/simple_speaker_listener", []),
        ("classic/tictactoe", []),
        ("mamujoco/HalfCheetah-2x3", ["environment.max_episode_steps=80"]),
        ("harness.teams:dying_pair", []),
        ("skirmish/2m1x1h", ["environment.groups=one", "environment.padding=types"]),
    ],
)
def test_a_team_trains_and_resumes_bit_for_bit(lab: Lab, id: str, settings: list[str]) -> None:
    config = load(f"{id}:ppo", [*SMALL, *settings])
    whole = lab.start(config, "whole")
    whole.run()
    first = lab.start(config, "parts")
    first.run(until=lambda clock: clock.env_steps >= 130)
    again = lab.resume(first)
    again.run()
    assert whole.clock.env_steps == again.clock.env_steps >= 400
    assert compare(whole.folder, again.folder) is None
    rows = read(whole.folder.metrics)
    assert rows[0]["digest/weights"] != rows[-1]["digest/weights"]
    if id == "classic/tictactoe":  # masks hold: an illegal move would end a game before its fifth
        assert rows[-1]["collect/length_mean"] >= 5
