"""Noise schedules and both samplers, compared step by step with the schedulers of diffusers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cadenza.ops.diffusion import NOISE_SCHEDULES, add_noise, ddim_step, ddpm_step

diffusers = pytest.importorskip("diffusers")

STEPS = 100
BETAS: dict[str, dict[str, Any]] = {
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
    "linear": {"beta_schedule": "linear", "beta_start": 1e-4 * 1000 / STEPS, "beta_end": 0.02 * 1000 / STEPS},
}


def theirs(kind: str, schedule: str, count: int = STEPS) -> Any:
    scheduler = getattr(diffusers, kind)(num_train_timesteps=STEPS, clip_sample=True, **BETAS[schedule])
    scheduler.set_timesteps(count)
    return scheduler


def normal(seed: int) -> torch.Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("schedule", NOISE_SCHEDULES)
def test_noise_schedule_equals_that_of_diffusers(schedule: str) -> None:
    alpha_bar, scheduler = NOISE_SCHEDULES[schedule](STEPS), theirs("DDPMScheduler", schedule)
    torch.testing.assert_close(alpha_bar, scheduler.alphas_cumprod, atol=1e-6, rtol=1e-4)
    clean, noise = normal(0).clamp(-1, 1), normal(1)
    for step in range(STEPS):
        expected = scheduler.add_noise(clean, noise, torch.tensor(step))
        torch.testing.assert_close(add_noise(clean, noise, alpha_bar[step]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("schedule", NOISE_SCHEDULES)
@pytest.mark.parametrize("count", [STEPS, 20])
def test_ddpm_steps_equal_those_of_diffusers(schedule: str, count: int) -> None:
    alpha_bar, scheduler = NOISE_SCHEDULES[schedule](STEPS), theirs("DDPMScheduler", schedule, count)
    x = expected = normal(0)
    for step in scheduler.timesteps.tolist():
        predicted = torch.tanh(expected) + 0.1 * normal(step)
        target = alpha_bar[step - STEPS // count] if step else torch.tensor(1.0)
        generator = torch.Generator().manual_seed(step)
        expected = scheduler.step(predicted, step, expected, generator=generator).prev_sample
        x = ddpm_step(x, predicted, alpha_bar[step], target, normal(step))
        torch.testing.assert_close(x, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("schedule", NOISE_SCHEDULES)
@pytest.mark.parametrize("count", [STEPS, 10])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_ddim_steps_equal_those_of_diffusers(schedule: str, count: int, eta: float) -> None:
    alpha_bar, scheduler = NOISE_SCHEDULES[schedule](STEPS), theirs("DDIMScheduler", schedule, count)
    x = expected = normal(0)
    for step in scheduler.timesteps.tolist():
        predicted, noise = torch.tanh(expected) + 0.1 * normal(step), normal(1000 + step)
        target = alpha_bar[step - STEPS // count] if step else torch.tensor(1.0)
        expected = scheduler.step(predicted, step, expected, eta=eta, variance_noise=noise).prev_sample
        x = ddim_step(x, predicted, alpha_bar[step], target, noise, eta)
        torch.testing.assert_close(x, expected, atol=1e-4, rtol=1e-4)
