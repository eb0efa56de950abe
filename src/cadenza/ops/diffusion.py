"""Denoising diffusion (Ho et al. 2020, arXiv:2006.11239; Song et al. 2021, arXiv:2010.02502).

`alpha_bar` is the share of the signal's variance that is left after a number of noising steps: 1 before the first,
near 0 after the last. A network predicts the noise. Estimates of the clean signal are clipped to [-1, 1], the range of
the data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_BETA = 0.999  # greatest share of the variance that one step may replace by noise


def cosine_schedule(steps: int) -> Tensor:
    """Return alpha_bar [steps] after each step, flat at both ends (Nichol and Dhariwal 2021, arXiv:2102.09672)."""

    def level(progress: float) -> float:
        return math.cos((progress + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1 - level((k + 1) / steps) / level(k / steps), MAX_BETA) for k in range(steps)]
    return (1 - torch.tensor(betas, dtype=torch.float64)).cumprod(0).float()


def linear_schedule(steps: int, first: float = 1e-4, last: float = 0.02) -> Tensor:
    """Return alpha_bar [steps] after each step; betas rise from `first` to `last`, scaled by 1000 / `steps`."""
    betas = torch.linspace(first, last, steps, dtype=torch.float64) * (1000 / steps)
    return (1 - betas.clamp(max=MAX_BETA)).cumprod(0).float()


NOISE_SCHEDULES = {"cosine": cosine_schedule, "linear": linear_schedule}


def add_noise(clean: Tensor, noise: Tensor, alpha_bar: Tensor) -> Tensor:
    """Return the clean signal after all noising steps up to the one of `alpha_bar`, with standard normal `noise`."""
    return alpha_bar.sqrt() * clean + (1 - alpha_bar).sqrt() * noise


def sampling_steps(steps: int, count: int) -> list[int]:
    """Return `count` of the noising steps, evenly spaced from the last to step 0: the steps that sampling undoes."""
    return [round(step) for step in torch.linspace(steps - 1, 0, count, dtype=torch.float64).tolist()]


def clean_estimate(x: Tensor, predicted: Tensor, alpha_bar: Tensor) -> Tensor:
    """Return the clean signal that becomes `x` if the noise is as `predicted`, clipped to [-1, 1]."""
    return ((x - (1 - alpha_bar).sqrt() * predicted) / alpha_bar.sqrt()).clamp(-1, 1)


def ddpm_step(x: Tensor, predicted: Tensor, alpha_bar: Tensor, target: Tensor, noise: Tensor) -> Tensor:
    """Remove noise from `x`: sample the signal at alpha_bar `target`, which is greater than the `alpha_bar` of `x`.

    `predicted` is the network's prediction of the noise in `x`, `noise` is standard normal. A target of 1 adds none.
    """
    ratio = alpha_bar / target
    clean, gap = clean_estimate(x, predicted, alpha_bar), (1 - target) / (1 - alpha_bar)
    mean = (target.sqrt() * (1 - ratio) * clean) / (1 - alpha_bar) + ratio.sqrt() * gap * x
    return mean + (gap * (1 - ratio)).sqrt() * noise


def ddim_step(
    x: Tensor, predicted: Tensor, alpha_bar: Tensor, target: Tensor, noise: Tensor, eta: float = 0.0
) -> Tensor:
    """Remove noise as `ddpm_step` does, with `eta` times as much randomness: 0 is deterministic, 1 equals DDPM.

    With less randomness fewer, larger steps suffice.
    """
    spread = eta * ((1 - target) / (1 - alpha_bar) * (1 - alpha_bar / target)).sqrt()
    direction = (1 - target - spread.square()).clamp(min=0).sqrt() * predicted
    return target.sqrt() * clean_estimate(x, predicted, alpha_bar) + direction + spread * noise
