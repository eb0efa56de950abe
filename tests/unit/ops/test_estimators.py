"""Estimators of advantages against loops that follow their definitions step by step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cadenza.ops.returns import gae, lambda_return, monte_carlo, n_step, vtrace
from cadenza.workflows.dreamer_behaviour import estimated_return

GAMMA = 0.9


class Steps(NamedTuple):
    """Steps [T] of one environment; `next_value` is 0 after a termination, and no step follows an end."""

    reward: np.ndarray
    value: np.ndarray
    next_value: np.ndarray
    ends: np.ndarray


def steps(seed: int, count: int = 12) -> Steps:
    """Return steps with terminations, truncations and, between them, the next step's value."""
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=count), rng.normal(size=count)
    ends = rng.random(count) < 0.25
    next_value = np.append(value[1:], rng.normal())
    truncated = rng.random(count) < 0.5
    next_value[ends] = np.where(truncated, rng.normal(size=count), 0.0)[ends]
    return Steps(reward, value, next_value, ends)


def tensors(data: Steps) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    reward, value, next_value, ends = (torch.from_numpy(x)[:, None] for x in data)
    return reward, value, next_value, ends


def plain(result: torch.Tensor) -> np.ndarray:
    array: np.ndarray = result[:, 0].numpy()
    return array


def n_step_return(data: Steps, t: int, n: int) -> float:
    """Return up to n rewards from step t on, and the value after the last of them."""
    total, weight = 0.0, 1.0
    for k in range(t, min(t + n, len(data.reward))):
        total, weight = total + weight * data.reward[k], weight * GAMMA
        if data.ends[k]:
            break
    return float(total + weight * data.next_value[k])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1, 3, 5, 40])
def test_n_step_equals_its_sum(seed: int, n: int) -> None:
    data = steps(seed)
    expected = [n_step_return(data, t, n) - data.value[t] for t in range(len(data.reward))]
    np.testing.assert_allclose(plain(n_step(*tensors(data), GAMMA, 0.5, n=n)), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_monte_carlo_sums_to_the_end_of_the_episode_or_of_the_rollout(seed: int) -> None:
    data = steps(seed)
    expected = [n_step_return(data, t, 1000) - data.value[t] for t in range(len(data.reward))]
    np.testing.assert_allclose(plain(monte_carlo(*tensors(data), GAMMA, 0.5)), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_is_the_td_lambda_return_minus_the_value(seed: int, lam: float) -> None:
    data = steps(seed)
    expected, count = [], len(data.reward)
    for t in range(count):
        longest = next((k for k in range(t, count) if data.ends[k]), count - 1) - t + 1
        shares = [(1 - lam) * lam ** (n - 1) for n in range(1, longest)] + [lam ** (longest - 1)]
        expected.append(sum(share * n_step_return(data, t, n) for n, share in enumerate(shares, 1)) - data.value[t])
    np.testing.assert_allclose(plain(gae(*tensors(data), GAMMA, lam)), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clips", [(1.0, 1.0), (1.5, 0.8)])
def test_vtrace_equals_its_definition(seed: int, clips: tuple[float, float]) -> None:
    data, lam = steps(seed), 0.95
    ratio = np.exp(np.random.default_rng(seed + 100).normal(size=len(data.reward)))
    rho, c = np.minimum(ratio, clips[0]), lam * np.minimum(ratio, clips[1])
    target = np.empty(len(ratio))
    for s in range(len(ratio)):
        target[s], weight = data.value[s], 1.0
        for t in range(s, len(ratio)):
            target[s] += weight * rho[t] * (data.reward[t] + GAMMA * data.next_value[t] - data.value[t])
            weight *= GAMMA * c[t]
            if data.ends[t]:
                break
    after = [data.next_value[t] if data.ends[t] else target[t + 1] for t in range(len(ratio) - 1)]
    after.append(data.next_value[-1])
    advantage = rho * (data.reward + GAMMA * np.array(after) - data.value)
    numbers: Any = (GAMMA, lam, torch.from_numpy(ratio)[:, None], *clips)
    results = vtrace(*tensors(data), *numbers)
    np.testing.assert_allclose(plain(results[1]), target, atol=1e-12)
    np.testing.assert_allclose(plain(results[0]), advantage, atol=1e-12)


def test_vtrace_on_policy_without_decay_is_monte_carlo() -> None:
    data = tensors(steps(0))
    advantage, target = vtrace(*data, GAMMA, 1.0)
    torch.testing.assert_close(advantage, monte_carlo(*data, GAMMA, 1.0))
    torch.testing.assert_close(target, advantage + data[1])


@pytest.mark.parametrize("cut", [False, True])
def test_returns_of_dreamer_by_gae_are_its_lambda_returns(cut: bool) -> None:
    rng = np.random.default_rng(3)
    reward, value = (torch.from_numpy(rng.normal(size=(9, 4))) for _ in range(2))
    cont = torch.from_numpy(0.97 * rng.random((9, 4)))
    last = torch.zeros(9, 4, dtype=torch.bool)
    last[4, 1] = cut
    arguments = (reward, cont, value, value[-1], 0.8, last if cut else None)
    got, expected = estimated_return(gae, *arguments), lambda_return(*arguments)
    rows = ~last[:-1]  # the return of a last state does not count
    torch.testing.assert_close(got[rows], expected[rows])
    torch.testing.assert_close(
        estimated_return(vtrace, *arguments[:4], 0.8)[-1], lambda_return(*arguments[:4], 0.8)[-1]
    )
