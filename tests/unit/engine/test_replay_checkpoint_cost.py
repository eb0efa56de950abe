"""A checkpoint of a run with a large replay writes only as many bytes as are new."""

from __future__ import annotations

import pytest

from cadenza.config.load import load
from harness.checkpoint_cost import checkpoint_cost
from harness.lab import Lab


@pytest.mark.parametrize("alpha", ["null", "0.6"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_checkpoint_writes_at_most_twice_the_new_bytes(alpha: str, on_disk: bool, lab: Lab) -> None:
    """The replay is nearly full, and one row in a hundred is new."""
    settings = ["environment.num_envs=10", "algorithm.buffer_size=200000", f"algorithm.buffer_on_disk={on_disk}"]
    settings += [f"algorithm.priority_alpha={alpha}"]
    cost = checkpoint_cost(lab.start(load("CartPole-v1:dqn", settings)), 180_000, 2_000)
    assert cost.transitions == 2_000 * (16 + 8 + 4 + 1 + 1 + 1)
    assert cost.priorities == (0 if alpha == "null" else 800_000)
    assert cost.transitions < cost.written <= cost.allowed
    assert cost.first_written > 90 * cost.transitions
