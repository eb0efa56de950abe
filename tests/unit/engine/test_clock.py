from __future__ import annotations

import pytest

from cadenza.engine.clock import Clock, Every, Scores


@pytest.mark.parametrize(
    ("interval", "after", "times", "fires"),
    [
        (10, 0, [4, 9, 12, 18, 20, 21], [12, 20]),
        (10, 0, [35, 36, 41], [35, 41]),  # several crossed at once fire once
        (15, 50, [15, 45, 50, 59, 60, 75], [60, 75]),  # strictly after the warm-up, on the grid
        (10, 10, [10, 19, 20], [20]),
        (0, 0, [1, 100], []),
        (None, 0, [1, 100], []),
    ],
)
def test_an_interval_fires_on_crossing(interval: int | None, after: int, times: list[int], fires: list[int]) -> None:
    trigger = Every(interval, after=after)
    fired = []
    for now in times:
        clock = Clock(env_steps=now)
        if trigger.due(clock):
            fired.append(now)
            trigger.rearm(clock)
    assert fired == fires


def test_intervals_count_updates_in_phases_without_collection() -> None:
    trigger = Every(10, 3)
    assert not trigger.due(Clock(env_steps=9, updates=100, offline_updates=2))
    clock = Clock(env_steps=9, offline_updates=4)
    assert trigger.due(clock)
    trigger.rearm(clock)
    assert not trigger.due(Clock(env_steps=9, offline_updates=5))
    assert trigger.due(Clock(env_steps=10, offline_updates=5))


def test_a_restored_trigger_does_not_fire_again() -> None:
    trigger, now = Every(10), Clock(env_steps=10)
    assert trigger.due(now)
    trigger.rearm(now)
    other = Every(10)
    other.load_state_dict(trigger.state_dict())
    assert not other.due(now)
    assert other.due(Clock(env_steps=20))


def test_the_state_of_a_clock_survives_a_round_trip() -> None:
    clock = Clock(env_steps=5, vec_steps=1, updates=3, seconds=1.5)
    other = Clock()
    other.load_state_dict(clock.state_dict())
    assert other == clock


def test_state_shares_nothing_with_what_it_was_taken_from_or_loaded_into() -> None:
    scores = Scores(best_at=[1, 2])
    state = scores.state_dict()
    scores.best_at.append(3)
    other = Scores()
    other.load_state_dict(state)
    other.best_at.append(4)
    assert state["best_at"] == [1, 2]
