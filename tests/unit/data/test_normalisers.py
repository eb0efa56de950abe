from __future__ import annotations

import numpy as np
import torch

from cadenza.data.normalisers import PercentileScale, RewardScale


def test_rewards_are_divided_by_the_deviation_of_the_return_so_far() -> None:
    rng = np.random.default_rng(0)
    reward, done = rng.normal(2, 3, (40, 3, 1)).astype(np.float32), rng.random((40, 3, 1)) < 0.1
    scale = RewardScale(3, 1, gamma=0.9, device=torch.device("cpu"))
    sums, running = [], np.zeros((3, 1))
    for now, over in zip(reward, done, strict=True):
        running = running * 0.9 + now
        sums.append(running)
        running = np.where(over, 0, running)
    halves = [
        scale(torch.from_numpy(reward[part]), torch.from_numpy(done[part]), torch.ones(20, 3, 1, dtype=torch.bool))
        for part in (slice(20), slice(20, 40))
    ]
    np.testing.assert_allclose(halves[0], np.clip(reward[:20] / np.std(sums[:20]), -10, 10), rtol=1e-5)
    np.testing.assert_allclose(halves[1], np.clip(reward[20:] / np.std(sums), -10, 10), rtol=1e-5)


def test_the_scale_goes_on_after_a_restore() -> None:
    reward, done = torch.randn(10, 2, 1), torch.zeros(10, 2, 1, dtype=torch.bool)
    active = ~done
    whole, half, restored = (RewardScale(2, 1, 0.99, torch.device("cpu")) for _ in range(3))
    whole(reward[:5], done[:5], active[:5])
    half(reward[:5], done[:5], active[:5])
    restored.load_state_dict(half.state_dict())
    assert torch.equal(whole(reward[5:], done[5:], active[5:]), restored(reward[5:], done[5:], active[5:]))


def test_the_dead_do_not_count() -> None:
    reward, done = torch.randn(30, 2, 2), torch.zeros(30, 2, 2, dtype=torch.bool)
    active = torch.ones(30, 2, 2, dtype=torch.bool)
    reward[:, :, 1], active[:, :, 1] = 0.0, False
    both, alone = RewardScale(2, 2, 0.9, torch.device("cpu")), RewardScale(2, 1, 0.9, torch.device("cpu"))
    expected = alone(reward[..., :1], done[..., :1], active[..., :1])
    torch.testing.assert_close(both(reward, done, active)[..., :1], expected)


def percentile(numbers: np.ndarray, level: float) -> float:
    """By sorting: between the two ranks around level * (n - 1), in proportion."""
    ranked = sorted(numbers.ravel().tolist())
    place = level / 100 * (len(ranked) - 1)
    below = min(int(place), len(ranked) - 2)
    return ranked[below] + (place - below) * (ranked[below + 1] - ranked[below])


def test_the_spread_of_returns_follows_their_percentiles() -> None:
    rng = np.random.default_rng(0)
    scale = PercentileScale(torch.device("cpu"))
    assert float(scale.spread()) == 1.0
    low = high = 0.0
    for k in range(300):
        returns = rng.normal(5.0, 30.0, (7, 31)).astype(np.float32)
        returns[0, 0] = 1e6 * k  # an outlier moves nothing
        scale.learn(torch.from_numpy(returns))
        low, high = 0.99 * low + 0.01 * percentile(returns, 5), 0.99 * high + 0.01 * percentile(returns, 95)
        np.testing.assert_allclose(float(scale.spread()), max(1.0, high - low), rtol=1e-4)
    assert 60 < float(scale.spread()) < 120
    small = PercentileScale(torch.device("cpu"))
    for _ in range(50):
        small.learn(torch.from_numpy(0.01 * rng.normal(size=200)))
    assert float(small.spread()) == 1.0  # noise is not magnified


def test_the_percentiles_go_on_after_a_restore_in_the_same_memory() -> None:
    whole, restored = PercentileScale(torch.device("cpu")), PercentileScale(torch.device("cpu"))
    batches = 100 * torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    for batch in batches[:3]:
        whole.learn(batch)
    where = restored.ends.data_ptr()
    restored.load_state_dict(whole.state_dict())
    for batch in batches[3:]:
        whole.learn(batch)
        restored.learn(batch)
    assert torch.equal(whole.ends, restored.ends)
    assert restored.ends.data_ptr() == where
