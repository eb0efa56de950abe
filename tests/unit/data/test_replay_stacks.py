"""Frame stacks are stored as one frame per row and rebuilt when they are sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.load import load
from cadenza.config.schema import EnvironmentConfig
from cadenza.data.batches import Sequences, Transitions
from cadenza.data.replay import ReplayStore
from cadenza.data.sampling import transitions
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.tools.verify import compare
from cadenza.trees import leaves
from cadenza.types import Acted, EnvSpec, Store
from harness.lab import Lab

ENVS, STACK, ROWS = 3, 4, 40
FRAMES = {  # what kinds of frames there are; episodes end by themselves, or after so many steps
    "vector": {"id": "CartPole-v1", "max_episode_steps": 13},
    "image": {"id": "toy/image", "max_episode_steps": 5},
    "coloured image": {"id": "harness.user_wrappers:Pixels", "max_episode_steps": 7},
    "dict": {"id": "harness.user_wrappers:Camera", "max_episode_steps": 9},
}


def fill(settings: dict[str, Any], stores: list[Store], steps: int, num_envs: int = ENVS) -> EnvSpec:
    """Add a real environment's stacks to all of the stores."""
    config = EnvironmentConfig(num_envs=num_envs, frame_stack=STACK, vectorize="in_process", **settings)
    env, rng = make_vector(config, EpisodeSeeds(0, TRAIN)), np.random.default_rng(0)
    step = env.current
    for _ in range(steps):
        acted = Acted(random_actions(env.spec.groups, step, rng), {group: {} for group in env.spec.groups}, {})
        after = env.step(acted.action)
        for store in stores:
            store.add(step, acted, after)
        step = after
    env.close()
    return env.spec


def assert_same(a: Transitions | Sequences, b: Transitions | Sequences) -> None:
    mine, others = ({k: v for k, v in vars(one).items() if k != "index" and v is not None} for one in (a, b))
    for (path, array), (_, other) in zip(leaves(mine), leaves(others), strict=True):
        assert array.dtype == other.dtype, path
        np.testing.assert_array_equal(array, other, err_msg=path)


@pytest.mark.parametrize("settings", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("steps", [3, 25, 150])
def test_batches_equal_those_of_a_store_of_whole_stacks(settings: dict[str, Any], steps: int) -> None:
    frames = ReplayStore((ROWS + STACK - 1) * ENVS, ENVS, stack=STACK)  # as many rows that can be drawn
    stacks = ReplayStore(ROWS * ENVS, ENVS)
    spec = fill(settings, [frames, stacks], steps)
    assert spec.frame_stack == STACK
    for seed in range(5):
        draws = [np.random.default_rng(seed) for _ in range(2)]
        assert_same(frames.sample(64, draws[0], 3, 0.9), stacks.sample(64, draws[1], 3, 0.9))
        assert_same(frames.sequences(32, 3, draws[0]), stacks.sequences(32, 3, draws[1]))
    ended = frames.ring.arrays["flags"] & 6
    assert steps < 10 or {int(how) for how in ended} >= {0, 4}
    assert frames.ring.head.min() > ROWS or steps < 100  # once around


@pytest.mark.parametrize("settings", FRAMES.values(), ids=FRAMES)
def test_prioritised_batches_equal_those_of_a_store_of_whole_stacks(settings: dict[str, Any]) -> None:
    frames, stacks = (ReplayStore(ROWS * ENVS, ENVS, alpha=0.6, stack=stack) for stack in (STACK, 1))
    fill(settings, [frames, stacks], 150)
    rng = np.random.default_rng(0)
    for _ in range(5):
        batch = frames.sample(64, rng, 3, 0.9)
        assert_same(batch, transitions(stacks.ring, batch.index, 3, 0.9, batch.weight))
        frames.update_priorities(batch.index, rng.random(64))


def test_every_frame_is_stored_once() -> None:
    frames, stacks = (ReplayStore(600, ENVS, stack=stack) for stack in (STACK, 1))
    spec = fill(FRAMES["coloured image"], [frames, stacks], 5)
    assert frames.bulk == ReplayStore.bytes_for(spec, ENVS, 600, stack=STACK)
    assert stacks.bulk == ReplayStore.bytes_for(spec, ENVS, 600)
    picture = frames.ring.arrays["groups"]["agent"]["obs"]
    assert stacks.bulk - frames.bulk == (STACK - 1) * picture.nbytes
    assert picture.shape[2] == 3


@pytest.mark.parametrize("spec", ["toy/image:dqn", "Pendulum-v1:sac"])
def test_a_run_stores_one_frame_per_row_and_resumes_exactly(spec: str, lab: Lab) -> None:
    settings = ["environment.frame_stack=3", "environment.num_envs=2", "algorithm.buffer_size=120"]
    settings += ["environment.max_episode_steps=20", "algorithm.warmup_steps=20", "algorithm.train_every=2"]
    settings += ["algorithm.batch_size=8", "training.max_timesteps=400", "checkpoint.every_steps=50"]
    settings += ["evaluation.every_steps=0", "evaluation.at_end=false", "logging.every_steps=20"]
    config = load(spec, settings)
    whole, part = lab.start(config, "whole"), lab.start(config, "part")
    store = whole.stores["replay"]
    assert isinstance(store, ReplayStore)
    assert store.stack == 3
    whole.run()
    for leave_at in (70, 250):

        def enough(clock: Any, at: int = leave_at) -> bool:
            return bool(clock.env_steps >= at)

        part.run(enough)
        for _ in range(5):  # forgotten
            part._do_next()
        part = lab.resume(part)
    part.run()
    assert compare(whole.folder, part.folder) is None
    stored = store.ring.arrays["groups"]["agent"]["obs"]
    assert stored[0].nbytes * 3 == whole.collector.env.current.obs["agent"][0].nbytes
