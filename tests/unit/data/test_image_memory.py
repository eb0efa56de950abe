"""The memory of a replay of images: every image once, in bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from cadenza.config.schema import EnvironmentConfig
from cadenza.data.replay import ReplayStore
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.trees import leaves
from cadenza.types import Acted

PICTURE = 3 * 64 * 64
BESIDE = 2 * 4 + 4 + 1 + 1 + 1  # two numbers of an action, reward, active, died, flags
LATENTS = 2 * 512 + 32  # of Dreamer v3's smallest published size: half precision, a byte for each class


def test_a_million_steps_of_64_by_64_pixels_with_latents_leave_room_in_16_gb() -> None:
    env = make_vector(EnvironmentConfig(id="toy/dot"), EpisodeSeeds(0, TRAIN), num_envs=2)
    row = PICTURE + BESIDE + LATENTS
    assert ReplayStore.bytes_for(env.spec, 2, 1_000_000, extras=LATENTS) == 1_000_000 * row == 13_359_000_000

    store, rng = ReplayStore(120, 2, revisable=("deter", "stoch")), np.random.default_rng(0)
    latents: Any = {"deter": np.ones((2, 1, 512), np.float16), "stoch": np.ones((2, 1, 32), np.uint8)}
    for _ in range(70):  # more than fits, with ends of episodes
        step, action = env.current, random_actions(env.spec.groups, env.current, rng)
        after = env.step(action)
        store.add(step, Acted(action, {"agent": latents}, {}), after)
    arrays = [array for tree in (store.ring.arrays, store._revisions.arrays) for _, array in leaves(tree)]
    assert sum(array.nbytes for array in arrays) == 120 * row
    env.close()
