"""Noise schedules and both ways back from noise, step by step beside the schedulers of diffusers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cadenza.ops.diffusion import KEPT, ddim_step, ddpm_step, noised

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


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("schedule", KEPT)
def test_as_much_is_left_after_every_step(schedule: str) -> None:
    kept, scheduler = KEPT[schedule](STEPS), theirs("DDPMScheduler", schedule)
    torch.testing.assert_close(kept, scheduler.alphas_cumprod, atol=1e-6, rtol=1e-4)
    clean, noise = drawn(0).clamp(-1, 1), drawn(1)
    for step in range(STEPS):
        expected = scheduler.add_noise(clean, noise, torch.tensor(step))
        torch.testing.assert_close(noised(clean, noise, kept[step]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("schedule", KEPT)
@pytest.mark.parametrize("count", [STEPS, 20])
def test_the_way_back_by_ddpm(schedule: str, count: int) -> None:
    kept, scheduler = KEPT[schedule](STEPS), theirs("DDPMScheduler", schedule, count)
    x = expected = drawn(0)
    for step in scheduler.timesteps.tolist():
        predicted = torch.tanh(expected) + 0.1 * drawn(step)
        before = kept[step - STEPS // count] if step else torch.tensor(1.0)
        generator = torch.Generator().manual_seed(step)
        expected = scheduler.step(predicted, step, expected, generator=generator).prev_sample
        x = ddpm_step(x, predicted, kept[step], before, drawn(step))
        torch.testing.assert_close(x, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("schedule", KEPT)
@pytest.mark.parametrize("count", [STEPS, 10])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_the_way_back_by_ddim(schedule: str, count: int, eta: float) -> None:
    kept, scheduler = KEPT[schedule](STEPS), theirs("DDIMScheduler", schedule, count)
    x = expected = drawn(0)
    for step in scheduler.timesteps.tolist():
        predicted, noise = torch.tanh(expected) + 0.1 * drawn(step), drawn(1000 + step)
        before = kept[step - STEPS // count] if step else torch.tensor(1.0)
        expected = scheduler.step(predicted, step, expected, eta=eta, variance_noise=noise).prev_sample
        x = ddim_step(x, predicted, kept[step], before, noise, eta)
        torch.testing.assert_close(x, expected, atol=1e-4, rtol=1e-4)
