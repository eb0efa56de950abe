"""A variational autoencoder of images (Kingma and Welling 2014), the V of World Models (Ha and Schmidhuber 2018)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from cadenza.nets.decoders import upsampling_layers
from cadenza.nets.dense import Style, linear
from cadenza.nets.encoders import StridedEncoder, map_images, to_unit_range

STYLE = Style("none", "relu")


class DiagonalGaussian(NamedTuple):
    """Independent normal distributions [*, Z]."""

    mean: Tensor
    log_var: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Return a sample [*, Z] computed from standard normal noise [*, Z]."""
        return self.mean + torch.exp(0.5 * self.log_var) * noise


class ConvVAE(nn.Module):
    """Encodes images [*, C, H, W] as normal distributions [*, Z], and decodes samples to images in [0, 1]."""

    def __init__(self, shape: tuple[int, int, int], latent: int, depth: int) -> None:
        super().__init__()
        channels, *size = shape
        self.encoder = StridedEncoder(channels, (size[0], size[1]), depth, STYLE)
        self.heads = linear(self.encoder.features, 2 * latent, STYLE)
        self.seed = linear(latent, 32 * depth, STYLE)
        self.grow = upsampling_layers(32 * depth, channels, (size[0], size[1]), depth, STYLE)

    def encode(self, image: Tensor) -> DiagonalGaussian:
        """Return the distribution of the latent code of images [*, C, H, W], bytes or floats in [0, 1]."""
        return DiagonalGaussian(*self.heads(self.encoder(to_unit_range(image))).chunk(2, -1))

    def decode(self, z: Tensor) -> Tensor:
        """Return images [*, C, H, W] in [0, 1] for latent codes [*, Z]."""
        return torch.sigmoid(map_images(self.grow, self.seed(z)[..., None, None]))

    def losses(self, image: Tensor, noise: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Return the squared error of each image, and its KL divergence from the standard normal.

        A divergence is at least `tolerance` nats for each latent number, and has no gradient below that.
        """
        code = self.encode(image)
        error = (self.decode(code.sample(noise)) - to_unit_range(image)).square().sum((-3, -2, -1))
        divergence = 0.5 * (code.mean.square() + code.log_var.exp() - code.log_var - 1).sum(-1)
        return error, divergence.clamp(min=tolerance * noise.shape[-1])
