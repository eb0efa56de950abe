"""Returns and surrogate objectives against slow loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadenza.ops.returns import discounted_sum, explained_variance, gae
from cadenza.ops.surrogate import approximate_kl, clipped_surrogate, masked_mean, masked_standardise, value_error


@pytest.mark.parametrize("seed", range(5))
def test_gae_equals_its_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps, envs, gamma, lam = 12, 3, 0.9, 0.8
    reward, value = rng.normal(size=(steps, envs)), rng.normal(size=(steps, envs))
    next_value = rng.normal(size=(steps, envs))
    ended = rng.random((steps, envs)) < 0.25
    expected = np.zeros((steps, envs))
    for t in range(steps):
        for n in range(envs):
            weight = 1.0
            for k in range(t, steps):
                expected[t, n] += weight * (reward[k, n] + gamma * next_value[k, n] - value[k, n])
                if ended[k, n]:
                    break
                weight *= gamma * lam
    r, v, following, ends = (torch.from_numpy(x) for x in (reward, value, next_value, ended))
    np.testing.assert_allclose(gae(r, v, following, ends, gamma, lam).numpy(), expected, atol=1e-12)


def test_clipped_surrogate_case_by_case() -> None:
    for ratio in (0.5, 0.9, 1.0, 1.1, 2.0):
        for advantage in (-2.0, 3.0):
            bounded = min(max(ratio, 0.8), 1.2)
            expected = min(ratio * advantage, bounded * advantage)
            log_ratio = torch.tensor(ratio, dtype=torch.float64).log()
            got = clipped_surrogate(log_ratio, torch.tensor(advantage), torch.tensor(0.2, dtype=torch.float64))
            assert float(got) == pytest.approx(expected)


def test_value_error_is_the_maximum_of_clipped_and_unclipped() -> None:
    value, old, target = torch.tensor([2.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([2.0, 1.0])
    assert value_error(value, old, target, None).tolist() == pytest.approx([0.0, 0.81])
    assert value_error(value, old, target, 0.5).tolist() == pytest.approx([2.25, 0.81])


def test_approximate_kl_is_unbiased_for_two_categoricals() -> None:
    old, new = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.3, 0.3, 0.4])
    exact = (old * (old / new).log()).sum()
    assert float((old * approximate_kl((new / old).log())).sum()) == pytest.approx(float(exact), rel=1e-5)


def test_masked_mean_ignores_masked_entries() -> None:
    x = torch.tensor([1.0, 100.0, 3.0])
    assert float(masked_mean(x, torch.tensor([1.0, 0.0, 1.0]))) == 2.0
    assert float(masked_mean(x, torch.zeros(3))) == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_discounted_sum_equals_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reward, last = rng.normal(size=(12, 3)), rng.random((12, 3)) < 0.25
    expected = np.zeros((12, 3))
    for t in range(12):
        for n in range(3):
            for k in range(t, 12):
                expected[t, n] += 0.9 ** (k - t) * reward[k, n]
                if last[k, n]:
                    break
    np.testing.assert_allclose(discounted_sum(torch.from_numpy(reward), torch.from_numpy(last), 0.9), expected)


def test_masked_standardise_uses_unmasked_entries_only() -> None:
    x, mask = torch.randn(40, dtype=torch.float64), (torch.arange(40) % 3 > 0).double()
    selected = x[mask > 0]
    expected = (selected - selected.mean()) / selected.std()
    torch.testing.assert_close(masked_standardise(x, mask)[mask > 0], expected, rtol=1e-6, atol=1e-6)
    alone = torch.zeros(40, dtype=torch.float64)
    alone[3] = 1
    assert torch.equal(masked_standardise(x, alone), x)


def test_explained_variance_counts_only_weighted_entries() -> None:
    target, weight = torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert float(explained_variance(target, target, weight)) == 1
    assert float(explained_variance(torch.full((4,), 7.0), target, weight)) == pytest.approx(0)
    assert float(explained_variance(-target, target, weight)) == pytest.approx(1 - 4)
