"""Who is tried where: trials are handed out, finished, lost and handed out again; nothing of it is lost on resume."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from cadenza.data.candidate_returns import TRIAL, TrialStore
from cadenza.records.codec import pack, unpack
from cadenza.types import Acted, Step
from cadenza.workflows.evolution import Evolution

CPU = torch.device("cpu")


def population(count: int = 4, trials: int = 2, size: int = 3, seed: int = 0) -> Evolution:
    return Evolution(size, count, trials, 0.5, torch.Generator().manual_seed(seed), CPU)


def test_trials_are_handed_out_in_turn_until_none_is_left() -> None:
    evolution = population()
    trial = evolution.assign(np.full(3, -1), np.ones(3, bool))
    assert trial.tolist() == [0, 1, 2]
    evolution.record(np.array([1]), np.array([5.0]))
    trial = evolution.assign(trial, np.array([False, True, False]))
    assert trial.tolist() == [0, 3, 2]
    assert evolution.assign(trial, np.zeros(3, bool)) is trial
    evolution.record(np.array([0, 2, 3, 4, 5]), np.zeros(5))
    assert evolution.assign(trial, np.ones(3, bool)).tolist() == [6, 7, -1]
    assert not evolution.complete


def test_a_trial_that_came_to_nothing_is_made_again() -> None:
    evolution = population()
    trial = evolution.assign(np.full(2, -1), np.ones(2, bool))
    trial = evolution.assign(trial, np.array([True, False]))  # its episode ended unseen
    assert trial.tolist() == [2, 1]
    evolution.record(np.arange(1, 8), np.zeros(7))
    assert evolution.assign(trial, np.ones(2, bool)).tolist() == [0, -1]


def test_while_nobody_notes_how_they_fare_all_have_their_turn() -> None:
    evolution = population()
    trial, trials = np.full(1, -1), []
    for episode in range(10):
        if episode == 3:  # in the middle, from a checkpoint
            state = evolution.state_dict()
            evolution = population()
            evolution.load_state_dict(state)
        trial = evolution.assign(trial, np.ones(1, bool))
        trials.append(int(trial[0]))
    assert trials == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_a_checkpoint_from_before_there_were_turns_begins_with_the_first() -> None:
    evolution, older = population(), population().state_dict()
    evolution.assign(np.full(3, -1), np.ones(3, bool))
    del older["turn"]
    evolution.load_state_dict(older)
    assert evolution.assign(np.full(1, -1), np.ones(1, bool)).tolist() == [0]


def test_trials_are_shared_out_over_candidates_and_the_rest_act_as_the_mean() -> None:
    evolution = population()
    rows = evolution.controllers(np.array([0, 5, 7, -1]))
    expected = torch.cat([evolution.candidates[[0, 1, 3]], evolution.search.mean[None]]).float()
    assert torch.equal(rows, expected)


def test_a_generation_moves_to_what_earned_most_over_its_trials() -> None:
    evolution = population(count=8, size=2)
    target = torch.tensor([1.0, -1.0], dtype=torch.float64)
    for _ in range(40):
        fitness = -(evolution.candidates - target).square().sum(1).numpy()
        evolution.record(np.arange(16), np.concatenate([fitness + 3, fitness - 3]))
        assert evolution.complete
        metrics = evolution.next_generation()
    assert metrics["generation"] == 40
    assert abs(metrics["fitness_best"]) < 1e-3
    assert torch.allclose(evolution.search.mean, target, atol=0.02)


def test_the_state_in_the_middle_of_a_generation_is_arrays_and_goes_on_the_same() -> None:
    def trained(evolution: Evolution, generations: int) -> Evolution:
        for _ in range(generations):
            evolution.record(np.arange(8), evolution.candidates.sum(1).repeat(2).numpy())
            evolution.next_generation()
        return evolution

    one = trained(population(), 3)
    one.record(np.array([0, 6]), np.array([1.5, -2.0]))
    files = pack({"evolution": one.state_dict()})
    generator = torch.Generator()
    generator.set_state(one.generator.get_state())
    other = Evolution(3, 4, 2, 0.5, torch.Generator().manual_seed(9), CPU)
    other.generator = generator
    other.load_state_dict(unpack(files)["evolution"])
    assert other.has_return.tolist() == one.has_return.tolist()
    ends = [trained(evolution, 2).state_dict() for evolution in (one, other)]
    assert pack({"state": ends[0]}) == pack({"state": ends[1]})


def test_one_may_begin_where_another_ended() -> None:
    evolution, fresh = population(), population()
    evolution.start_from(torch.tensor([5.0, 6.0, 7.0], dtype=torch.float64))
    assert torch.allclose(evolution.candidates - evolution.search.mean, fresh.candidates)
    assert torch.equal(evolution.controllers(np.array([-1])), torch.tensor([[5.0, 6.0, 7.0]]))


def moment(reward: list[float], first: list[bool], ended: list[bool], seen: float = 0.0) -> Step:
    count = len(reward)
    nothing: dict[str, Any] = {"agent": np.full((count, 1), seen)}
    return Step(
        obs=nothing,
        final_obs=nothing,
        reward={"agent": np.array(reward, np.float32)[:, None]},
        terminated=np.array(ended),
        truncated=np.zeros(count, bool),
        is_first=np.array(first),
        active={},
        died={},
    )


def test_only_whole_episodes_of_a_trial_count() -> None:
    store = TrialStore(3)
    trial = np.array([4, 5, -1])
    acted = Acted({}, {}, {TRIAL: trial})
    assert not store.ready()
    steps = [
        moment([0, 0, 0], [True, False, True], [False] * 3),
        moment([1, 2, 3], [False] * 3, [False] * 3),
        moment([10, 20, 30], [True, True, True], [True, True, True]),  # the second was under way before
        moment([5, 6, 7], [True, True, False], [True, True, False]),
    ]
    for before, after in pairwise(steps[:3]):
        store.add(before, acted, after)
    assert store.ready()
    assert [x.tolist() for x in store.take()] == [[4], [11.0]]
    assert len(store.take().trial) == 0
    again = TrialStore(3)
    again.load_state_dict(unpack(pack({"store": store.state_dict()}))["store"])
    for one in (store, again):
        one.add(steps[2], acted, steps[3])
        assert [x.tolist() for x in one.take()] == [[4, 5], [5.0, 6.0]]


def test_an_episode_that_is_cut_short_counts_for_nothing() -> None:
    store, acted = TrialStore(1), Acted({}, {}, {TRIAL: np.array([0])})
    store.add(moment([0], [True], [False]), acted, moment([1], [False], [False]))
    store.cut()
    store.add(moment([0], [False], [False]), acted, moment([1], [True], [True]))
    assert len(store.take().trial) == 0


def test_an_episode_that_went_on_between_two_phases_of_trials_counts_for_nothing() -> None:
    """Other phases collected elsewhere meanwhile: what they earned is in nobody's total."""
    store, acted = TrialStore(1), Acted({}, {}, {TRIAL: np.array([0])})
    first, second, later, end = (moment([1], [n == 0], [n == 3], seen=n) for n in range(4))
    store.add(first, acted, second)  # the first phase ends in the middle of an episode
    again = TrialStore(1)
    again.load_state_dict(unpack(pack({"store": store.state_dict()}))["store"])
    for one in (store, again):
        one.add(later, acted, end)
        assert len(one.take().trial) == 0
    third = moment([1], [False], [False], seen=9)
    store.add(replace(end, is_first=np.array([True])), acted, third)
    store.add(third, acted, end)
    assert [x.tolist() for x in store.take()] == [[0], [2.0]]
