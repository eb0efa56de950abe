"""VMAS: exact restore, equality with the published simulator, seeds of single environments, arguments."""

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

pytest.importorskip("vmas")
SEEDS = EpisodeSeeds(run_seed=5, stream=TRAIN)


def vector(name: str, num_envs: int = 3, **settings: Any) -> Any:
    return make_vector(EnvironmentConfig(id=f"vmas/{name}", **settings), SEEDS, num_envs=num_envs)


def walk(env: Any, steps: int, seed: int) -> Any:
    random, frames = np.random.default_rng(seed), []
    for _ in range(steps):
        step = env.step(random_actions(env.spec.groups, env.current, random))
        frames += [(step.obs[name].tobytes(), step.reward[name].tobytes()) for name in env.spec.groups]
        frames.append((step.terminated.tobytes(), step.truncated.tobytes()))
    return frames


# scripted players that draw, goals that are other entities, actions with words, objects for all at once
@pytest.mark.parametrize("name", ["football", "simple_adversary", "simple_speaker_listener", "wheel"])
def test_a_restored_simulator_continues_bit_for_bit(name: str) -> None:
    old = vector(name, max_episode_steps=9)
    walk(old, 14, 0)
    saved = unpack(pack({"env": old.state_dict()}))["env"]
    new = vector(name, max_episode_steps=9)
    new.load_state_dict(saved)
    for group in old.spec.groups:
        assert np.array_equal(new.current.obs[group], old.current.obs[group])
    assert walk(new, 12, 1) == walk(old, 12, 1)


def test_vmas_steps_equal_the_published_simulators() -> None:
    import torch
    from vmas import make_env

    env = vector("simple_spread", num_envs=2)
    theirs = make_env("simple_spread", num_envs=2, clamp_actions=True)
    for ours_entity, entity in zip(env.simulation.env.world.entities, theirs.world.entities, strict=True):
        entity.set_pos(ours_entity.state.pos.clone(), batch_index=None)
    random = np.random.default_rng(0)
    for _ in range(10):
        action = random.uniform(-1.5, 1.5, (2, 3, 2)).astype(np.float32)
        step = env.step({"agent": action})
        obs, rewards, _, _ = theirs.step([torch.from_numpy(action[:, agent].copy()) for agent in range(3)])
        for agent in range(3):
            assert np.array_equal(step.obs["agent"][:, agent], obs[agent].numpy())
            assert np.array_equal(step.reward["agent"][:, agent], rewards[agent].numpy())


def test_a_vmas_episodes_start_depends_on_its_seed_alone() -> None:
    many, few = vector("transport", num_envs=5), vector("transport", num_envs=2)
    assert np.array_equal(many.current.obs["agent"][:2], few.current.obs["agent"])
    alone = catalog.make(EnvironmentConfig(id="vmas/transport"))
    assert np.array_equal(alone.reset(SEEDS(1, 0)).obs["agent"], few.current.obs["agent"][1])


def test_vmas_leaves_torchs_global_rng_as_it_was() -> None:
    import torch

    before = torch.get_rng_state()
    walk(vector("football", max_episode_steps=3), 5, 0)
    assert torch.equal(before, torch.get_rng_state())


def test_vmas_actions_arguments_teams_and_errors() -> None:
    discrete = vector("simple_tag", kwargs={"continuous_actions": False})
    assert {name: group.team for name, group in discrete.spec.groups.items()} == {
        "adversary": "opponents",
        "agent": "team",
    }
    assert str(discrete.spec.groups["agent"].action) == "Discrete(9)"
    walk(discrete, 2, 0)
    parts = vector("simple_spread", kwargs={"continuous_actions": False, "multidiscrete_actions": True, "n_agents": 2})
    assert str(parts.spec.groups["agent"].action) == "MultiDiscrete([3 3])"
    walk(parts, 2, 0)
    with pytest.raises(ConfigError, match=r"environment\.kwargs: vmas/simple_spread.*n_agnets"):
        vector("simple_spread", kwargs={"n_agnets": 2})
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.num_envs: is set by"):
        vector("simple_spread", kwargs={"num_envs": 2})
