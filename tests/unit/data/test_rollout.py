from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.base.files import SafePath
from cadenza.data.rollout import RolloutStore
from cadenza.errors import ConfigError
from cadenza.nets.normalisers import RunningNorm
from cadenza.types import Acted, Step


def step(value: float, ended: bool = False) -> Step:
    obs = {"a": np.full((2, 1, 3), value, np.float32)}
    final = {"a": obs["a"].copy()}
    if ended:
        final["a"][1] = -value
    flags = np.array([False, ended])
    ones = {"a": np.ones((2, 1), bool)}
    return Step(
        obs, final, {"a": np.full((2, 1), value, np.float32)}, flags, np.zeros(2, bool), flags, ones, {"a": ~ones["a"]}
    )


def filled(store: RolloutStore, values: range) -> None:
    for value in values:
        acted = Acted({"a": np.full((2, 1), value)}, {"a": {"extra": np.full((2, 1), value * 10.0)}}, {})
        store.add(step(value), acted, step(value + 1, ended=value == 1))


def test_a_rollout_returns_the_added_steps() -> None:
    store = RolloutStore(3)
    filled(store, range(3))
    assert store.ready()
    batch = store.take()
    group = batch.groups["a"]
    assert group["obs"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert group["action"][:, 0, 0].tolist() == [0, 1, 2]
    assert group["reward"][:, 0, 0].tolist() == [1, 2, 3]
    assert group["extra"][:, 0, 0].tolist() == [0, 10, 20]
    assert batch.terminated.tolist() == [[False, False], [False, True], [False, False]]
    assert [index.tolist() for index in batch.final_index] == [[1], [1]]
    assert batch.final_obs["a"].ravel().tolist() == [-2, -2, -2]
    assert batch.after_obs["a"].ravel().tolist() == [3] * 6
    assert not store.ready()


def test_a_restored_half_full_store_continues() -> None:
    whole, half = RolloutStore(3), RolloutStore(3)
    filled(whole, range(3))
    filled(half, range(2))
    restored = RolloutStore(3)
    restored.load_state_dict(half.state_dict())
    filled(restored, range(2, 3))
    a, b = whole.take(), restored.take()
    for key in a.groups["a"]:
        np.testing.assert_array_equal(a.groups["a"][key], b.groups["a"][key])
    np.testing.assert_array_equal(a.final_obs["a"], b.final_obs["a"])


def test_a_rollout_on_disk_holds_the_same_in_files_without_names(tmp_path: Path) -> None:
    store, restored = RolloutStore(3, on_disk=True), RolloutStore(3, on_disk=True)
    for one in (store, restored):
        one.attach(SafePath(tmp_path) / "replay" / "rollout")
    filled(store, range(2))
    restored.load_state_dict(store.state_dict())
    filled(restored, range(2, 3))
    plain = RolloutStore(3)
    filled(plain, range(3))
    mapped, expected = restored.take(), plain.take()
    for key, array in expected.groups["a"].items():
        np.testing.assert_array_equal(mapped.groups["a"][key], array)
        assert isinstance(root_of(mapped.groups["a"][key]), mmap.mmap)
    assert isinstance(root_of(mapped.terminated), mmap.mmap)
    assert not list((tmp_path / "replay" / "rollout").iterdir())


def root_of(array: Any) -> Any:
    """Return what holds the bytes of a view."""
    return root_of(array.base) if getattr(array, "base", None) is not None else array


def test_a_rollout_begun_without_an_extra_continues_without_it() -> None:
    half, restored = RolloutStore(3), RolloutStore(3)
    filled(half, range(2))
    state = half.state_dict()
    del state["arrays"]["groups"]["a"]["extra"]
    restored.load_state_dict(state)
    filled(restored, range(2, 3))
    rows = restored.take().groups["a"]
    assert "extra" not in rows
    assert rows["action"][:, 0, 0].tolist() == [0, 1, 2]


def test_a_full_store_has_the_observation_after_its_last_step() -> None:
    full, restored = RolloutStore(2), RolloutStore(2)
    filled(full, range(2))
    restored.load_state_dict(full.state_dict())
    np.testing.assert_array_equal(full.take().after_obs["a"], restored.take().after_obs["a"])


def test_running_norm_equals_the_moments_of_all_observations() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(3, 2, size=(100, 4))
    norm = RunningNorm(4, torch.device("cpu"))
    for part in np.split(data, [10, 11, 60]):
        norm.update(torch.from_numpy(part))
    np.testing.assert_allclose(norm.mean, data.mean(0), atol=1e-12)
    np.testing.assert_allclose(norm.var, data.var(0), atol=1e-12)
    scaled = norm(torch.from_numpy(data).float()).numpy()
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(0), 1, atol=1e-4)
    other = RunningNorm(4, torch.device("cpu"))
    other.load_state_dict(norm.state_dict())
    assert torch.equal(other(torch.ones(1, 4)), norm(torch.ones(1, 4)))


def test_a_cut_truncates_the_running_episodes() -> None:
    store = RolloutStore(4)
    filled(store, range(3))
    store.cut()
    filled(store, range(7, 8))
    batch = store.take()
    assert batch.truncated.tolist() == [[False, False], [False, False], [True, True], [False, False]]
    assert [index.tolist() for index in batch.final_index] == [[1, 2, 2], [1, 0, 1]]
    assert batch.final_obs["a"][1:].ravel().tolist() == [3] * 6  # what followed the last step before the cut


def test_adding_to_a_full_store_is_an_error() -> None:
    store = RolloutStore(2)
    with pytest.raises(ConfigError, match="full after 2 steps"):
        filled(store, range(3))
