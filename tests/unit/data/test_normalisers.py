from __future__ import annotations

import numpy as np
import torch

from cadenza.data.normalisers import RewardScale


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
