"""The autoencoder of World Models: size, shapes, losses."""

from __future__ import annotations

import math

import pytest
import torch

from cadenza.nets.vae import ConvVAE, DiagonalGaussian


def test_vae_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in ConvVAE((3, 64, 64), 32, 32).parameters()) == 4_348_547


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 16, 16), (4, 9, 12), (3, 48, 64)])
def test_reconstructions_have_the_shape_of_the_images(shape: tuple[int, int, int]) -> None:
    net = ConvVAE(shape, 5, 2)
    image = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8)
    code = net.encode(image)
    assert code.mean.shape == code.log_var.shape == (2, 3, 5)
    made = net.decode(code.mean).detach()
    assert made.shape == image.shape
    assert 0 <= float(made.min()) <= float(made.max()) <= 1


def test_losses_equal_a_slow_reference() -> None:
    torch.manual_seed(0)
    net, noise = ConvVAE((1, 16, 16), 3, 2), torch.randn(4, 3)
    image = torch.randint(0, 256, (4, 1, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        net.heads.weight[:, :10] *= 40  # so that some divergences lie below what costs nothing, and some above
        code = net.encode(image)
        made = net.decode(torch.stack([m + (v / 2).exp() * e for m, v, e in zip(*code, noise, strict=True)]))
        error, divergence = net.losses(image, noise, 0.5)
    errors, divergences = [], []
    for i in range(4):
        pixels = zip(made[i].flatten().tolist(), image[i].flatten().tolist(), strict=True)
        errors.append(sum((predicted - pixel / 255) ** 2 for predicted, pixel in pixels))
        numbers = zip(code.mean[i].tolist(), code.log_var[i].tolist(), strict=True)
        divergences.append(sum(-0.5 * (1 + v - m**2 - math.exp(v)) for m, v in numbers))
    assert min(divergences) < 1.5 < max(divergences)
    assert float(error.mean()) == pytest.approx(sum(errors) / 4, rel=1e-5)
    assert float(divergence.mean()) == pytest.approx(sum(max(d, 0.5 * 3) for d in divergences) / 4, rel=1e-5)


def test_samples_have_the_mean_and_deviation_of_the_distribution() -> None:
    code = DiagonalGaussian(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2 * math.log(3.0)]))
    assert code.sample(torch.tensor([1.0, -1.0])).tolist() == pytest.approx([2.0, -1.0])
