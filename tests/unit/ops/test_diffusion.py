"""Noise schedules and samplers against numbers of another implementation."""

from __future__ import annotations

import pytest
import torch

from cadenza.ops.diffusion import NOISE_SCHEDULES, add_noise, ddim_step, ddpm_step, sampling_steps

STEPS = 100
# One of ten steps from x = 0.7 with predicted noise -0.4 and sampled noise 0.3, as computed by diffusers 0.42.1 (linear
# betas are from 0.001 to 0.2): schedule, step, alpha_bar, DDPM, DDIM, DDIM with eta 0.5
REFERENCE = [
    ("cosine", 99, 0.000000, 0.453745, -0.239937, -0.038816),
    ("cosine", 90, 0.019544, 0.796598, -0.090794, 0.076023),
    ("cosine", 40, 0.632516, 0.927378, 0.689621, 0.752131),
    ("cosine", 10, 0.966717, 0.792027, 0.775871, 0.780924),
    ("cosine", 0, 0.999369, 0.710274, 0.710274, 0.710274),
    ("linear", 99, 0.000020, 0.535421, -0.386937, -0.199525),
    ("linear", 90, 0.000139, 0.573147, -0.369373, -0.186093),
    ("linear", 40, 0.175926, 0.947512, 0.293916, 0.415505),
    ("linear", 10, 0.884742, 0.896471, 0.875480, 0.881886),
    ("linear", 0, 0.999000, 0.713006, 0.713006, 0.713006),
]


@pytest.mark.parametrize(("schedule", "at", "left", "ddpm", "ddim", "shaky"), REFERENCE)
def test_steps_equal_the_numbers_of_diffusers(
    schedule: str, at: int, left: float, ddpm: float, ddim: float, shaky: float
) -> None:
    alpha_bar = NOISE_SCHEDULES[schedule](STEPS)
    x, predicted, noise = torch.tensor(0.7), torch.tensor(-0.4), torch.tensor(0.3)
    target = alpha_bar[at - 10] if at else torch.tensor(1.0)
    assert alpha_bar[at].item() == pytest.approx(left, abs=1e-6)
    assert ddpm_step(x, predicted, alpha_bar[at], target, noise).item() == pytest.approx(ddpm, abs=2e-6)
    assert ddim_step(x, predicted, alpha_bar[at], target, noise).item() == pytest.approx(ddim, abs=2e-6)
    assert ddim_step(x, predicted, alpha_bar[at], target, noise, 0.5).item() == pytest.approx(shaky, abs=2e-6)


@pytest.mark.parametrize("schedule", NOISE_SCHEDULES)
@pytest.mark.parametrize("steps", [8, 100, 1000])
def test_almost_no_signal_is_left_at_the_step_where_sampling_begins(schedule: str, steps: int) -> None:
    alpha_bar = NOISE_SCHEDULES[schedule](steps)
    assert (alpha_bar.diff() < 0).all()
    assert 0 < alpha_bar[sampling_steps(steps, 5)[0]] < 1e-3


def test_sampling_steps_are_evenly_spaced_from_the_last_to_the_first() -> None:
    """All but the last case, which diffusers does not allow, equal its 0.42.1 with linspace spacing."""
    assert sampling_steps(100, 10) == [99, 88, 77, 66, 55, 44, 33, 22, 11, 0]
    assert sampling_steps(100, 7) == [99, 82, 66, 50, 33, 16, 0]
    assert sampling_steps(10, 10) == list(range(9, -1, -1))
    assert sampling_steps(10, 3) == [9, 4, 0]
    assert sampling_steps(100, 1) == [99]


@pytest.mark.parametrize("schedule", NOISE_SCHEDULES)
@pytest.mark.parametrize("step", [ddpm_step, ddim_step])
def test_perfect_noise_prediction_recovers_the_signal(schedule: str, step: object) -> None:
    """The same holds with few steps and with many."""
    generator = torch.Generator().manual_seed(0)
    alpha_bar, clean = NOISE_SCHEDULES[schedule](STEPS), torch.linspace(-1, 1, 9)
    for count in (3, STEPS):
        path = sampling_steps(STEPS, count)
        x = add_noise(clean, torch.randn(9, generator=generator), alpha_bar[path[0]])
        for index, at in enumerate(path):
            truth = (x - alpha_bar[at].sqrt() * clean) / (1 - alpha_bar[at]).sqrt()
            target = alpha_bar[path[index + 1]] if index + 1 < count else torch.tensor(1.0)
            x = step(x, truth, alpha_bar[at], target, torch.randn(9, generator=generator))  # type: ignore[operator]
        torch.testing.assert_close(x, clean, atol=1e-4, rtol=0)


def test_ddpm_step_has_the_mean_and_variance_of_noise_added_directly() -> None:
    generator, alpha_bar = torch.Generator().manual_seed(0), NOISE_SCHEDULES["cosine"](STEPS)
    clean = torch.full((200_000,), 0.5)
    noise = torch.randn(clean.shape, generator=generator)
    x = add_noise(clean, noise, alpha_bar[60])
    x = ddpm_step(x, noise, alpha_bar[60], alpha_bar[30], torch.randn(clean.shape, generator=generator))
    assert x.mean().item() == pytest.approx(0.5 * alpha_bar[30].sqrt().item(), abs=0.01)
    assert x.var().item() == pytest.approx(1 - alpha_bar[30].item(), abs=0.01)
