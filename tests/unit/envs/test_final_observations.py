"""The chain has known values, a terminating end and a time limit: any confusion of the two, or of the observations
before and after a reset, breaks the Bellman equation below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cadenza.config.schema import EnvironmentConfig
from cadenza.data.replay import ReplayStore
from cadenza.envs.families.gymnasium_vector import GymnasiumVector
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.toys.toy import Chain, chain_values
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.types import Acted

GAMMA = 0.9
SEEDS = EpisodeSeeds(2, TRAIN)


def configured(way: Any, autoreset: Any = "same_step") -> Callable[[], Any]:
    config = EnvironmentConfig(id="toy/chain", num_envs=4, vectorize=way, workers=2, autoreset=autoreset)
    return lambda: make_vector(config, SEEDS)


def unmasked(mode: AutoresetMode) -> Callable[[], Any]:
    """A vector environment that resets by itself and supports no reset mask."""

    def one() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(Chain(), 4)

    return lambda: GymnasiumVector(SyncVectorEnv([one] * 4, autoreset_mode=mode), SEEDS, masked_reset=False)


VECTORS = {
    "in_process": configured("in_process"),
    "workers": configured("workers"),
    "gymnasium next_step": configured("gymnasium", "next_step"),
    "gymnasium same_step": configured("gymnasium", "same_step"),
    "gymnasium disabled": configured("gymnasium", "disabled"),
    "gymnasium next_step, no reset mask": unmasked(AutoresetMode.NEXT_STEP),
    "gymnasium same_step, no reset mask": unmasked(AutoresetMode.SAME_STEP),
}


@pytest.mark.parametrize("name", VECTORS)
def test_bootstrapping_from_final_observations_gives_the_true_values(name: str) -> None:
    env = VECTORS[name]()
    values = chain_values(GAMMA)
    kinds = set()
    for _ in range(60):
        obs, active = env.current.obs["agent"][:, 0].copy(), env.current.active["agent"][:, 0].copy()
        started = env.current.is_first.copy()
        step = env.step({"agent": np.ones((4, 1), np.int64)})
        after = np.where(step.terminated, 0.0, step.final_obs["agent"][:, 0] @ values)
        target = step.reward["agent"][:, 0] + GAMMA * after
        np.testing.assert_allclose(target[active], (obs @ values)[active], rtol=1e-6)
        kinds |= set(zip(step.terminated.tolist(), step.truncated.tolist(), strict=True))
        ended = step.terminated | step.truncated
        assert (step.is_first[active] <= ended[active]).all()
        assert not (started & ~active).any()
        going = step.obs["agent"][~ended & active] == step.final_obs["agent"][~ended & active]
        assert going.all()
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}
    episodes = env.episodes()
    env.close()
    assert all(episode.length == episode.total <= 4 for episode in episodes)
    assert all(
        (episode.actions["agent"] == 1).all() and len(episode.actions["agent"]) == episode.length
        for episode in episodes
    )
    assert [e.number for e in episodes if e.env == 1] == list(range(sum(e.env == 1 for e in episodes)))


@pytest.mark.parametrize("name", [name for name in VECTORS if "no reset mask" not in name])
def test_same_step_resets_have_no_dummy_transitions(name: str) -> None:
    env = VECTORS[name]()
    for _ in range(20):
        step = env.step({"agent": np.ones((4, 1), np.int64)})
        assert step.active["agent"].all()
        assert (step.is_first == (step.terminated | step.truncated)).all()
    env.close()


def test_dummy_transitions_are_marked_inactive_and_left_out_of_episodes() -> None:
    env = VECTORS["gymnasium next_step, no reset mask"]()
    waiting = np.zeros(4, bool)
    for _ in range(20):
        step = env.step({"agent": np.ones((4, 1), np.int64)})
        assert (step.is_first == waiting).all()
        assert not step.reward["agent"][waiting].any()
        waiting = step.terminated | step.truncated
        assert (step.active["agent"][:, 0] == ~waiting).all()
    assert {episode.seed for episode in env.episodes()} == {-1}
    env.close()


def test_transitions_between_an_end_and_the_next_start_are_not_stored() -> None:
    env, store, values = VECTORS["gymnasium next_step, no reset mask"](), ReplayStore(400, 4), chain_values(GAMMA)
    action, step = {"agent": np.ones((4, 1), np.int64)}, env.current
    for _ in range(60):
        after = env.step(action)
        store.add(step, Acted(action, {"agent": {}}, {}), after)
        step = after
    random = np.random.default_rng(0)
    batch = store.sample(500, random, 1, GAMMA)
    drawn = batch.groups["agent"]
    assert drawn["active"].all()
    after = np.where(drawn["terminated"][:, 0], 0.0, drawn["next_obs"][:, 0] @ values)
    np.testing.assert_allclose(drawn["reward"][:, 0] + GAMMA * after, drawn["obs"][:, 0] @ values, rtol=1e-6)
    sequences = store.sequences(50, 10, random)
    assert sequences.is_first[:, 1:][sequences.last[:, :-1]].all()
    assert (sequences.groups["agent"]["active"][..., 0] | sequences.last).all()
    env.close()


def test_a_vector_without_autoreset_and_reset_mask_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither resets by itself nor takes a reset mask"):
        unmasked(AutoresetMode.DISABLED)()


def test_gymnasiums_cartpole_vector_runs_with_restore_restart() -> None:
    env = GymnasiumVector(gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"), SEEDS)
    assert env.spec.restore == "restart"
    for _ in range(60):
        env.step({"agent": np.ones((3, 1), np.int64)})
    episodes = env.episodes()
    assert episodes
    assert all(8 <= episode.length == episode.total <= 12 for episode in episodes)
    state = env.state_dict()
    env.load_state_dict(state)
    assert env.current.is_first.all()
    assert (env.state_dict()["numbers"] == state["numbers"] + 1).all()
    env.close()
