from __future__ import annotations

import pytest

from cadenza.config.load import load
from cadenza.tools.bench.part_speeds import PartSpeeds


@pytest.mark.parametrize(
    ("spec", "settings", "calls", "visits"),
    [
        ("CartPole-v1:ppo", [], 1, 1),  # one call does all epochs
        ("CartPole-v1:dqn", [], 128, 1),  # not the warm-up, which learns nothing
        ("CartPole-v1:dqn", ["algorithm.train_every=1", "algorithm.update_ratio=0.3"], 3, 10),
        ("Pendulum-v1:sac", ["algorithm.update_ratio=2"], 2, 1),
    ],
)
def test_one_measured_update_covers_a_cycle_of_the_hooks(
    spec: str, settings: list[str], calls: int, visits: int
) -> None:
    parts = PartSpeeds(load(spec, [*settings, "training.max_timesteps=300"]), seconds=0.001)
    try:
        parts._fill()
        hooks, cycles = parts._hooks()
        assert [(hook.name, times) for hook, times in hooks] == [("update", calls)]
        assert cycles == visits
    finally:
        parts.close()


def test_a_replay_is_not_emptied_between_measurements() -> None:
    parts = PartSpeeds(load("CartPole-v1:dqn", ["training.max_timesteps=300"]), seconds=0.001)
    try:
        before = parts._store.state_dict()["head"].sum()
        assert parts.collecting() > 0
        assert parts._store.state_dict()["head"].sum() >= before + 3 * 256
        sampling = parts.sampling()
        assert sampling is not None
        assert 0 < sampling < parts.updating()
    finally:
        parts.close()
