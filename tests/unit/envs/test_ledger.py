"""Returns are summed step by step in double precision, with and without logs and resumes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.envs.ledger import TRAIN, EpisodeSeeds, Ledger
from cadenza.types import EnvSpec, GroupSpec

NUM_ENVS = 3
GROUP = GroupSpec(("a", "b"), spaces.Box(-1, 1, (1,)), spaces.Discrete(4))
LENGTHS = (300, 41, 7)  # of every episode, by environment; the longest outgrows the log's first room


def ledger() -> Ledger:
    return Ledger(EnvSpec("spec", {"team": GROUP}), NUM_ENVS, EpisodeSeeds(1, TRAIN))


def play(book: Ledger, begin: int, end: int) -> None:
    for time in range(begin, end):
        action = np.random.default_rng(time).integers(0, 4, (NUM_ENVS, 2))
        ended = [index for index, length in enumerate(LENGTHS) if (time + 1) % length == 0]
        book.record({"team": action}, {"team": rewards(time)}, ended)


def rewards(time: int) -> np.ndarray:
    return np.random.default_rng(1000 + time).normal(size=(NUM_ENVS, 2)).astype(np.float32)


def expected(index: int, begin: int, length: int) -> np.ndarray:
    total = np.zeros(2)
    for time in range(begin, begin + length):
        total += rewards(time)[index]
    return total


def test_ledger_returns_are_running_sums() -> None:
    book = ledger()
    play(book, 0, 900)
    episodes = book.take()
    assert [sum(e.env == index for e in episodes) for index in range(NUM_ENVS)] == [900 // n for n in LENGTHS]
    for episode in episodes:
        assert episode.length == LENGTHS[episode.env]
        begin = episode.number * episode.length
        assert np.array_equal(episode.returns["team"], expected(episode.env, begin, episode.length))


@pytest.mark.parametrize("at", [0, 7, 640])
def test_the_lowest_and_the_highest_reward_of_all_steps_outlast_a_resume(at: int) -> None:
    first, second = ledger(), ledger()
    assert first.reward_range is None
    play(first, 0, at)
    second.load_state_dict(first.state_dict())
    play(second, at, 700)
    second.restart(second.numbers)
    steps = np.stack([rewards(time) for time in range(700)])
    assert second.reward_range == [steps.min(), steps.max()]


def test_the_reset_of_an_environment_that_waited_is_no_reward() -> None:
    book = ledger()
    book.record({"team": np.zeros((NUM_ENVS, 2), int)}, {"team": np.full((NUM_ENVS, 2), 3.0)}, [1])
    book.record({"team": np.zeros((NUM_ENVS, 2), int)}, {"team": np.array([[3, 3], [0, 0], [3, 5]])}, [])
    book.skip([1])
    assert book.reward_range == [3, 5]


@pytest.mark.parametrize("at", [0, 1, 7, 299, 640])
def test_a_resumed_ledger_reports_the_same_episodes(at: int) -> None:
    whole, first, second = ledger(), ledger(), ledger()
    play(whole, 0, 900)
    play(first, 0, at)
    second.load_state_dict(first.state_dict())
    play(second, at, 900)
    episodes = first.take() + second.take()
    for one, two in zip(whole.take(), episodes, strict=True):
        assert (one.env, one.number, one.seed, one.length) == (two.env, two.number, two.seed, two.length)
        assert np.array_equal(one.returns["team"], two.returns["team"])
        assert np.array_equal(one.actions["team"], two.actions["team"])
    pairs: list[tuple[Any, Any]] = list(zip(whole.state_dict().values(), second.state_dict().values(), strict=True))
    for mine, yours in pairs:
        assert np.array_equal(mine["team"], yours["team"]) if isinstance(mine, dict) else np.array_equal(mine, yours)
