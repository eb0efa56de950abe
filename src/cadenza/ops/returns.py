"""Return estimators on tensors shaped [T, …]."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(reward: Tensor, value: Tensor, next_value: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimates [T, …] (Schulman et al. 2016).

    `next_value` is the value of what truly followed: 0 after termination, V(final observation) after truncation.
    `done` cuts the sum over later steps for either kind of end; it never touches the bootstrap.
    """
    return weighted_sum(reward + gamma * next_value - value, gamma * lam * (~done).to(reward.dtype))


def discounted_sum(reward: Tensor, last: Tensor, gamma: float) -> Tensor:
    """What is earned from each step on [T, …], up to and including the step that is `last`."""
    return weighted_sum(reward, gamma * (~last).to(reward.dtype))


def lambda_return(
    reward: Tensor, cont: Tensor, value: Tensor, bootstrap: Tensor, lam: float, last: Tensor | None = None
) -> Tensor:
    """TD(lambda) returns [T-1, …] of all states but the final one, each for what comes after it; differentiable.

    `reward`, `cont` and `value` [T, …] belong to a state: what was earned on arriving there, the discount it puts on
    all that follows (0 where an episode terminates), and its value. So state t is judged by what stands at t + 1:

        R[t] = reward[t+1] + cont[t+1] * ((1 - lam) * value[t+1] + lam * R[t+1]),    R[T-1] = bootstrap

    A state that is `last` of its episode is worth its value alone: nothing that is stored behind it counts.
    """
    trust = lam * cont[1:]
    if last is not None:
        trust = trust * (~last[1:]).to(trust.dtype)
    steps = reward[1:] + (cont[1:] - trust) * value[1:]
    end = bootstrap.unsqueeze(0).to(steps.dtype)
    return weighted_sum(torch.cat([steps, end]), torch.cat([trust, torch.zeros_like(end)]))[:-1]


def weighted_sum(x: Tensor, keep: Tensor) -> Tensor:
    """y[t] = x[t] + keep[t] * y[t + 1], in log T operations instead of T; differentiable.

    Each round doubles the stretch that y[t] sums over; `reach` is then the weight of what comes after it.
    """
    y, reach = x.clone(), keep
    stretch = 1
    while stretch < len(x):
        y = torch.cat([y[:-stretch] + reach[:-stretch] * y[stretch:], y[-stretch:]])
        reach = torch.cat([reach[:-stretch] * reach[stretch:], reach[-stretch:]])
        stretch *= 2
    return y


def explained_variance(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """1 where values predict their targets perfectly, 0 where a constant would do as well; where `weight` is set."""
    counted = weight > 0
    target = target[counted]
    residual = target - value[counted]
    return 1 - residual.var(correction=0) / target.var(correction=0).clamp(min=1e-8)
