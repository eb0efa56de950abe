from __future__ import annotations

import numpy as np
import torch

from cadenza.nets.normalisers import PercentileScale, RewardScale


def test_rewards_are_divided_by_the_deviation_of_returns() -> None:
    rng = np.random.default_rng(0)
    reward, ended = rng.normal(2, 3, (40, 3, 1)).astype(np.float32), rng.random((40, 3, 1)) < 0.1
    scale = RewardScale(3, 1, gamma=0.9, device=torch.device("cpu"))
    sums, running = [], np.zeros((3, 1))
    for now, over in zip(reward, ended, strict=True):
        running = running * 0.9 + now
        sums.append(running)
        running = np.where(over, 0, running)
    first = np.concatenate([np.ones((1, 3, 1), bool), ended[:-1]])
    halves = [
        scale(*map(torch.from_numpy, (reward[part], ended[part], np.ones((20, 3, 1), bool), first[part])))
        for part in (slice(20), slice(20, 40))
    ]
    np.testing.assert_allclose(halves[0], np.clip(reward[:20] / np.std(sums[:20]), -10, 10), rtol=1e-5)
    np.testing.assert_allclose(halves[1], np.clip(reward[20:] / np.std(sums), -10, 10), rtol=1e-5)


def test_reward_scale_continues_after_a_restore() -> None:
    reward, ended = torch.randn(10, 2, 1), torch.zeros(10, 2, 1, dtype=torch.bool)
    active, first = ~ended, ended
    whole, half, restored = (RewardScale(2, 1, 0.99, torch.device("cpu")) for _ in range(3))
    early, late = ([x[part] for x in (reward, ended, active, first)] for part in (slice(5), slice(5, 10)))
    whole(*early)
    half(*early)
    restored.load_state_dict(half.state_dict())
    assert torch.equal(whole(*late), restored(*late))


def test_running_return_is_reset_where_an_episode_starts_without_an_end_before_it() -> None:
    """Environments that cannot be restored restart after a resume, without a `done` in the rollout."""
    reward, none = torch.full((3, 2, 1), 7.0), torch.zeros(3, 2, 1, dtype=torch.bool)
    first = none.clone()
    first[0, 1] = True
    scale = RewardScale(2, 1, 0.5, torch.device("cpu"))
    scale(reward, none, ~none, first)
    scale(reward, none, ~none, first)
    gone_on = [7 * sum(0.5**k for k in range(t)) for t in range(1, 7)]
    expected = np.var([*gone_on, *gone_on[:3], *gone_on[:3]])
    np.testing.assert_allclose(float(scale.norm.var), expected, rtol=1e-9)
    np.testing.assert_allclose(scale.running.ravel(), [gone_on[5], gone_on[2]])


def test_inactive_agents_do_not_count() -> None:
    reward, ended = torch.randn(30, 2, 2), torch.zeros(30, 2, 2, dtype=torch.bool)
    active = torch.ones(30, 2, 2, dtype=torch.bool)
    reward[:, :, 1], active[:, :, 1] = 0.0, False
    both, alone = RewardScale(2, 2, 0.9, torch.device("cpu")), RewardScale(2, 1, 0.9, torch.device("cpu"))
    expected = alone(reward[..., :1], ended[..., :1], active[..., :1], ended[..., :1])
    torch.testing.assert_close(both(reward, ended, active, ended)[..., :1], expected)


def percentile(numbers: np.ndarray, level: float) -> float:
    """Return a percentile by sorting and linear interpolation."""
    ranked = sorted(numbers.ravel().tolist())
    place = level / 100 * (len(ranked) - 1)
    below = min(int(place), len(ranked) - 2)
    return ranked[below] + (place - below) * (ranked[below + 1] - ranked[below])


def test_percentile_scale_follows_the_percentiles_of_returns() -> None:
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


def test_percentile_scale_is_restored_in_place() -> None:
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
