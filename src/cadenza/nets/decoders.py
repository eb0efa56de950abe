"""What a world model says it sees: images, and numbers, from its state. The counterparts of `encoders.py`."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.errors import ConfigError
from cadenza.nets.dense import DenseHead, Style, between, linear, start
from cadenza.nets.encoders import GROWTH, PerPixel, Size, by_size, convolution, halvings, on_images, scaled
from cadenza.nets.observe import VECTOR, ObservationTensors, images, vector_size
from cadenza.ops.scaling import symexp, symlog


class ObservationDecoder(nn.Module):
    """Features [*, F] (sample, then memory) to everything that was observed, by the keys of `observe`."""

    def __init__(self, space: spaces.Space[Any], config: WorldModelConfig) -> None:
        super().__init__()
        self.symlog, self.sizes = config.symlog, by_size(images(space))
        self.weight = (
            1.0 if config.norm == "rms" else 0.5
        )  # before v3: likelihoods of normals, where squares count half
        numbers, style = vector_size(space), Style(config.norm, config.activation)
        self.vector = (
            DenseHead(config.feature_size, numbers, config.units, config.decoder_layers, style) if numbers else None
        )
        self.images = nn.ModuleList(
            [image_decoder(sum(keys.values()), size, config) for size, keys in self.sizes.items()]
        )

    def forward(self, features: Tensor) -> ObservationTensors:
        """Images in [0, 1]; numbers as they are compared, which may be logarithms."""
        made: ObservationTensors = {}
        for decoder, keys in zip(self.images, self.sizes.values(), strict=True):
            made.update(zip(keys, decoder(features).split(list(keys.values()), -3), strict=True))
        if self.vector is not None:
            made[VECTOR] = self.vector(features)
        return made

    def losses(self, made: ObservationTensors, obs: ObservationTensors) -> ObservationTensors:
        """Squared errors [*] of each thing that was seen, summed over its pixels or numbers."""
        errors = {}
        for key, prediction in made.items():
            if key == VECTOR:
                target = symlog(obs[key]) if self.symlog else obs[key]
                errors[key] = self.weight * (prediction - target).square().sum(-1)
            else:
                errors[key] = self.weight * (prediction - scaled(obs[key])).square().sum((-3, -2, -1))
        return errors

    def to_observations(self, made: ObservationTensors) -> ObservationTensors:
        """Predictions on the scale of what is observed: bytes, and numbers."""
        return {
            key: (symexp(x) if self.symlog else x) if key == VECTOR else (255 * x).round().clamp(0, 255).byte()
            for key, x in made.items()
        }


def image_decoder(channels: int, size: Size, config: WorldModelConfig) -> nn.Module:
    """v3's where the layers have its norm, else that of its forerunners."""
    return UpsamplingDecoder(channels, size, config) if config.norm == "rms" else StridedDecoder(channels, size, config)


class StridedDecoder(nn.Module):
    """PlaNet, Dreamer v1 and v2: one pixel grows by strides of 2; kernels of 5, 5, 6 and 6 make 64 x 64 of it."""

    def __init__(self, channels: int, size: Size, config: WorldModelConfig) -> None:
        super().__init__()
        style = Style(config.norm, config.image_activation)
        self.seed = linear(config.feature_size, 32 * config.depth, style)
        self.grow = growing(32 * config.depth, channels, size, config.depth, style)

    def forward(self, features: Tensor) -> Tensor:
        return on_images(self.grow, self.seed(features)[..., None, None]) + 0.5  # an untrained one says gray


def growing(seed: int, channels: int, size: Size, depth: int, style: Style) -> nn.Sequential:
    """Transposed convolutions from one pixel of `seed` channels to an image of that size."""
    heights, widths = kernels(size[0]), kernels(size[1])
    if len(heights) != len(widths):
        raise ConfigError(f"environment.resize: {size[0]}x{size[1]} pixels are no shape for this model; 64x64 are")
    layers: list[nn.Module] = []
    for stage, kernel in enumerate(zip(heights, widths, strict=True), 1):
        left = len(heights) - stage
        out = depth * 2 ** min(left - 1, 2) if left else channels
        layers.append(convolution(nn.ConvTranspose2d(seed, out, kernel, 2), style))
        layers += [PerPixel(out, style)] if left else []
        seed = out
    return nn.Sequential(*layers)


def kernels(side: int) -> list[int]:
    """What makes a side of that length out of one pixel, each time at a stride of 2."""
    found: list[int] = []
    while side > 6:
        kernel = 5 if side % 2 else 6
        found.insert(0, kernel)
        side = (side - kernel) // 2 + 1
    return [side, *found]


class UpsamplingDecoder(nn.Module):
    """Dreamer v3: a small image out of memory (block by block) and sample, doubled again and again; kernels of 5."""

    def __init__(self, channels: int, size: Size, config: WorldModelConfig) -> None:
        super().__init__()
        stages, (self.height, self.width) = halvings(size)
        style = Style(config.norm, config.image_activation)
        widths = [config.depth * growth for growth in GROWTH[:stages]]
        top, pixels = widths[-1], self.height * self.width
        self.stoch, self.blocks = config.stoch_size, math.gcd(config.blocks, top, config.deter)
        self.from_memory = nn.Parameter(
            torch.empty(self.blocks, config.deter // self.blocks, pixels * top // self.blocks)
        )
        start(self.from_memory, config.deter, pixels * top, style)
        self.from_sample = nn.Sequential(
            linear(self.stoch, 2 * config.units, style),
            between(2 * config.units, style),
            linear(2 * config.units, pixels * top, style),
        )
        self.begin = PerPixel(top, style)
        outs = [*reversed(widths[:-1]), channels]
        self.convolutions = nn.ModuleList(
            [convolution(nn.Conv2d(a, b, 5, padding=2), style) for a, b in zip([top, *outs[:-1]], outs, strict=True)]
        )
        self.between = nn.ModuleList([PerPixel(out, style) for out in outs[:-1]])

    def forward(self, features: Tensor) -> Tensor:
        sample, memory = features[..., : self.stoch], features[..., self.stoch :]
        blocks = memory.reshape(*memory.shape[:-1], self.blocks, -1)
        by_block = torch.einsum("...gi,gio->...go", blocks, self.from_memory)
        drawn: Tensor = self.from_sample(sample) + by_block.flatten(-2)
        small = drawn.reshape(*features.shape[:-1], -1, self.height, self.width)
        return on_images(self._grow, small)

    def _grow(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        for index, convolve in enumerate(self.convolutions):
            x = convolve(functional.interpolate(x, scale_factor=2, mode="nearest"))
            if index < len(self.between):
                x = self.between[index](x)
        return torch.sigmoid(x)
