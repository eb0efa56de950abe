"""Return estimators on tensors shaped [T, …]."""

from __future__ import annotations

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


def weighted_sum(x: Tensor, keep: Tensor) -> Tensor:
    """y[t] = x[t] + keep[t] * y[t + 1], in log T operations instead of T.

    Each round doubles the stretch that y[t] sums over; `reach` is then the weight of what comes after it.
    """
    y, reach = x.clone(), keep.clone()
    stretch = 1
    while stretch < len(x):
        y[:-stretch] += reach[:-stretch] * y[stretch:]
        reach[:-stretch] *= reach[stretch:].clone()
        stretch *= 2
    return y


def explained_variance(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """1 where values predict their targets perfectly, 0 where a constant would do as well; where `weight` is set."""
    counted = weight > 0
    target = target[counted]
    residual = target - value[counted]
    return 1 - residual.var(correction=0) / target.var(correction=0).clamp(min=1e-8)
