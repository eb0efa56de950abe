"""TD errors of values and of return distributions, element by element. Letters in shapes: K atoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TDBatch:
    """A batch of one group's transitions [B, A, …], as tensors or as NumPy arrays."""

    obs: Any
    action: Any  # index from 0
    reward: Any
    next_obs: Any
    next_mask: Any  # None: every action is allowed
    discount: Any  # of the value of next_obs; 0 after a termination
    share: Any  # weight in a mean over the agents that acted
    weight: Any  # weight in the loss: `share` times the importance weight


def huber(error: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the Huber loss: half the square up to `kappa`, linear beyond."""
    size = error.abs()
    return torch.where(size <= kappa, 0.5 * size.square(), kappa * (size - 0.5 * kappa))


def project(probs: Tensor, returns: Tensor, support: Tensor) -> Tensor:
    """Project `probs` [*, K] of `returns` [*, K] onto the evenly spaced `support` [K]; return probabilities [*, K].

    The probability of a return is divided between the two atoms next to it, so that the mean stays the same (Bellemare
    et al. 2017, arXiv:1707.06887, algorithm 1). Returns outside of the support are clipped to it.
    """
    step = (support[-1] - support[0]) / (len(support) - 1)
    position = (returns.clamp(support[0], support[-1]) - support[0]) / step
    index = torch.arange(len(support), dtype=position.dtype, device=position.device)
    share = (1 - (position[..., None] - index).abs()).clamp(min=0)  # [*, K of returns, K of the support]
    return (probs[..., None] * share).sum(-2)


def quantile_huber(quantiles: Tensor, returns: Tensor, kappa: float) -> Tensor:
    """Return the quantile regression loss [*] of quantiles [*, K] against samples of the return [*, J].

    Dabney et al. 2018, arXiv:1710.10044, eq. 10.
    """
    count = quantiles.shape[-1]
    level = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    error = returns[..., None, :] - quantiles[..., None]  # [*, K, J]
    asymmetry = (level[:, None] - (error < 0).to(error.dtype)).abs()
    return (asymmetry * huber(error, kappa) / kappa).mean(-1).sum(-1)
