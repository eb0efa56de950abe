"""Return estimators on tensors shaped [T, …]."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(reward: Tensor, value: Tensor, next_value: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimates [T, …] (Schulman et al. 2016).

    `next_value` is the value of what truly followed: 0 after termination, V(final observation) after truncation.
    `done` cuts the sum over later steps for either kind of end; it never touches the bootstrap.
    """
    delta = reward + gamma * next_value - value
    carry_on = gamma * lam * (~done).to(reward.dtype)
    advantage = torch.empty_like(delta)
    running = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        running = delta[t] + carry_on[t] * running
        advantage[t] = running
    return advantage


def discounted_sum(reward: Tensor, last: Tensor, gamma: float) -> Tensor:
    """What is earned from each step on [T, …], up to and including the step that is `last`."""
    total = torch.empty_like(reward)
    running = torch.zeros_like(reward[0])
    for t in range(len(reward) - 1, -1, -1):
        running = reward[t] + gamma * running.masked_fill(last[t], 0.0)
        total[t] = running
    return total


def explained_variance(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """1 where values predict their targets perfectly, 0 where a constant would do as well; where `weight` is set."""
    counted = weight > 0
    target = target[counted]
    residual = target - value[counted]
    return 1 - residual.var(correction=0) / target.var(correction=0).clamp(min=1e-8)
