"""Windows of a replay compared with a slow reference, and the ranges of its numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadenza.data.replay import ReplayStore
from cadenza.errors import ConfigError
from cadenza.nets.normalisers import RangeNorm
from harness.experience import Experience

SHOOTER = {"shooter": [""], "runner": []}


@pytest.mark.parametrize(("num_envs", "steps"), [(1, 30), (3, 30), (2, 200)])  # the last goes around
def test_windows_stay_within_their_episodes(num_envs: int, steps: int) -> None:
    experience, store = Experience(num_envs), ReplayStore(60 * num_envs, num_envs)
    experience.into(store, steps=steps)
    windows = store.windows(300, np.random.default_rng(0), behind=4, on=6)
    numbers = windows.groups["shooter"]["obs"][:, :, 0, 0].astype(int)
    stored = [number for part in store.transitions(60, SHOOTER) for number in part["shooter"]["obs"][""][:, 0, 0]]
    oldest = {min(one.obs for one in happened if one.obs in stored) for happened in experience.account}
    starts = set()
    for row in range(300):
        env, place = experience.find(numbers[row, -1])
        happened = experience.account[env]
        starts.add(numbers[row, -1])
        for at in range(3, 0, -1):
            begins = happened[place].is_first or happened[place].obs in oldest
            place -= not begins
            assert numbers[row, at - 1] == happened[place].obs
        future = [experience.find(numbers[row, -1])[1]]
        while len(future) < 6:
            one = happened[future[-1]]
            over = one.terminated or one.truncated or future[-1] + 1 == len(happened)
            future.append(future[-1] if over else future[-1] + 1)
        for group in ("runner", "shooter"):
            for at, index in enumerate(future):
                np.testing.assert_array_equal(windows.groups[group]["action"][row, at], happened[index].action[group])
                np.testing.assert_array_equal(windows.groups[group]["active"][row, at], happened[index].active[group])
    assert len(starts) > 20  # the last transitions of a stream among them
    newest = {happened[-1].obs for happened in experience.account}
    assert newest & starts


@pytest.mark.parametrize("steps", [20, 200])
def test_transitions_contains_every_transition_once(steps: int) -> None:
    experience, store = Experience(2), ReplayStore(120, 2)
    experience.into(store, steps=steps)
    parts = list(store.transitions(7, SHOOTER))
    assert all(len(part["runner"]["action"]) == 7 and part["runner"]["obs"] == {} for part in parts[:-1])
    numbers = np.concatenate([part["shooter"]["obs"][""][:, 0, 0] for part in parts]).astype(int).tolist()
    assert len(numbers) == len(set(numbers))
    if steps == 20:
        assert set(numbers) == {one.obs for happened in experience.account for one in happened}
    for number in numbers:
        experience.find(number)


def test_an_empty_store_has_no_windows_and_no_transitions() -> None:
    store = ReplayStore(60, 1)
    with pytest.raises(ConfigError, match="the replay is empty"):
        next(store.transitions(7, SHOOTER))
    with pytest.raises(ConfigError, match="collect more"):
        store.windows(3, np.random.default_rng(0), behind=2, on=2)


def test_scaled_values_range_from_minus_one_to_one() -> None:
    norm, device = RangeNorm(3, torch.device("cpu")), torch.device("cpu")
    x = torch.tensor([[0.0, 5.0, -2.0], [10.0, 5.0, 2.0]])
    torch.testing.assert_close(norm(x), x)
    norm.learn(x[:1])
    norm.learn(x[1:])
    torch.testing.assert_close(norm(x), torch.tensor([[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]))
    torch.testing.assert_close(norm.inverse(norm(x)), x)
    again = RangeNorm(3, device)
    again.load_state_dict(norm.state_dict())
    torch.testing.assert_close(again(x + 1), norm(x + 1))
    assert again.has_data
    with pytest.raises(RuntimeError, match="ranges of 3 numbers, not of 2"):
        RangeNorm(2, device).load_state_dict(norm.state_dict())
