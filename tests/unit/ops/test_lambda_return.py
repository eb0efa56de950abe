from __future__ import annotations

import numpy as np
import pytest
import torch

from cadenza.ops.returns import lambda_return, weighted_sum


def n_step(reward: np.ndarray, cont: np.ndarray, value: np.ndarray, t: int, n: int) -> float:
    """Return the n-step return of state t by a loop."""
    total, weight = 0.0, 1.0
    for k in range(t + 1, t + n + 1):
        total += weight * reward[k]
        weight *= cont[k]
    return total + weight * value[t + n]


@pytest.mark.parametrize("lam", [0.0, 0.6, 0.95, 1.0])
def test_lambda_return_is_the_weighted_mean_of_n_step_returns(lam: float) -> None:
    rng = np.random.default_rng(3)
    length, envs = 9, 4
    reward, value = rng.normal(size=(length, envs)), rng.normal(size=(length, envs))
    cont = 0.97 * rng.random((length, envs))
    cont[4, 1] = 0.0  # an episode terminates
    expected = np.empty((length - 1, envs))
    for t in range(length - 1):
        for b in range(envs):
            column = (reward[:, b], cont[:, b], value[:, b])
            longest = length - 1 - t
            shares = [(1 - lam) * lam ** (n - 1) for n in range(1, longest)] + [lam ** (longest - 1)]
            expected[t, b] = sum(share * n_step(*column, t, n) for n, share in enumerate(shares, 1))
    r, c, v = (torch.from_numpy(x) for x in (reward, cont, value))
    np.testing.assert_allclose(lambda_return(r, c, v, v[-1], lam).numpy(), expected, atol=1e-12)


def test_reward_and_discount_belong_to_the_state_they_lead_to() -> None:
    reward, cont = torch.tensor([100.0, 1.0, 2.0]), torch.tensor([100.0, 0.5, 0.5])
    got = lambda_return(reward, cont, torch.zeros(3), torch.tensor(8.0), 1.0)
    assert got.tolist() == [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8]  # the entries of state 0 do not count


def test_rows_after_the_last_state_of_an_episode_do_not_count() -> None:
    rng = np.random.default_rng(5)
    reward, value, cont = (torch.from_numpy(rng.random(8)) for _ in range(3))
    last = torch.zeros(8, dtype=torch.bool)
    last[3] = True
    whole = lambda_return(reward, cont, value, value[-1], 0.9, last)
    cut = lambda_return(reward[:4], cont[:4], value[:4], value[3], 0.9)
    rest = lambda_return(reward[3:], cont[3:], value[3:], value[-1], 0.9)
    np.testing.assert_allclose(whole[:3], cut, atol=1e-12)
    np.testing.assert_allclose(whole[3:], rest, atol=1e-12)


def test_gradients_flow_to_rewards_discounts_values_and_bootstrap() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, cont, value = (
        torch.rand(6, 2, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    bootstrap = torch.rand(2, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda r, c, v, last: lambda_return(r, c, v, last, 0.9), (reward, cont, value, bootstrap)
    )


@pytest.mark.parametrize("length", [1, 2, 7])
def test_weighted_sum_equals_its_recursion_and_shares_no_memory_with_its_input(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    x, keep = (torch.rand(length, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = x.clone()
    for t in reversed(range(length - 1)):
        expected[t] += keep[t] * expected[t + 1]
    got = weighted_sum(x, keep)
    torch.testing.assert_close(got, expected)
    assert got.data_ptr() != x.data_ptr()
