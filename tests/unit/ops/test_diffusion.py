"""Noise schedules and the ways back from noise, against the numbers of another implementation."""

from __future__ import annotations

import pytest
import torch

from cadenza.ops.diffusion import KEPT, ddim_step, ddpm_step, noised, visited

STEPS = 100
# From x = 0.7 with predicted noise -0.4 and drawn noise 0.3, one of ten strides: what diffusers 0.42.1 makes of it,
# with betas from 0.001 to 0.2 where they are linear.
# schedule, step, signal kept there, DDPM, DDIM, DDIM with eta 0.5
KNOWN = [
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


@pytest.mark.parametrize(("schedule", "at", "left", "ddpm", "ddim", "shaky"), KNOWN)
def test_steps_are_those_of_diffusers(
    schedule: str, at: int, left: float, ddpm: float, ddim: float, shaky: float
) -> None:
    kept = KEPT[schedule](STEPS)
    x, predicted, noise = torch.tensor(0.7), torch.tensor(-0.4), torch.tensor(0.3)
    before = kept[at - 10] if at else torch.tensor(1.0)
    assert kept[at].item() == pytest.approx(left, abs=1e-6)
    assert ddpm_step(x, predicted, kept[at], before, noise).item() == pytest.approx(ddpm, abs=2e-6)
    assert ddim_step(x, predicted, kept[at], before, noise).item() == pytest.approx(ddim, abs=2e-6)
    assert ddim_step(x, predicted, kept[at], before, noise, 0.5).item() == pytest.approx(shaky, abs=2e-6)


@pytest.mark.parametrize("schedule", KEPT)
@pytest.mark.parametrize("steps", [8, 100, 1000])
def test_little_is_left_where_the_way_back_begins(schedule: str, steps: int) -> None:
    kept = KEPT[schedule](steps)
    assert (kept.diff() < 0).all()
    assert 0 < kept[visited(steps, 5)[0]] < 1e-3


def test_the_way_back_goes_evenly_from_the_noisiest_step_to_the_first() -> None:
    """But for the last, which is asked of nobody else, these are the steps of diffusers 0.42.1, spaced by linspace."""
    assert visited(100, 10) == [99, 88, 77, 66, 55, 44, 33, 22, 11, 0]
    assert visited(100, 7) == [99, 82, 66, 50, 33, 16, 0]
    assert visited(10, 10) == list(range(9, -1, -1))
    assert visited(10, 3) == [9, 4, 0]
    assert visited(100, 1) == [99]


@pytest.mark.parametrize("schedule", KEPT)
@pytest.mark.parametrize("step", [ddpm_step, ddim_step])
def test_who_knows_the_noise_finds_the_signal(schedule: str, step: object) -> None:
    """A perfect prediction leads from any noise to the clean numbers, in few steps as in many."""
    generator = torch.Generator().manual_seed(0)
    kept, clean = KEPT[schedule](STEPS), torch.linspace(-1, 1, 9)
    for count in (3, STEPS):
        path = visited(STEPS, count)
        x = noised(clean, torch.randn(9, generator=generator), kept[path[0]])
        for index, at in enumerate(path):
            truth = (x - kept[at].sqrt() * clean) / (1 - kept[at]).sqrt()
            before = kept[path[index + 1]] if index + 1 < count else torch.tensor(1.0)
            x = step(x, truth, kept[at], before, torch.randn(9, generator=generator))  # type: ignore[operator]
        torch.testing.assert_close(x, clean, atol=1e-4, rtol=0)


def test_a_draw_of_ddpm_keeps_the_variance_of_what_it_leaves() -> None:
    """From noised signals to less noised ones: as if these had been noised directly."""
    generator, kept = torch.Generator().manual_seed(0), KEPT["cosine"](STEPS)
    clean = torch.full((200_000,), 0.5)
    noise = torch.randn(clean.shape, generator=generator)
    x = noised(clean, noise, kept[60])
    x = ddpm_step(x, noise, kept[60], kept[30], torch.randn(clean.shape, generator=generator))
    assert x.mean().item() == pytest.approx(0.5 * kept[30].sqrt().item(), abs=0.01)
    assert x.var().item() == pytest.approx(1 - kept[30].item(), abs=0.01)
