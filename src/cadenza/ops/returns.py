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
