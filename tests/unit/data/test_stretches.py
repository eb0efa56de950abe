"""Sampled stretches within episodes, compared with the recorded steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.config.load import load
from cadenza.engine.build import assemble
from cadenza.engine.collector import Collector
from cadenza.engine.launch import check
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.types import Mode
from harness.collecting import PHASE

STEPS, WARMUP = 4, 200


def collected(*overrides: str) -> Any:
    """A replay of episodes that soon terminate."""
    small = ["environment.num_envs=2", f"algorithm.warmup_steps={WARMUP}", "algorithm.buffer_size=300"]
    config = load("CartPole-v1:dqn", [*small, *overrides])
    assembly = assemble(config, check(config), {})
    task = PhaseScheduler(assembly.phases).next()
    assert task is not None
    assert assembly.env is not None
    store = assembly.stores["replay"]
    mode = Mode(explore=True, phase=PHASE, streams=assembly.streams)
    Collector(assembly.env, assembly.workflow).collect(task, store, mode, lambda: False)
    assembly.close()
    return store


@pytest.mark.parametrize(("alpha", "rows"), [("null", 300), ("0.6", 120)], ids=["all", "gone around by priority"])
def test_stretches_are_consecutive_steps_of_an_episode(alpha: str, rows: int) -> None:
    store = collected(f"algorithm.priority_alpha={alpha}", f"algorithm.buffer_size={rows}")
    drawn = store.stretches(200, STEPS, np.random.default_rng(0))
    arrays, flags = store.ring.arrays["groups"]["agent"], store.ring.arrays["flags"]
    cut_short = ended = around = 0
    for b, start in enumerate(drawn.index):
        slot = int(start)
        for t in range(STEPS):
            is_last, is_open = bool(flags[slot] & 8), slot == int(store.ring.open_slots[slot // store.rows])
            assert drawn.valid[b, t] == (not is_last and not is_open)
            np.testing.assert_array_equal(drawn.groups["agent"]["obs"][b, t], arrays["obs"][slot])
            if drawn.valid[b, t]:
                assert drawn.groups["agent"]["action"][b, t] == arrays["action"][slot]
                assert drawn.groups["agent"]["reward"][b, t] == arrays["reward"][slot]
                around += (slot + 1) % store.rows == 0
                slot = slot // store.rows * store.rows + (slot + 1) % store.rows
                assert drawn.terminated[b, t] == (flags[slot] & 10 == 10)
                ended += int(drawn.terminated[b, t])
            else:
                assert not drawn.terminated[b, t]
                cut_short += 1
        np.testing.assert_array_equal(drawn.groups["agent"]["obs"][b, STEPS], arrays["obs"][slot])
    assert cut_short > 20
    assert ended > 10
    assert (around > 0) == (rows == 120)
    assert drawn.valid[:, 0].all()
    assert (drawn.weight is None) == (alpha == "null")


def test_updated_priorities_change_the_sampled_stretches() -> None:
    store = collected("algorithm.priority_alpha=1.0")
    first = store.stretches(64, STEPS, np.random.default_rng(0))
    store.update_priorities(first.index, np.full(64, 1e-6))
    preferred = first.index[:1]
    store.update_priorities(preferred, np.full(1, 1e4))
    again = store.stretches(64, STEPS, np.random.default_rng(1), beta=1.0)
    assert (again.index == preferred[0]).mean() > 0.9
    assert again.weight is not None
    assert again.weight.min() < 1e-3 or (again.index == preferred[0]).all()


def test_frame_stacks_are_rebuilt_at_each_step() -> None:
    store = collected("environment.frame_stack=2", "algorithm.buffer_size=120")
    drawn = store.stretches(100, STEPS, np.random.default_rng(0))
    frames, flags, starts = store.ring.arrays["groups"]["agent"]["obs"], store.ring.arrays["flags"], 0
    for b, start in enumerate(drawn.index):
        slot, base = int(start), int(start) // store.rows * store.rows
        for t in range(STEPS + 1):
            first = bool(flags[slot] & 1)
            before = slot if first else base + (slot - 1) % store.rows
            expected = np.concatenate([frames[before], frames[slot]], 1)
            np.testing.assert_array_equal(drawn.groups["agent"]["obs"][b, t], expected)
            starts += first
            slot = base + (slot + 1) % store.rows if t < STEPS and drawn.valid[b, t] else slot
    assert starts > 5
