"""Return estimators on tensors shaped [T, …]."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(reward: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, gamma: float, lam: float) -> Tensor:
    """Return generalised advantage estimates [T, …] (Schulman et al. 2016).

    `next_value` [T, …] is the bootstrap: 0 after a termination, V(final observation) after a truncation. `ends`
    [T, …] ends the sum over later steps after either; it does not change the bootstrap.
    """
    return weighted_sum(reward + gamma * next_value - value, gamma * lam * (~ends).to(reward.dtype))


def discounted_sum(reward: Tensor, last: Tensor, gamma: float) -> Tensor:
    """Return discounted sums of rewards [T, …] from each step up to and including the next step that is `last`."""
    return weighted_sum(reward, gamma * (~last).to(reward.dtype))


def lambda_return(
    reward: Tensor, cont: Tensor, value: Tensor, bootstrap: Tensor, lam: float, last: Tensor | None = None
) -> Tensor:
    """Return differentiable TD(lambda) returns [T-1, …] of all states but the final one.

    `reward`, `cont` and `value` [T, …] belong to a state: the reward for arriving there, the discount on all later
    rewards (0 where an episode terminates), and its value. `bootstrap` […] is the value of the final state. So:

        R[t] = reward[t+1] + cont[t+1] * ((1 - lam) * value[t+1] + lam * R[t+1]),    R[T-1] = bootstrap

    The return of a state that is `last` [T, …] of its episode is its value: the rows after it do not count.
    """
    trace = lam * cont[1:]
    if last is not None:
        trace = trace * (~last[1:]).to(trace.dtype)
    steps = reward[1:] + (cont[1:] - trace) * value[1:]
    end = bootstrap.unsqueeze(0).to(steps.dtype)
    return weighted_sum(torch.cat([steps, end]), torch.cat([trace, torch.zeros_like(end)]))[:-1]


def weighted_sum(x: Tensor, keep: Tensor) -> Tensor:
    """Return y[t] = x[t] + keep[t] * y[t + 1] for x and keep [T, …], differentiable, in log T operations instead of T.

    Each iteration doubles the `span` of steps that y[t] sums over; `weight` is that of the steps after them.
    """
    y, weight = x.clone(), keep
    span = 1
    while span < len(x):
        y = torch.cat([y[:-span] + weight[:-span] * y[span:], y[-span:]])
        weight = torch.cat([weight[:-span] * weight[span:], weight[-span:]])
        span *= 2
    return y


def explained_variance(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return 1 for values equal to their targets, 0 for values no better than a constant; only where `weight` > 0."""
    counted = weight > 0
    target = target[counted]
    residual = target - value[counted]
    return 1 - residual.var(correction=0) / target.var(correction=0).clamp(min=1e-8)
