"""A variational autoencoder of images (Kingma and Welling 2014), the V of World Models (Ha and Schmidhuber 2018)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from cadenza.nets.decoders import growing
from cadenza.nets.dense import Style, linear
from cadenza.nets.encoders import StridedEncoder, on_images, scaled

STYLE = Style("none", "relu")


class DiagonalGaussian(NamedTuple):
    """Independent normal distributions [*, Z]."""

    mean: Tensor
    log_var: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + torch.exp(0.5 * self.log_var) * noise


class ConvVAE(nn.Module):
    """Images [*, C, H, W] to a Gaussian [*, Z], and a draw of it back to images in [0, 1]."""

    def __init__(self, shape: tuple[int, int, int], latent: int, depth: int) -> None:
        super().__init__()
        channels, *size = shape
        self.encoder = StridedEncoder(channels, (size[0], size[1]), depth, STYLE)
        self.heads = linear(self.encoder.features, 2 * latent, STYLE)
        self.seed = linear(latent, 32 * depth, STYLE)
        self.grow = growing(32 * depth, channels, (size[0], size[1]), depth, STYLE)

    def encode(self, image: Tensor) -> DiagonalGaussian:
        return DiagonalGaussian(*self.heads(self.encoder(scaled(image))).chunk(2, -1))

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(on_images(self.grow, self.seed(z)[..., None, None]))

    def losses(self, image: Tensor, noise: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Squared errors summed over an image, and divergences from the standard normal; both means over images.

        A divergence below `tolerance` nats for each latent number costs no more than that, and so teaches nothing.
        """
        code = self.encode(image)
        error = (self.decode(code.sample(noise)) - scaled(image)).square().sum((-3, -2, -1))
        divergence = 0.5 * (code.mean.square() + code.log_var.exp() - code.log_var - 1).sum(-1)
        return error.mean(), divergence.clamp(min=tolerance * noise.shape[-1]).mean()
