"""PPO's objectives, element by element: [B] in, [B] out. Weighting and averaging are the caller's."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip_range: Tensor) -> Tensor:
    """The pessimistic objective of PPO; to be maximised."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip_range, 1 + clip_range) * advantage)


def value_error(value: Tensor, old_value: Tensor, target: Tensor, clip_range: float | None) -> Tensor:
    """Squared error; with a clip range, the worse of it and the error of the value held near its old estimate."""
    error = (value - target).square()
    if clip_range is None:
        return error
    held = old_value + (value - old_value).clamp(-clip_range, clip_range)
    return torch.maximum(error, (held - target).square())


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Low-variance estimate of KL(old, new) from samples of the old policy (Schulman 2020, k3)."""
    return log_ratio.exp() - 1 - log_ratio


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the entries where `mask` (float, 0 or 1) is set."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_standardise(x: Tensor, mask: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the entries where `mask` is set; a single one stays as it is."""
    count = mask.sum()
    mean = masked_mean(x, mask)
    variance = ((x - mean).square() * mask).sum() / (count - 1).clamp(min=1)
    return torch.where(count > 1, (x - mean) / (variance.sqrt() + 1e-8), x)
