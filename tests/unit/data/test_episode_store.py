"""The store of whole episodes compared with plain lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cadenza.data.episode_store import EpisodeStore
from cadenza.types import Acted, Step

ENVS = 3


class Script:
    """Synthetic steps of three environments whose episodes end at random."""

    def __init__(self, seed: int, steps: int) -> None:
        rng = np.random.default_rng(seed)
        self.terminated = rng.random((steps + 1, ENVS)) < 0.03
        self.truncated = (rng.random((steps + 1, ENVS)) < 0.03) & ~self.terminated
        self.terminated[0] = self.truncated[0] = False

    def step(self, t: int) -> Step:
        obs = {"a": np.arange(ENVS, dtype=np.float32)[:, None, None] * 1000 + t}
        ended = self.terminated[t] | self.truncated[t]
        reward = {"a": np.full((ENVS, 1), t, np.float32)}
        ones = {"a": np.ones((ENVS, 1), bool)}
        final = {"a": np.where(ended[:, None, None], -obs["a"], obs["a"])}
        first = ended if t else np.ones(ENVS, bool)
        return Step(obs, final, reward, self.terminated[t], self.truncated[t], first, ones, {"a": ~ones["a"]})

    def play(self, store: EpisodeStore, start: int, end: int) -> None:
        for t in range(start, end):
            acted = Acted({"a": np.full((ENVS, 1), t)}, {"a": {"carry": np.zeros((ENVS, 1))}}, {})
            store.add(self.step(t), acted, self.step(t + 1))

    def expected(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (environment, first step, step after the last) of each finished episode, in order."""
        begun, finished = [start] * ENVS, []
        for t in range(start, end):
            for n in range(ENVS):
                if (self.terminated | self.truncated)[t + 1, n]:
                    finished.append((n, begun[n], t + 1))
                    begun[n] = t + 1
        return finished


def assert_holds(store: EpisodeStore, script: Script, expected: list[tuple[int, int, int]]) -> None:
    batch = store.take()
    data = batch.groups["a"]
    assert batch.length.tolist() == [end - start for _, start, end in expected]
    assert "carry" not in data
    for e, (n, start, end) in enumerate(expected):
        length = end - start
        assert data["obs"][:length, e, 0, 0].tolist() == [n * 1000 + t for t in range(start, end)]
        assert data["action"][:length, e, 0].tolist() == list(range(start, end))
        assert data["reward"][:length, e, 0].tolist() == list(range(start + 1, end + 1))
        assert data["active"][:length, e].all()
        assert not data["active"][length:, e].any()
        assert batch.terminated[e] == script.terminated[end, n]
        assert batch.final_obs["a"][e].item() == -(n * 1000 + end)


@pytest.mark.parametrize("seed", range(3))
def test_episodes_come_out_whole_and_in_the_order_they_end(seed: int) -> None:
    script, store = Script(seed, 500), EpisodeStore()
    script.play(store, 0, 500)
    expected = script.expected(0, 500)
    assert len(expected) > 20
    assert_holds(store, script, expected)
    assert not store.ready()


def test_running_episodes_stay_when_finished_ones_are_taken() -> None:
    script, store = Script(0, 400), EpisodeStore()
    script.play(store, 0, 250)
    expected = script.expected(0, 400)
    early = [episode for episode in expected if episode[2] <= 250]
    assert_holds(store, script, early)
    script.play(store, 250, 400)
    assert_holds(store, script, expected[len(early) :])


@pytest.mark.parametrize("at", [1, 63, 64, 65, 250])
def test_a_restored_episode_store_continues(at: int) -> None:
    script, store = Script(1, 400), EpisodeStore()
    script.play(store, 0, at)
    restored = EpisodeStore()
    restored.load_state_dict(store.state_dict())
    script.play(restored, at, 400)
    assert_holds(restored, script, script.expected(0, 400))


def test_a_fresh_store_can_be_saved() -> None:
    restored = EpisodeStore()
    restored.load_state_dict(EpisodeStore().state_dict())
    script = Script(2, 100)
    script.play(restored, 0, 100)
    assert_holds(restored, script, script.expected(0, 100))


def test_a_cut_truncates_running_episodes() -> None:
    script, store = Script(0, 100), EpisodeStore()
    script.terminated[:] = script.truncated[:] = False
    script.play(store, 0, 10)
    assert not store.ready()
    store.cut()
    batch: Any = store.take()
    assert batch.length.tolist() == [10] * ENVS
    assert not batch.terminated.any()
    assert batch.final_obs["a"].ravel().tolist() == [10, 1010, 2010]
    store.cut()
    assert not store.ready()


@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_waits_for_a_reset_belongs_to_no_episode(seed: int) -> None:
    """In vectors that reset with the next step, nobody acts in that step, and the episode begins one step later."""
    script, store = Script(seed, 300), EpisodeStore()
    ended = script.terminated | script.truncated
    for t in range(1, 301):  # what waits cannot end
        script.terminated[t] &= ~ended[t - 1]
        script.truncated[t] &= ~ended[t - 1]
        ended[t] &= ~ended[t - 1]

    def step_at(t: int) -> Step:
        step = script.step(t)
        step.is_first = ended[t - 1] if t else np.ones(ENVS, bool)
        step.active = {"a": ~ended[t][:, None]}
        step.reward["a"][step.is_first] = 0  # what a reset earns
        return step

    for t in range(300):
        store.add(step_at(t), Acted({"a": np.full((ENVS, 1), t)}, {"a": {}}, {}), step_at(t + 1))
    expected = []
    begun = [0] * ENVS
    for t in range(1, 301):
        for n in np.flatnonzero(ended[t]).tolist():
            expected.append((n, begun[n], t))
            begun[n] = t + 1
    assert len(expected) > 10
    assert_holds(store, script, expected)
    store.cut()
    rest = sorted(300 - start for start in begun if start < 300)
    assert sorted(store.take().length.tolist()) == rest
