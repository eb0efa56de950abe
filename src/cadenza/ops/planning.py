"""Planning by the cross-entropy method (Rubinstein 1999), as PlaNet does it (Hafner et al. 2019, arXiv:1811.04551)."""

from __future__ import annotations

from collections.abc import Callable

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

    `score` gives returns [N, P] for P plans [N, P, H, D] of each of N environments. `noise` [I, N, P, H, D] is standard
    normal: as many iterations as it has. The two are where the search starts, zeros and ones as a rule.
    """
    for drawn in noise:
        plans = (mean.unsqueeze(1) + std.unsqueeze(1) * drawn).clamp(low, high)
        best = score(plans).topk(elites, dim=1, sorted=False).indices
        chosen = plans.gather(1, best[..., None, None].expand(-1, -1, *plans.shape[2:]))
        mean = chosen.mean(1)
        std = torch.sqrt(chosen.var(1, correction=0) + 1e-6)
    return mean, std
