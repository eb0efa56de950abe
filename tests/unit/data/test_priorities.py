"""Prioritised sampling follows its formula; its state is the priorities alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.data.priorities import Priorities


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("slots", [5, 300, 5000])
def test_frequencies_follow_the_formula(alpha: float, slots: int) -> None:
    rng = np.random.default_rng(0)
    errors = rng.exponential(size=slots) + 0.01
    used = rng.random(slots) < 0.8
    priorities = Priorities(slots, alpha)
    priorities.put(np.flatnonzero(used))
    priorities.update(np.arange(slots), errors)  # those not in use stay so
    probability = np.where(used, errors**alpha, 0) / (errors**alpha)[used].sum()
    counts, rounds, batch = np.zeros(slots), 200, 64 if slots < 1000 else 2000
    for _ in range(rounds):
        drawn, _ = priorities.sample(batch, rng, 0.4)
        np.add.at(counts, drawn, 1)
    assert not counts[~used].any()
    expected = probability[used] * rounds * batch
    statistic, freedom = ((counts[used] - expected) ** 2 / expected).sum(), used.sum() - 1
    assert statistic < freedom + 3.1 * np.sqrt(2 * freedom) + 3  # about 1 in 1000


def test_importance_weights_follow_the_formula() -> None:
    rng = np.random.default_rng(0)
    errors = rng.exponential(size=1000)
    priorities = Priorities(1000, 0.7)
    priorities.put(np.arange(1000))
    priorities.update(np.arange(1000), errors)
    drawn, weights = priorities.sample(128, rng, 0.4)
    probability = errors**0.7 / (errors**0.7).sum()
    expected = (1000 * probability[drawn]) ** -0.4
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-4)


def test_samples_are_stratified_over_the_total() -> None:
    priorities = Priorities(640, 1.0)
    priorities.put(np.arange(640))
    drawn, weights = priorities.sample(64, np.random.default_rng(3), 1.0)
    assert (drawn // 10).tolist() == list(range(64))
    assert (weights == 1).all()


def test_new_rows_have_the_highest_priority_so_far() -> None:
    priorities = Priorities(10, 0.5)
    priorities.put(np.array([0]))
    priorities.update(np.array([0]), np.array([100.0]))
    priorities.update(np.array([0]), np.array([1.0]))
    priorities.put(np.array([1]))
    assert priorities.state_dict()["weights"][:3].tolist() == [1, 10, 0]


def test_a_row_with_zero_error_can_still_be_sampled() -> None:
    priorities = Priorities(4, 1.0)
    priorities.put(np.arange(4))
    priorities.update(np.arange(4), np.zeros(4))
    assert set(priorities.sample(64, np.random.default_rng(0), 1.0)[0]) == {0, 1, 2, 3}


@pytest.mark.filterwarnings("error")  # the error says it
@pytest.mark.parametrize(("bad", "alpha"), [(np.nan, 1.0), (np.inf, 1.0), (1e30, 2.0), (1e300, 2.0)])
def test_a_priority_that_is_not_finite_is_refused(bad: float, alpha: float) -> None:
    priorities = Priorities(4, alpha)
    priorities.put(np.arange(4))
    with pytest.raises(FloatingPointError):
        priorities.update(np.array([1]), np.array([bad]))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.integers(0, 2**32 - 1))
def test_a_restored_tree_is_the_same_to_the_last_bit(slots: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = Priorities(slots, 0.6), Priorities(slots, 0.6)
    for _ in range(5):
        one.put(rng.integers(0, slots, rng.integers(1, slots + 1)))
        one.drop(rng.integers(0, slots, rng.integers(0, slots)))
        one.put(rng.integers(0, slots, 1))
        drawn, _ = one.sample(32, rng, 0.5)
        one.update(drawn, rng.exponential(size=32) * 10.0 ** rng.integers(-9, 9, 32))
    other.load_state_dict(one.state_dict())
    again = np.random.default_rng()
    again.bit_generator.state = rng.bit_generator.state
    for a, b in zip(one.sample(64, rng, 0.5), other.sample(64, again, 0.5), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one._ends, other._ends)
