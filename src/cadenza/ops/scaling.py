"""Numbers of any size made learnable: logarithms with a sign, and distributions over bins that stand for them."""

from __future__ import annotations

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """A logarithm for both signs: nearly x around 0, flat far out."""
    return x.sign() * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    """What `symlog` undoes."""
    return x.sign() * torch.expm1(x.abs())


def two_hot_bins(count: int = 255, low: float = -20.0, high: float = 20.0) -> Tensor:
    """Values [count] that are evenly spaced as `symlog` sees them; exactly symmetric where `low` is minus `high`."""
    bins = symexp(torch.linspace(low, high, count, dtype=torch.float64)).float()
    return (bins - bins.flip(0)) / 2 if low == -high else bins  # rounding of the two halves may differ


def two_hot(x: Tensor, bins: Tensor) -> Tensor:
    """Weights [*, K] of the two bins around x [*], whose mean it is; beyond the outermost, of that one alone."""
    above, share = (part.unsqueeze(-1) for part in around(x, bins))
    index = torch.arange(len(bins), device=x.device)
    return torch.where(index == above, share, torch.where(index == above - 1, 1 - share, torch.zeros_like(share)))


def around(x: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Number and weight [*] of the bin above x [*]; the one before it has the rest."""
    x = x.to(bins.dtype).clamp(bins[0], bins[-1]).contiguous()
    above = torch.searchsorted(bins, x, right=True).clamp(1, len(bins) - 1)
    lower, upper = bins[above - 1], bins[above]
    return above, (x - lower) / (upper - lower)


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """The mean [*] of a distribution over bins that lie evenly on both sides of 0, logits [*, K].

    Each bin is set against its mirror image first: large bins cancel, and equal logits give 0 exactly, not some
    rounding error of 1e8, which a network that starts with zero weights would have to unlearn.
    """
    probs, half = logits.to(bins.dtype).softmax(-1), len(bins) // 2
    return (probs[..., -half:] - probs[..., :half].flip(-1)) @ bins[-half:]


def two_hot_loss(logits: Tensor, target: Tensor, bins: Tensor) -> Tensor:
    """Cross entropy [*] between logits [*, K] and the two bins around each target [*], which gets no gradient."""
    return two_hot_losses(logits.to(bins.dtype).log_softmax(-1), target.unsqueeze(-1), bins).squeeze(-1)


def two_hot_losses(log_probs: Tensor, targets: Tensor, bins: Tensor) -> Tensor:
    """The same [*, M] for M targets [*, M] of the same log probabilities [*, K]."""
    above, share = around(targets.detach(), bins)
    lower, upper = log_probs.gather(-1, torch.cat([above - 1, above], -1)).chunk(2, -1)  # of K weights two count
    return -torch.lerp(lower, upper, share)
