"""Planning by trying plans: the cross-entropy method (Rubinstein 1999) and MPPI (Williams et al. 2015)."""

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
    """Mean and deviation [N, H, D] of plans of H actions, fitted again and again to the best of those tried.

    As PlaNet does it (Hafner et al. 2019, arXiv:1811.04551). `score` gives returns [N, P] for P plans [N, P, H, D] of
    each of N environments. `noise` [I, N, P, H, D] is standard normal: as many iterations as it has. The two are where
    the search starts, zeros and ones as a rule.
    """
    for drawn in noise:
        plans = (mean.unsqueeze(1) + std.unsqueeze(1) * drawn).clamp(low, high)
        best = score(plans).topk(elites, dim=1, sorted=False).indices
        chosen = plans.gather(1, best[..., None, None].expand(-1, -1, *plans.shape[2:]))
        mean = chosen.mean(1)
        std = torch.sqrt(chosen.var(1, correction=0) + 1e-6)
    return mean, std


class Found(NamedTuple):
    """Where a search by `mppi` ended."""

    action: Tensor  # [N, D] the first of one of the best plans
    mean: Tensor  # [N, H, D]
    std: Tensor  # [N, H, D]


def mppi(
    score: Callable[[Tensor, int], Tensor],
    mean: Tensor,
    std: Tensor,
    noise: Tensor,
    given: Tensor,
    waiting: Tensor,
    *,
    elites: int,
    temperature: float,
    momentum: float,
    min_std: Tensor,
    max_std: float,
) -> Found:
    """Plans of H actions between -1 and 1, fitted to the best, each of which counts by its return.

    As TD-MPC does it (Hansen et al. 2022, arXiv:2203.04955). `score` gives returns [N, P] for P plans [N, P, H, D] in
    the round of that number. `noise` [I, N, P - G, H, D] is standard normal: as many rounds as it has. The plans
    `given` [N, G, H, D], a policy's say, compete in each. `waiting` [N, elites], exponential, draws one of the best.
    """
    for number, drawn in enumerate(noise):
        made = (mean.unsqueeze(1) + std.unsqueeze(1) * drawn).clamp(-1, 1)
        plans = torch.cat([given, made], 1)
        value, best = score(plans, number).topk(elites, dim=1)  # the highest first
        chosen = plans.gather(1, best[..., None, None].expand(-1, -1, *plans.shape[2:]))
        weight = torch.softmax(temperature * value, 1)
        each = weight[..., None, None]
        fitted = (each * chosen).sum(1)
        spread = (each * (chosen - fitted.unsqueeze(1)).square()).sum(1).sqrt()
        std = torch.maximum(spread.clamp(max=max_std), min_std)
        mean = momentum * mean + (1 - momentum) * fitted
    # the smallest of independent exponential waiting times with rates p falls on i with probability p_i
    one = (weight / waiting).argmax(1)[:, None, None, None].expand(-1, 1, *chosen.shape[2:])
    return Found(chosen.gather(1, one)[:, 0, 0], mean, std)
