"""Denoising diffusion (Ho et al. 2020, arXiv:2006.11239; Song et al. 2021, arXiv:2010.02502): noise in, and out again.

`kept` is how much of the signal's variance is left after a number of noising steps, between 1 (all) and 0 (none); a
network predicts the noise. Estimates of the clean signal are held within [-1, 1], where the data lie.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STEEPEST = 0.999  # most of the variance that one step may replace by noise


def cosine_kept(steps: int) -> Tensor:
    """[steps] after each step; gentle at both ends (Nichol and Dhariwal 2021, arXiv:2102.09672)."""

    def level(at: float) -> float:
        return math.cos((at + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1 - level((k + 1) / steps) / level(k / steps), STEEPEST) for k in range(steps)]
    return (1 - torch.tensor(betas, dtype=torch.float64)).cumprod(0).float()


def linear_kept(steps: int, first: float = 1e-4, last: float = 0.02) -> Tensor:
    """[steps] after each step, which add ever more noise; the figures are for 1000 steps, fewer add more each."""
    betas = torch.linspace(first, last, steps, dtype=torch.float64) * (1000 / steps)
    return (1 - betas.clamp(max=STEEPEST)).cumprod(0).float()


KEPT = {"cosine": cosine_kept, "linear": linear_kept}


def noised(clean: Tensor, noise: Tensor, kept: Tensor) -> Tensor:
    """What steps of noising come to, all at once."""
    return kept.sqrt() * clean + (1 - kept).sqrt() * noise


def visited(steps: int, count: int) -> list[int]:
    """`count` of the steps, evenly spread from the noisiest, where all begins, to 0: where the network is asked."""
    return [round(at) for at in torch.linspace(steps - 1, 0, count, dtype=torch.float64).tolist()]


def clean_estimate(x: Tensor, predicted: Tensor, kept: Tensor) -> Tensor:
    """The signal that was noised, if the noise is what was predicted."""
    return ((x - (1 - kept).sqrt() * predicted) / kept.sqrt()).clamp(-1, 1)


def ddpm_step(x: Tensor, predicted: Tensor, kept: Tensor, before: Tensor, noise: Tensor) -> Tensor:
    """From where `kept` is left of the signal to where `before` is, which is more: a draw from what can lie there."""
    ratio = kept / before
    clean, gap = clean_estimate(x, predicted, kept), (1 - before) / (1 - kept)
    mean = (before.sqrt() * (1 - ratio) * clean) / (1 - kept) + ratio.sqrt() * gap * x
    return mean + (gap * (1 - ratio)).sqrt() * noise  # before = 1: the end, and nothing to draw


def ddim_step(x: Tensor, predicted: Tensor, kept: Tensor, before: Tensor, noise: Tensor, eta: float = 0.0) -> Tensor:
    """The same with less chance in it, which bears larger steps; `eta` 0: none, 1: as much as `ddpm_step` has."""
    spread = eta * ((1 - before) / (1 - kept) * (1 - kept / before)).sqrt()
    direction = (1 - before - spread.square()).clamp(min=0).sqrt() * predicted
    return before.sqrt() * clean_estimate(x, predicted, kept) + direction + spread * noise
