"""Brax: a robot registered with JAX starts from its seed, is restored, and ends like other environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import catalog
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.records.codec import pack, unpack

pytest.importorskip("brax", reason="needs JAX and Brax: pip install 'cadenza[brax]'")
SEEDS = EpisodeSeeds(run_seed=5, stream=TRAIN)


@pytest.fixture(autouse=True, scope="module")
def drift() -> None:
    """A noisy walk that ends beyond 1; it compiles at once, while the robots take half a minute."""
    import jax
    from brax import envs

    class Drift(envs.Env):
        backend, observation_size, action_size = "generalized", 2, 1

        def __init__(self, pace: float = 0.2, backend: str = "generalized") -> None:
            self.pace = pace

        def reset(self, rng: Any) -> Any:
            key, drawn = jax.random.split(rng)
            place = jax.random.uniform(drawn, (2,), minval=-0.5, maxval=0.5)
            return envs.State(None, place, jax.numpy.float32(0), jax.numpy.float32(0), {}, {"key": key})

        def step(self, state: Any, action: Any) -> Any:
            key, drawn = jax.random.split(state.info["key"])
            place = state.obs + self.pace * action[0] + 0.1 * jax.random.normal(drawn, (2,))
            terminated = (abs(place) > 1).any() * 1.0
            return state.replace(obs=place, reward=-(place**2).sum(), done=terminated, info={"key": key})

    envs.register_environment("drift", Drift)


def vector(num_envs: int = 3, **settings: Any) -> Any:
    return make_vector(EnvironmentConfig(id="brax/drift", **settings), SEEDS, num_envs=num_envs)


def walk(env: Any, steps: int, seed: int = 0) -> Any:
    random, frames = np.random.default_rng(seed), []
    for _ in range(steps):
        step = env.step(random_actions(env.spec.groups, env.current, random))
        frames.append(tuple(x.tobytes() for x in (step.obs["agent"], step.final_obs["agent"], step.reward["agent"])))
        frames.append((step.terminated.tobytes(), step.truncated.tobytes(), step.is_first.tobytes()))
    return frames


def test_a_restored_simulator_continues_bit_for_bit() -> None:
    old = vector(max_episode_steps=9)
    walk(old, 14)
    saved = unpack(pack({"env": old.state_dict()}))["env"]
    new = vector(max_episode_steps=9)
    new.load_state_dict(saved)
    assert old.spec.restore == "snapshot"
    np.testing.assert_array_equal(new.current.obs["agent"], old.current.obs["agent"])
    assert walk(old, 20, 1) == walk(new, 20, 1)


def test_brax_episodes_start_from_their_seed_and_end_by_themselves_or_the_limit() -> None:
    env = vector(max_episode_steps=9)
    first = env.current.obs["agent"].copy()
    ends = []
    for _ in range(40):
        step = env.step({"agent": np.full((3, 1, 1), 0.3, np.float32)})
        beyond = (np.abs(step.final_obs["agent"][:, 0]) > 1).any(1)
        np.testing.assert_array_equal(step.terminated, beyond)
        ends += [(bool(step.terminated[i]), bool(step.truncated[i])) for i in np.flatnonzero(step.is_first)]
    assert {(True, False), (False, True)} <= set(ends)
    assert max(episode.length for episode in env.episodes()) == 9
    np.testing.assert_array_equal(env.reset().obs["agent"], first)  # others' ends have left nothing behind
    one = catalog.make(EnvironmentConfig(id="brax/drift"))
    np.testing.assert_allclose(one.reset(SEEDS(1, 0)).obs["agent"], first[1], atol=1e-6)


def test_unknown_brax_arguments_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"backend=mjs: must be one of .*did you mean 'mjx'"):
        vector(kwargs={"backend": "mjs"})
    with pytest.raises(ConfigError, match="pase: brax/drift takes no such argument; did you mean 'pace'"):
        vector(kwargs={"pase": 1})
