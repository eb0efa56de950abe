"""Errors of values and of distributions of returns, element by element. Letters in shapes: K atoms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """A group's, [B, A, …]: tensors, or arrays for networks by hand."""

    obs: Any
    action: Any  # from 0 on
    reward: Any
    next_obs: Any
    next_mask: Any  # None: every action is allowed
    discount: Any  # what the value of next_obs counts; nothing after an end
    share: Any  # in a mean over those who acted
    weight: Any  # in the loss: the same, but for importance

    def split(self, parts: int) -> Iterator[Transitions]:
        """As many of equal size."""
        size = len(self.action) // parts
        for start in range(0, parts * size, size):
            yield Transitions(*(None if x is None else x[start : start + size] for x in vars(self).values()))


def huber(error: Tensor, kappa: float = 1.0) -> Tensor:
    """Half the square up to `kappa`, a line above."""
    size = error.abs()
    return torch.where(size <= kappa, 0.5 * size.square(), kappa * (size - 0.5 * kappa))


def projected(probs: Tensor, returns: Tensor, support: Tensor) -> Tensor:
    """Probabilities [*, K] of `returns` [*, K] as ones of the evenly spaced `support` [K], which keeps their mean.

    Each return gives its probability to its two neighbours (Bellemare et al. 2017, arXiv:1707.06887, algorithm 1).
    """
    step = (support[-1] - support[0]) / (len(support) - 1)
    place = (returns.clamp(support[0], support[-1]) - support[0]) / step
    index = torch.arange(len(support), dtype=place.dtype, device=place.device)
    near = (1 - (place[..., None] - index).abs()).clamp(min=0)  # [*, K of returns, K of the support]
    return (probs[..., None] * near).sum(-2)


def quantile_huber(quantiles: Tensor, returns: Tensor, kappa: float) -> Tensor:
    """[*] of K quantiles [*, K] and samples of the return [*, J] (Dabney et al. 2018, arXiv:1710.10044, eq. 10)."""
    count = quantiles.shape[-1]
    level = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    error = returns[..., None, :] - quantiles[..., None]  # [*, K, J]
    lopsided = (level[:, None] - (error < 0).to(error.dtype)).abs()
    return (lopsided * huber(error, kappa) / kappa).mean(-1).sum(-1)
