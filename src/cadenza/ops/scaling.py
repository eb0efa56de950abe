"""Representations of numbers of any magnitude: symmetric logarithms, and distributions over bins (two-hot)."""

from __future__ import annotations

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) log(1 + |x|)."""
    return x.sign() * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    """Return the inverse of `symlog`."""
    return x.sign() * torch.expm1(x.abs())


def two_hot_bins(count: int = 255, low: float = -20.0, high: float = 20.0) -> Tensor:
    """Return values [count], evenly spaced under `symlog` from `low` to `high`; exactly symmetric if low = -high."""
    bins = symexp(torch.linspace(low, high, count, dtype=torch.float64)).float()
    return (bins - bins.flip(0)) / 2 if low == -high else bins  # rounding of the two halves may differ


def two_hot(x: Tensor, bins: Tensor) -> Tensor:
    """Return weights [*, K] of the two bins around x [*], whose mean is x; x is clipped to the range of the bins."""
    above, share = (part.unsqueeze(-1) for part in bin_above(x, bins))
    index = torch.arange(len(bins), device=x.device)
    return torch.where(index == above, share, torch.where(index == above - 1, 1 - share, torch.zeros_like(share)))


def bin_above(x: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return index and two-hot weight [*] of the bin above x [*]; the bin before it has the rest of the weight."""
    x = x.to(bins.dtype).clamp(bins[0], bins[-1]).contiguous()
    above = torch.searchsorted(bins, x, right=True).clamp(1, len(bins) - 1)
    lower, upper = bins[above - 1], bins[above]
    return above, (x - lower) / (upper - lower)


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """Return the mean [*] of the distribution with logits [*, K] over bins that are symmetric around 0.

    Opposite bins are subtracted first: large ones cancel, and equal logits give exactly 0, not a rounding error of
    1e8, which a network that starts with zero weights would have to unlearn.
    """
    probs, half = logits.to(bins.dtype).softmax(-1), len(bins) // 2
    difference = probs[..., -half:] - probs[..., :half].flip(-1)
    if difference.is_cuda:  # a product of matrices has fewer digits under autocast and with TF32
        return (difference * bins[-half:]).sum(-1)
    return difference @ bins[-half:]


def two_hot_loss(logits: Tensor, target: Tensor, bins: Tensor) -> Tensor:
    """Return the cross entropy [*] between logits [*, K] and two-hot targets [*], which get no gradient."""
    return two_hot_losses(logits.to(bins.dtype).log_softmax(-1), target.unsqueeze(-1), bins).squeeze(-1)


def two_hot_losses(log_probs: Tensor, targets: Tensor, bins: Tensor) -> Tensor:
    """Return the cross entropies [*, M] between log probabilities [*, K] and M two-hot targets [*, M]."""
    above, share = bin_above(targets.detach(), bins)
    lower, upper = log_probs.gather(-1, torch.cat([above - 1, above], -1)).chunk(2, -1)  # only two weights are not 0
    return -torch.lerp(lower, upper, share)
