"""HalfCheetahs that are stepped by one call, against Gymnasium's own step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import EnvironmentFault

pytest.importorskip("mujoco")
KWARGS = {"plain": {}, "others": {"ctrl_cost_weight": 0.3, "exclude_current_positions_from_observation": False}}


def vector(**settings: Any) -> Any:
    config = EnvironmentConfig(id="HalfCheetah-v5", num_envs=2, vectorize="in_process", max_episode_steps=9, **settings)
    return make_vector(config, EpisodeSeeds(3, TRAIN))


@pytest.mark.parametrize("kwargs", KWARGS)
def test_cheetahs_stepped_together_equal_single_ones_bit_for_bit(kwargs: str) -> None:
    fast, slow = vector(kwargs=KWARGS[kwargs]), vector(kwargs=KWARGS[kwargs])
    assert fast._envs._together is not None
    slow._envs._together = None
    rng = np.random.default_rng(0)
    for _ in range(25):
        action = {"agent": rng.normal(0, 1, (2, 1, 6)).astype(np.float32)}
        one, two = fast.step(action), slow.step(action)
        for ours, theirs in ((one.obs, two.obs), (one.final_obs, two.final_obs), (one.reward, two.reward)):
            assert ours["agent"].tobytes() == theirs["agent"].tobytes()
        assert one.truncated.tolist() == two.truncated.tolist()
    for ours, theirs in zip(fast.episodes(), slow.episodes(), strict=True):
        assert ours.returns["agent"].tobytes() == theirs.returns["agent"].tobytes()
    state, again = fast.state_dict(), vector(kwargs=KWARGS[kwargs])
    again.load_state_dict(state)  # by Gymnasium's own steps
    assert again.current.obs["agent"].tobytes() == fast.current.obs["agent"].tobytes()


def test_a_failing_simulation_names_its_environment() -> None:
    env = vector()
    batch: Any = env._envs._together
    take = batch._step

    def fail(model: Any, data: Any, count: int) -> None:
        if data is batch._parts[1][1]:
            raise RuntimeError("unstable")
        take(model, data, count)

    batch._step = fail
    with pytest.raises(
        EnvironmentFault, match=r"environment 1 \(HalfCheetah-v5\) raised RuntimeError: unstable, at step 1"
    ):
        env.step({"agent": np.zeros((2, 1, 6), np.float32)})


@pytest.mark.parametrize(
    "settings", [{"frame_stack": 2}, {"wrappers": ({"id": "ClipReward", "min_reward": -1, "max_reward": 1},)}]
)
def test_wrapped_cheetahs_are_stepped_one_by_one(settings: dict[str, Any]) -> None:
    assert vector(**settings)._envs._together is None
