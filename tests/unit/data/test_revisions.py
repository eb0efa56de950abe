"""Arrays that learning replaces in a replay: computed late, never lost, in files that a checkpoint names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.base.files import SafePath
from cadenza.data import segments
from cadenza.data.device_copy import Fetch, send
from cadenza.data.replay import ReplayStore
from cadenza.data.ring_steps import LAST
from cadenza.errors import CheckpointError
from cadenza.types import Acted
from harness.experience import Experience

ROWS = 20


def filled(steps: int) -> tuple[Experience, ReplayStore]:
    experience, store = Experience(2, masks=False), ReplayStore(2 * ROWS, 2, revisable=("belief",))
    add(experience, store, steps)
    return experience, store


def add(experience: Experience, store: ReplayStore, steps: int) -> np.ndarray:
    """Add steps; return the belief of the last one [N, A, …]."""
    for _ in range(steps):
        step, acted, after = experience.transition()
        extras = {"runner": acted.extras["runner"], "shooter": {"belief": np.zeros((2, 1, 3))}}
        store.add(step, Acted(acted.action, extras, {}), after)
    return np.asarray(extras["runner"]["belief"])


def beliefs(store: ReplayStore) -> Any:
    return store.sequences(64, 4, np.random.default_rng(0)).groups["runner"]["belief"]


def revise(store: ReplayStore, value: float, calls: list[float]) -> np.ndarray:
    index = store.sequences(3, 4, np.random.default_rng(7)).index

    def fetched() -> dict[str, np.ndarray]:
        calls.append(value)
        return {"belief": np.full((3, 4, 2, 3), value)}

    store.revise(index, "runner", fetched)
    return index


def test_a_pending_revision_is_computed_once_when_needed() -> None:
    _, store = filled(12)
    calls: list[float] = []
    index = revise(store, 5.0, calls)
    assert calls == []
    beliefs(store)
    beliefs(store)
    assert calls == [5.0]
    assert (store._revisions.arrays["runner"]["belief"][index] == 5.0).all()
    revise(store, 6.0, calls)
    assert 6.0 in np.unique(store.state_dict()["revised"]["runner"]["belief"])
    assert calls == [5.0, 6.0]


def test_rows_added_later_override_a_pending_revision() -> None:
    """The drawn rows are overwritten before their revision arrives: it must not change the new rows."""
    experience, store = filled(3 * ROWS)
    calls: list[float] = []
    revise(store, 5.0, calls)
    for _ in range(2 * ROWS):
        newest = add(experience, store, 1)
        env, place = store.ring.base, (store.ring.head - 1) % ROWS
        flags = store.ring.arrays["flags"][env + place] & LAST
        stored = store._revisions.arrays["runner"]["belief"][env + place]
        assert np.array_equal(stored[flags == 0], newest[flags == 0])
    assert calls == [5.0]
    assert 5.0 not in beliefs(store)


def test_a_checkpoint_names_files_with_all_revised_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 500)
    _, store = filled(3 * ROWS)
    store.attach(SafePath(tmp_path) / "one" / "replay")
    revise(store, 5.0, [])
    files = store.seal()
    state = store.state_dict()
    named = state["revised"]["files"]
    assert len(named) > 2
    assert {path.name for path in files} >= {one["name"] for one in named}
    again = ReplayStore(2 * ROWS, 2, revisable=("belief",))
    again.attach(SafePath(tmp_path) / "one" / "replay")
    again.load_state_dict(state)
    assert np.array_equal(beliefs(again), beliefs(store))
    assert again.seal() == store.seal() == files  # nothing is new
    emptied = ReplayStore(2 * ROWS, 2, revisable=("belief",))
    emptied.attach(SafePath(tmp_path) / "one" / "replay")
    emptied.load_state_dict(state)
    emptied.load_state_dict(ReplayStore(2 * ROWS, 2, revisable=("belief",)).state_dict())
    assert emptied.state_dict()["revised"] == {}
    revise(again, 7.0, [])
    other = {path.name for path in again.seal()}
    assert other != {path.name for path in files}
    assert all(path.exists() for path in files)  # the first state can still be gone back to
    (tmp_path / "one" / "replay" / named[0]["name"]).write_bytes(b"")
    with pytest.raises(CheckpointError, match=named[0]["name"]):
        ReplayStore.load_state_dict(again, state)


def test_a_state_contains_later_revisions(tmp_path: Path) -> None:
    _, store = filled(12)
    store.attach(SafePath(tmp_path) / "one" / "replay")
    store.seal()
    revise(store, 5.0, [])
    state = store.state_dict()
    again = ReplayStore(2 * ROWS, 2, revisable=("belief",))
    again.attach(SafePath(tmp_path) / "one" / "replay")
    again.load_state_dict(state)
    assert np.array_equal(beliefs(again), beliefs(store))
    assert 5.0 in beliefs(again)


def test_values_of_other_rows_are_not_waited_for() -> None:
    _, store = filled(12)
    calls: list[int] = []

    def pending(number: int, slots: list[int]) -> None:
        def values() -> dict[str, np.ndarray]:
            calls.append(number)
            return {"belief": np.full((1, len(slots), 2, 3), float(number))}

        store.revise(np.array([slots]), "runner", values)

    pending(1, [0, 1])
    pending(2, [1, 2])
    assert store.latest(np.array([5]), "runner")["belief"].shape == (1, 2, 3)
    assert calls == []
    assert (store.latest(np.array([0, 5]), "runner")["belief"][0] == 1).all()
    assert calls == [1]
    pending(3, [3])
    pending(4, [4])
    store.latest(np.array([5]), "runner")
    assert calls == [1, 2]  # more than two are not left pending


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, bool])
def test_arrays_survive_a_round_trip_to_a_device(device: str, dtype: Any) -> None:
    array = (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype).swapaxes(0, 2)
    there = send(array, torch.device(device))
    assert there.is_contiguous()
    assert there.device.type == device
    fetched = Fetch({"a": there})
    if device == "cuda":
        there.zero_()  # as a captured update would
    assert np.array_equal(fetched()["a"], array)
