from __future__ import annotations

import pytest

from cadenza.base.eta import Count, ahead

STILL = None


@pytest.mark.parametrize(
    ("run", "phase", "last", "expected"),
    [
        ((50, 100, 1.0), ("", 0, 0, None), True, ("", 50)),  # a phase without an end of its own
        ((50, 100, STILL), ("updates", 10, 20, 2.0), False, ("phase", 5)),  # an offline phase
        ((50, 100, STILL), ("updates", 0, 20, STILL), False, ("", None)),  # which has just begun
        ((50, 100, 1.0), ("env_steps", 50, 60, 1.0), False, ("phase", 10)),  # random rollouts: others follow
        ((50, 100, 1.0), ("cycles", 8, 100_000, 0.1), True, ("", 50)),  # a budget that ends before the phase does
        ((50, 100, 1.0), ("cycles", 8, 100_000, 0.1), False, ("", 50)),
        ((50, 100, 1.0), ("cycles", 8, 10, 0.1), True, ("phase", 20)),
        ((50, 100, 1.0), ("cycles", 0, 1, STILL), False, ("", None)),  # nobody knows how much of it is done
        ((50, 100, 1.0), ("updates", 0, 9, STILL), True, ("", 50)),  # at the latest
        ((50, None, 1.0), ("cycles", 8, 10, 0.1), True, ("phase", 20)),
        ((50, None, 1.0), ("", 0, 0, None), True, ("", None)),
        ((100, 100, 1.0), ("", 0, 0, None), True, ("", 0)),
    ],
)
def test_eta_is_that_of_the_earliest_known_end(
    run: tuple[int, int | None, float | None],
    phase: tuple[str, int, int, float | None],
    last: bool,
    expected: tuple[str, float | None],
) -> None:
    count, left = ahead(Count("", "env_steps", *run), Count("phase", *phase), last)
    assert (count.phase, left) == (expected[0], pytest.approx(expected[1]) if expected[1] is not None else None)
