"""Replay in checkpoints: bit for bit after any kill, at the cost of the new rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.data.replay import ReplayStore
from cadenza.data.segments import Segment, read_segment, write_segment
from cadenza.errors import CheckpointError
from cadenza.records import codec
from cadenza.trees import leaves
from harness.experience import Experience
from harness.files import safe


def saved(store: ReplayStore) -> dict[str, bytes]:
    """Return the state that a checkpoint would contain."""
    store.seal()
    return codec.pack({"store": store.state_dict()})


def restored(
    files: dict[str, bytes], folder: Path | None, capacity: int, num_envs: int, **settings: Any
) -> ReplayStore:
    store = ReplayStore(capacity, num_envs, **settings)
    store.attach(None if folder is None else safe(folder))
    store.load_state_dict(codec.unpack(files)["store"])
    return store


def assert_same(a: ReplayStore, b: ReplayStore, steps: int = 3) -> None:
    """Check that two stores have equal rows and return equal samples, bit for bit."""
    for one in (a, b):
        one.attach(None)
    mine, other = (dict(leaves(one.state_dict())) for one in (a, b))
    assert mine.keys() == other.keys()
    for path, value in mine.items():
        np.testing.assert_array_equal(value, other[path], err_msg=path)
    generators = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(steps):
        left, right = (one.sample(16, g, 3, 0.9, 0.5) for one, g in zip((a, b), generators, strict=True))
        for (path, value), (_, twin) in zip(leaves(vars(left)), leaves(vars(right)), strict=True):
            np.testing.assert_array_equal(value, twin, err_msg=path)
        for one, batch in ((a, left), (b, right)):
            if one.priorities is not None:
                one.update_priorities(batch.index, np.abs(batch.groups["runner"]["reward"]).sum(axis=1))


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"alpha": 0.6}, {"on_disk": True, "alpha": 0.6}, {"stack": 3}])
def test_a_store_killed_at_random_moments_is_restored_exactly(
    num_envs: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    rng, capacity = random.Random(num_envs), 50 * num_envs
    experience = Experience(num_envs)
    whole, killed = ReplayStore(capacity, num_envs, **settings), ReplayStore(capacity, num_envs, **settings)
    killed.attach(safe(tmp_path / "replay"))
    for _ in range(25):  # the ring wraps around several times
        for number in range(rng.randint(0, 30)):
            transition = experience.transition()
            for store in (whole, killed):
                store.add(*transition)
                if store.priorities is not None and number % 7 == 0:
                    generator = np.random.default_rng(number)
                    batch = store.sample(8, generator, beta=0.5)
                    store.update_priorities(batch.index, generator.exponential(size=8))
        files = saved(killed)
        if rng.random() < 0.7:
            forgotten = Experience(num_envs, seed=rng.randint(1, 9))
            forgotten.into(killed, steps=rng.randint(0, 40))
            if rng.random() < 0.5:
                killed.seal()
            killed = restored(files, tmp_path / "replay", capacity, num_envs, **settings)
    assert_same(whole, killed)


def test_a_resumed_run_never_sees_data_from_its_own_future(tmp_path: Path) -> None:
    """Rows that were sealed after the checkpoint are gone after a kill and a resume."""
    experience, store = Experience(2), ReplayStore(400, 2)
    store.attach(safe(tmp_path))
    experience.into(store, steps=50)
    files, newest = saved(store), experience.count
    experience.into(store, steps=50)
    store.seal()
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    again = restored(files, tmp_path, 400, 2)
    batch = again.sample(4000, np.random.default_rng(0))
    assert batch.groups["shooter"]["next_obs"].max() <= newest < experience.count
    assert len(again.seal()) == 1


def test_a_store_without_a_folder_has_its_rows_in_its_state() -> None:
    experience, store = Experience(2), ReplayStore(100, 2, alpha=0.5)
    experience.into(store, steps=170)
    assert store.seal() == {}
    assert sorted(store.state_dict()["tail"]["slots"]) == list(range(100))
    assert_same(restored(saved(store), None, 100, 2, alpha=0.5), store)


def test_a_state_between_two_seals_is_complete(tmp_path: Path) -> None:
    experience, store = Experience(2), ReplayStore(100, 2)
    store.attach(safe(tmp_path))
    experience.into(store, steps=30)
    store.seal()
    experience.into(store, steps=10)
    files = codec.pack({"store": store.state_dict()})
    assert_same(restored(files, tmp_path, 100, 2), store)


def test_a_cut_after_a_seal_is_in_the_next_seal(tmp_path: Path) -> None:
    experience, store = Experience(2), ReplayStore(100, 2)
    store.attach(safe(tmp_path))
    experience.into(store, steps=20)
    store.seal()
    store.cut()
    experience.into(store, steps=5)
    assert_same(restored(saved(store), tmp_path, 100, 2), store)


def test_a_store_in_another_folder_seals_all_rows_again(tmp_path: Path) -> None:
    experience, store = Experience(2), ReplayStore(100, 2)
    store.attach(safe(tmp_path / "one"))
    experience.into(store, steps=20)
    store.seal()
    store.attach(safe(tmp_path / "two"))
    assert_same(restored(saved(store), tmp_path / "two", 100, 2), store)


def test_segments_of_rows_that_were_overwritten_are_not_named(tmp_path: Path) -> None:
    experience, store = Experience(1), ReplayStore(100, 1)
    store.attach(safe(tmp_path))
    for _ in range(50):
        experience.into(store, steps=20)
        named = store.seal()
        assert len(named) <= 7
    assert len(list(tmp_path.glob("*.safetensors"))) == 50  # whoever keeps checkpoints removes the others


def test_large_amounts_are_sealed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadenza.data.segments.SEGMENT_BYTES", 5000)
    experience, store = Experience(3), ReplayStore(900, 3)
    store.attach(safe(tmp_path))
    experience.into(store, steps=200)
    files = saved(store)
    assert len(store.seal()) > 5
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 8000
    assert_same(restored(files, tmp_path, 900, 3), store)


@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated", "elsewhere"])
def test_a_damaged_segment_is_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    experience, store = Experience(1), ReplayStore(100, 1)
    store.attach(safe(tmp_path))
    experience.into(store, steps=20)
    state = codec.unpack(saved(store))["store"]
    (segment,) = tmp_path.glob("*.safetensors")
    content = bytearray(segment.read_bytes())
    if damage == "missing":
        segment.unlink()
    elif damage == "flipped":
        content[random.Random(0).randrange(len(content))] ^= 4
        segment.write_bytes(content)
    elif damage == "truncated":
        segment.write_bytes(content[:-3])
    else:
        state["segments"][0]["name"] = f"../{tmp_path.name}/{segment.name}"
    again = ReplayStore(100, 1)
    again.attach(safe(tmp_path))
    with pytest.raises(CheckpointError) as problem:
        again.load_state_dict(state)
    assert segment.name in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("alpha", [None, 0.6])
def test_a_checkpoint_writes_only_new_rows(alpha: float | None, tmp_path: Path) -> None:
    experience, store = Experience(50), ReplayStore(1_000_000, 50, alpha=alpha)
    store.attach(safe(tmp_path))
    experience.into(store, steps=100)
    saved(store)
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    rows = int(store.ring.head.sum())
    experience.into(store, steps=200)
    checkpoint = sum(map(len, saved(store).values()))
    written = sum(path.stat().st_size for path in tmp_path.iterdir()) - before + checkpoint
    row = sum(array[:1].nbytes for _, array in leaves(store.ring.arrays))
    new = (int(store.ring.head.sum()) - rows) * row
    assert written <= 2 * new + (4_000_000 if alpha is not None else 0)


def test_rows_with_transposed_memory_layout_are_written_in_logical_order(tmp_path: Path) -> None:
    turned = np.moveaxis(np.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3), -1, 1)
    sha256 = write_segment(safe(tmp_path), "turned", np.arange(2), {"pictures": turned})
    _, rows = read_segment(safe(tmp_path), Segment("turned", sha256, np.zeros(0, np.int64)))
    assert np.array_equal(rows["pictures"], turned)
