"""Replay compared with a slow reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from cadenza.data.replay import ReplayStore
from cadenza.errors import ConfigError
from cadenza.trees import leaves
from cadenza.types import EnvSpec, GroupSpec
from harness.experience import AGENTS, Experience, Transition

GAMMA = 0.9


def filled(num_envs: int, capacity: int, steps: int, **settings: Any) -> tuple[Experience, ReplayStore]:
    experience, store = Experience(num_envs), ReplayStore(capacity, num_envs, **settings)
    experience.into(store, steps=steps)
    return experience, store


def slow_walk(happened: list[Transition], place: int, n_step: int) -> tuple[dict[str, Any], dict[str, Any], int, int]:
    """Return rewards and terminations by group, the final observation and the number of steps, by a loop."""
    rewards = {group: np.zeros(agents) for group, agents in AGENTS.items()}
    over = {group: np.zeros(agents, bool) for group, agents in AGENTS.items()}
    for walked in range(n_step):
        one = happened[place + walked]
        for group, agents in AGENTS.items():
            for agent in range(agents):
                if not over[group][agent]:
                    rewards[group][agent] += GAMMA**walked * one.reward[group][agent]
                    over[group][agent] = one.died[group][agent]
        if one.terminated or one.truncated or place + walked + 1 == len(happened):
            break
    if one.terminated:
        over = {group: np.ones(agents, bool) for group, agents in AGENTS.items()}
    return rewards, over, one.next_obs, walked + 1


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("steps", [7, 100, 400])
@pytest.mark.parametrize("alpha", [None, 0.6])
def test_a_sample_equals_the_recorded_transitions(num_envs: int, n_step: int, steps: int, alpha: float | None) -> None:
    experience, store = filled(num_envs, 60 * num_envs + 1, steps, alpha=alpha)
    batch = store.sample(200, np.random.default_rng(1), n_step, GAMMA)
    for row in range(200):
        env, place = experience.find(int(batch.groups["shooter"]["obs"][row, 0, 0]))
        one = experience.account[env][place]
        rewards, over, following, walked = slow_walk(experience.account[env], place, n_step)
        for group in AGENTS:
            data = batch.groups[group]
            assert data["obs"][row, 0, 0] == one.obs
            assert data["next_obs"][row, 0, 0] == following
            np.testing.assert_array_equal(data["action"][row], one.action[group])
            np.testing.assert_array_equal(data["active"][row], one.active[group])
            np.testing.assert_allclose(data["reward"][row], rewards[group], atol=1e-5)
            np.testing.assert_array_equal(data["terminated"][row], over[group])
        assert batch.discount[row] == np.float32(GAMMA**walked)
        assert batch.state is not None
        assert batch.state[row, 0] == one.obs
    assert "belief" in batch.groups["runner"]
    assert "carry" not in batch.groups["runner"]


def test_beginnings_are_the_first_observations_of_stored_episodes() -> None:
    experience, store = filled(2, 120, 200)
    drawn = store.beginnings(400, np.random.default_rng(0))["shooter"][:, 0, 0].astype(int).tolist()
    every = [[one for one in account if one.is_first] for account in experience.account]
    recorded = [one.obs for account in every for one in account]
    assert set(drawn) <= set(recorded)
    stored = {env: {one.obs for one in account} & set(drawn) for env, account in enumerate(every)}
    for env, account in enumerate(every):  # the latest of them, without a gap, and not those that were overwritten
        numbers = [one.obs for one in account]
        assert 3 < len(stored[env]) < len(numbers)
        assert stored[env] <= set(numbers[-len(stored[env]) - 1 :])


def test_masks_are_those_of_the_row_and_of_the_next_one() -> None:
    experience, store = Experience(1), ReplayStore(500, 1)
    masks = {}
    for _ in range(100):
        masks[int(experience.step.obs["shooter"][0, 0, 0])] = experience.step.mask["runner"][0]
        experience.into(store, steps=1)
    batch = store.sample(100, np.random.default_rng(0))
    runner = batch.groups["runner"]
    for row in range(100):
        np.testing.assert_array_equal(runner["mask"][row], masks[int(runner["obs"][row, 0, 0])])
        allowed = masks.get(int(runner["next_obs"][row, 0, 0]), np.ones((2, 3), bool))  # unknown after an episode's end
        if int(runner["next_obs"][row, 0, 0]) != int(experience.step.obs["shooter"][0, 0, 0]):
            np.testing.assert_array_equal(runner["next_mask"][row], allowed)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("alpha", [None, 0.0])
def test_exactly_the_stored_transitions_are_sampled(num_envs: int, alpha: float | None) -> None:
    experience, store = filled(num_envs, 40 * num_envs, 200, alpha=alpha)
    batch = store.sample(20_000, np.random.default_rng(0))
    drawn, counts = np.unique(batch.groups["shooter"]["obs"][:, 0, 0], return_counts=True)
    expected = []
    for happened in experience.account:
        rows = 1  # the open one
        for one in reversed(happened):
            rows += 1 + (one.terminated or one.truncated)
            if rows > 40:
                break
            expected.append(one.obs)
    assert drawn.tolist() == sorted(expected)
    mean = 20_000 / len(expected)
    assert ((counts - mean) ** 2 / mean).sum() < len(expected) + 4 * np.sqrt(2 * len(expected))


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("steps", [30, 300])
def test_sequences_are_consecutive_recorded_steps(num_envs: int, steps: int) -> None:
    experience, store = filled(num_envs, 50 * num_envs, steps)
    batch = store.sequences(100, 12, np.random.default_rng(1))
    rows: list[list[tuple[int, bool]]] = []  # of each environment: what was seen, and whether it was last
    for happened in experience.account:
        rows.append([])
        for one in happened:
            rows[-1].append((one.obs, False))
            if one.terminated or one.truncated:
                rows[-1].append((one.next_obs, True))
    numbers = batch.groups["runner"]["obs"][:, :, 0, 0].astype(int)
    for sequence in range(100):
        env = next(env for env, pairs in enumerate(rows) if (numbers[sequence, 0], batch.last[sequence, 0]) in pairs)
        first = rows[env].index((numbers[sequence, 0], bool(batch.last[sequence, 0])))
        stretch = rows[env][first : first + 12]
        assert stretch == list(zip(numbers[sequence].tolist(), batch.last[sequence].tolist(), strict=True))
        for place, (number, last) in enumerate(stretch):
            if last:
                before = next(one for one in experience.account[env] if one.next_obs == number)
                assert batch.terminated[sequence, place] == before.terminated
                assert batch.truncated[sequence, place] == before.truncated
                assert not batch.is_first[sequence, place]
                assert not batch.groups["runner"]["active"][sequence, place].any()
                assert not batch.groups["runner"]["reward"][sequence, place].any()
            else:
                one = experience.account[env][experience.find(number)[1]]
                assert batch.is_first[sequence, place] == one.is_first
                assert batch.terminated[sequence, place] == one.terminated
                np.testing.assert_array_equal(batch.groups["shooter"]["action"][sequence, place], one.action["shooter"])
                np.testing.assert_array_equal(batch.groups["runner"]["reward"][sequence, place], one.reward["runner"])
    following = batch.last[:, :-1]
    np.testing.assert_array_equal(batch.is_first[:, 1:][following], True)  # no reset is crossed in silence


def test_too_few_rows_for_a_sequence_are_an_error() -> None:
    _, store = filled(1, 50, 3)
    with pytest.raises(ConfigError, match="no 12 rows in a row"):
        store.sequences(4, 12, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="empty"):
        ReplayStore(50, 1).sample(4, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="too small for 8 environments: give 24"):
        ReplayStore(20, 8)


def test_a_cut_truncates_episodes() -> None:
    experience, store = filled(2, 200, 20)
    last = [happened[-1] for happened in experience.account]
    open_before = [one.next_obs for one in last]
    store.cut()
    store.cut()  # nothing more to end
    experience.step = experience._show(np.ones(2, bool))
    experience.into(store, steps=20)
    for env, one in enumerate(last):
        one.truncated |= not one.terminated
        assert one.next_obs == open_before[env]
    batch = store.sample(400, np.random.default_rng(0), 4, GAMMA)
    for row in range(400):
        env, place = experience.find(int(batch.groups["shooter"]["obs"][row, 0, 0]))
        _, over, following, _ = slow_walk(experience.account[env], place, 4)
        assert batch.groups["shooter"]["next_obs"][row, 0, 0] == following
        np.testing.assert_array_equal(batch.groups["runner"]["terminated"][row], over["runner"])


def test_steps_added_to_another_store_leave_a_gap_and_no_transition() -> None:
    experience, store, other = Experience(2), ReplayStore(300, 2), ReplayStore(300, 2)
    experience.into(store, steps=10)
    experience.into(other, steps=5)
    experience.into(store, steps=10)
    for happened in experience.account:
        happened[9].truncated |= not happened[9].terminated
        happened[10:15] = []
        happened[10].is_first = True  # as far as this store knows
    batch = store.sample(300, np.random.default_rng(0), 3, GAMMA)
    for row in range(300):
        env, place = experience.find(int(batch.groups["shooter"]["obs"][row, 0, 0]))
        rewards, _, following, _ = slow_walk(experience.account[env], place, 3)
        np.testing.assert_allclose(batch.groups["runner"]["reward"][row], rewards["runner"], atol=1e-5)
        assert batch.groups["shooter"]["next_obs"][row, 0, 0] == following
    sequences = store.sequences(50, 10, np.random.default_rng(0))
    np.testing.assert_array_equal(sequences.is_first[:, 1:][sequences.last[:, :-1]], True)


def test_a_store_on_disk_equals_one_in_memory() -> None:
    experience, memory, disk = Experience(3), ReplayStore(90, 3), ReplayStore(90, 3, on_disk=True)
    experience.into(memory, disk, steps=150)
    a = memory.sample(64, np.random.default_rng(0), 3, GAMMA)
    b = disk.sample(64, np.random.default_rng(0), 3, GAMMA)
    for (path, mine), (_, other) in zip(leaves(a.groups), leaves(b.groups), strict=True):
        np.testing.assert_array_equal(mine, other, err_msg=path)


def test_updated_priorities_change_what_is_sampled() -> None:
    experience, store = filled(2, 200, 300, alpha=1.0)
    generator = np.random.default_rng(0)
    everything = store.sample(5000, generator)
    store.update_priorities(np.unique(everything.index), np.full(len(np.unique(everything.index)), 1e-6))
    favourite = everything.index[:1]
    store.update_priorities(favourite, np.array([1e3]))
    batch = store.sample(100, generator, beta=0.5)
    assert (batch.index == favourite).all()
    experience.into(store, steps=1)  # what is new is as likely as the most likely
    batch = store.sample(300, generator, beta=0.5)
    assert {int(number) for number in np.unique(batch.groups["shooter"]["obs"][:, 0, 0])} == {
        int(everything.groups["shooter"]["obs"][0, 0, 0]),
        *(happened[-1].obs for happened in experience.account),
    }


@pytest.mark.parametrize("alpha", [None, 0.5])
@pytest.mark.parametrize("masks", [False, True])
def test_bytes_for_equals_the_allocated_size(alpha: float | None, masks: bool) -> None:
    spec = EnvSpec(
        id="made-up",
        groups={
            "runner": GroupSpec(("a", "b"), Box(-1, 1, (2,), np.float32), Discrete(3)),
            "shooter": GroupSpec(("c",), Box(-1, 1, (2,), np.float32), Box(-1, 1, (2,), np.float32)),
        },
        state=Box(-1, 1, (1,), np.float32),
    )
    experience, store = Experience(3, masks=masks), ReplayStore(1000, 3, alpha=alpha)
    experience.into(store, steps=1)
    size = sum(array.nbytes for _, array in leaves(store.ring.arrays))
    if store.priorities is not None:
        size += sum(array.nbytes for array in vars(store.priorities).values() if isinstance(array, np.ndarray))
    belief = 2 * 3 * 8
    widths = {"runner": 3} if masks else {}
    assert ReplayStore.bytes_for(spec, 3, 1000, alpha is not None, widths, belief) == size


def test_images_and_dicts_are_counted_once() -> None:
    space = Dict({"camera": Box(0, 255, (3, 64, 64), np.uint8), "speed": Box(-1, 1, (2,), np.float64)})
    spec = EnvSpec("made-up", {"agent": GroupSpec(("agent",), space, Box(-1, 1, (2,), np.float32))})
    row = 3 * 64 * 64 + 2 * 8 + 2 * 4 + 4 + 2 + 1
    assert ReplayStore.bytes_for(spec, 4, 1000) == 1000 * row
