"""PushT as an environment: what is seen, and the same episode again."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.gym import Gym
from cadenza.errors import MissingExtraError
from cadenza.trees import leaves

ID = "gym_pusht/PushT-v0"


def play(env: Gym, seed: int) -> list[bytes]:
    rng, frame = np.random.default_rng(seed), env.reset(seed)
    seen = [leaf.tobytes() for _, leaf in leaves(frame.obs)]
    for _ in range(20):
        frame = env.step({"agent": rng.uniform(0, 512, (1, 2)).astype(np.float32)})
        seen += [leaf.tobytes() for _, leaf in leaves({"obs": frame.obs, "reward": frame.reward})]
    return seen


@pytest.mark.parametrize("obs_type", ["state", "environment_state_agent_pos", "pixels"])
def test_a_used_table_plays_the_same_episode_as_a_fresh_one(obs_type: str) -> None:
    pytest.importorskip("gym_pusht", reason="the extra pusht is not installed")
    used, fresh = (catalog.make(EnvironmentConfig(id=ID, kwargs={"obs_type": obs_type})) for _ in range(2))
    assert isinstance(used, Gym)
    assert isinstance(fresh, Gym)
    play(used, 1)
    assert play(used, 2) == play(fresh, 2)
    assert used.spec.max_episode_steps == 300


def test_actions_are_clipped_only_where_that_is_asked() -> None:
    pytest.importorskip("gym_pusht", reason="the extra pusht is not installed")
    beyond, at = np.full((1, 2), 900, np.float32), np.full((1, 2), 512, np.float32)

    def pushed(action: np.ndarray, clip: bool) -> bytes:
        env = catalog.make(EnvironmentConfig(id=ID, clip_actions=clip))
        env.reset(3)
        return b"".join(leaf.tobytes() for _, leaf in leaves(env.step({"agent": action}).obs))

    assert pushed(beyond, clip=True) == pushed(at, clip=True) == pushed(at, clip=False)
    assert pushed(beyond, clip=False) != pushed(at, clip=False)


def test_without_the_extra_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gym_pusht", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[pusht\]'"):
        catalog.resolve(ID)
