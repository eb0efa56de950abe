"""Sampling-based planning: the cross-entropy method (Rubinstein 1999) and MPPI (Williams et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def cem(
    score: Callable[[Tensor], Tensor],
    mean: Tensor,
    std: Tensor,
    noise: Tensor,
    elites: int,
    low: float = -1.0,
    high: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation [N, H, D] of plans of H actions, fitted to the `elites` of I iterations.

    As in PlaNet (Hafner et al. 2019, arXiv:1811.04551). The search starts from `mean` and `std`, zeros and ones as a
    rule. `score` returns the values [N, P] of P plans [N, P, H, D] for each of N environments. `noise` [I, N, P, H, D]
    is standard normal. Actions are clipped to [`low`, `high`].
    """
    for standard in noise:
        plans = (mean.unsqueeze(1) + std.unsqueeze(1) * standard).clamp(low, high)
        index = score(plans).topk(elites, dim=1, sorted=False).indices
        best = plans.gather(1, index[..., None, None].expand(-1, -1, *plans.shape[2:]))
        mean = best.mean(1)
        std = torch.sqrt(best.var(1, correction=0) + 1e-6)
    return mean, std


class MPPIResult(NamedTuple):
    """The result of a search by `mppi`."""

    action: Tensor  # [N, D] first action of a sampled elite plan
    mean: Tensor  # [N, H, D]
    std: Tensor  # [N, H, D]


def mppi(
    score: Callable[[Tensor, int], Tensor],
    mean: Tensor,
    std: Tensor,
    noise: Tensor,
    policy_plans: Tensor,
    waiting: Tensor,
    *,
    elites: int,
    temperature: float,
    momentum: float,
    min_std: Tensor,
    max_std: float,
) -> MPPIResult:
    """Search for plans of H actions in [-1, 1]: fit a normal distribution to the `elites`, weighed by their values.

    As in TD-MPC (Hansen et al. 2022, arXiv:2203.04955). The search starts from `mean` and `std` [N, H, D]. `score`
    returns the values [N, P] of P plans [N, P, H, D] in the iteration of a number. `noise` [I, N, P - G, H, D] is
    standard normal, for I iterations. The plans `policy_plans` [N, G, H, D] compete in each of them. `waiting`
    [N, elites] is exponential noise: it samples the elite plan that acts.
    """
    for number, standard in enumerate(noise):
        samples = (mean.unsqueeze(1) + std.unsqueeze(1) * standard).clamp(-1, 1)
        plans = torch.cat([policy_plans, samples], 1)
        value, index = score(plans, number).topk(elites, dim=1)  # the highest first
        best = plans.gather(1, index[..., None, None].expand(-1, -1, *plans.shape[2:]))
        weight = torch.softmax(temperature * value, 1)
        plan_weight = weight[..., None, None]
        fitted = (plan_weight * best).sum(1)
        spread = (plan_weight * (best - fitted.unsqueeze(1)).square()).sum(1).sqrt()
        std = torch.maximum(spread.clamp(max=max_std), min_std)
        mean = momentum * mean + (1 - momentum) * fitted
    # the smallest of independent exponential waiting times with rates p falls on i with probability p_i
    sampled = (weight / waiting).argmax(1)[:, None, None, None].expand(-1, 1, *best.shape[2:])
    return MPPIResult(best.gather(1, sampled)[:, 0, 0], mean, std)
