from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector

SEEDS = EpisodeSeeds(11, TRAIN)
FIELDS = ("terminated", "truncated", "is_first")


def pair(num_envs: int, **settings: Any) -> Any:
    return [
        make_vector(EnvironmentConfig(id="CartPole-v1", vectorize=way, **settings), SEEDS, num_envs=num_envs)
        for way in ("native", "in_process")
    ]


@pytest.mark.parametrize(
    ("num_envs", "settings"),
    [(1, {}), (7, {}), (5, {"kwargs": {"sutton_barto_reward": True}}), (3, {"max_episode_steps": 12})],
)
def test_native_cartpole_equals_the_scalar_one_bit_for_bit(num_envs: int, settings: dict[str, Any]) -> None:
    native, scalar = pair(num_envs, **settings)
    rng = np.random.default_rng(0)
    for at in range(400):
        random = rng.integers(0, 2, (num_envs, 1))
        good = (native.current.obs["agent"][..., 2] + native.current.obs["agent"][..., 3] > 0).astype(np.int64)
        action = {"agent": good if at % 200 < 150 else random}
        one, two = native.step(action), scalar.step(action)
        assert one.obs["agent"].tobytes() == two.obs["agent"].tobytes()
        assert one.final_obs["agent"].tobytes() == two.final_obs["agent"].tobytes()
        assert one.reward["agent"].tobytes() == two.reward["agent"].tobytes()
        for field in FIELDS:
            assert np.array_equal(getattr(one, field), getattr(two, field))
    ours, theirs = native.episodes(), scalar.episodes()
    assert len(ours) >= num_envs
    assert [(e.env, e.number, e.seed, e.length, e.total) for e in ours] == [
        (e.env, e.number, e.seed, e.length, e.total) for e in theirs
    ]


def test_a_snapshot_restores_native_cartpole_in_mid_episode() -> None:
    native, _ = pair(4)
    assert native.spec.restore == "snapshot"
    rng = np.random.default_rng(1)
    for _ in range(33):
        native.step({"agent": rng.integers(0, 2, (4, 1))})
    native.episodes()
    state = native.state_dict()
    new, _ = pair(4)
    new.load_state_dict(state)
    assert new.current.obs["agent"].tobytes() == native.current.obs["agent"].tobytes()
    assert np.array_equal(new.current.is_first, state["lengths"] == 0)
    for _ in range(80):
        action = {"agent": rng.integers(0, 2, (4, 1))}
        assert new.step(action).obs["agent"].tobytes() == native.step(action).obs["agent"].tobytes()
    for one, two in zip(new.episodes(), native.episodes(), strict=True):
        assert (one.length, one.total, one.seed) == (two.length, two.total, two.seed)
        assert np.array_equal(one.actions["agent"], two.actions["agent"])


def test_reset_begins_the_same_episodes_as_the_scalar_one() -> None:
    native, scalar = pair(3)
    for env in (native, scalar):
        env.step({"agent": np.ones((3, 1), np.int64)})
    assert native.reset(40).obs["agent"].tobytes() == scalar.reset(40).obs["agent"].tobytes()
    assert native.current.is_first.all()
