"""Decoders of world models: from features to images and vectors. The counterparts of `encoders.py`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.errors import ConfigError
from cadenza.nets import phases
from cadenza.nets.dense import DenseHead, Style, init_weight, linear, norm_and_activation
from cadenza.nets.encoders import (
    GROWTH,
    PerPixel,
    Size,
    group_by_size,
    halve_size,
    init_convolution,
    map_images,
    to_unit_range,
)
from cadenza.nets.observe import VECTOR, ObservationTensors, images, vector_size
from cadenza.ops.scaling import symexp, symlog


class ObservationDecoder(nn.Module):
    """Maps features [*, F] (`stoch`, then `deter` of the state) to observations, by the keys of `observe`."""

    def __init__(self, space: spaces.Space[Any], config: WorldModelConfig) -> None:
        super().__init__()
        self.symlog, self.sizes = config.symlog, group_by_size(images(space))
        # before v3 the losses are likelihoods of normals, in which squares have the factor 1/2
        self.weight = 1.0 if config.norm == "rms" else 0.5
        numbers, style = vector_size(space), Style(config.norm, config.activation)
        self.vector = (
            DenseHead(config.feature_size, numbers, config.units, config.decoder_layers, style) if numbers else None
        )
        self.images = nn.ModuleList(
            [image_decoder(sum(keys.values()), size, config) for size, keys in self.sizes.items()]
        )

    def forward(self, features: Tensor) -> ObservationTensors:
        """Return images in [0, 1], and the vector, under `symlog` if the config says so."""
        predictions: ObservationTensors = {}
        for decoder, keys in zip(self.images, self.sizes.values(), strict=True):
            predictions.update(zip(keys, decoder(features).split(list(keys.values()), -3), strict=True))
        if self.vector is not None:
            predictions[VECTOR] = self.vector(features)
        return predictions

    def losses(self, predictions: ObservationTensors, obs: ObservationTensors) -> ObservationTensors:
        """Return the squared errors [*] of each image and of the vector, summed over pixels or components."""
        errors = {}
        for key, prediction in predictions.items():
            if key == VECTOR:
                target = symlog(obs[key]) if self.symlog else obs[key]
                errors[key] = self.weight * (prediction - target).square().sum(-1)
            else:
                errors[key] = self.weight * (prediction - to_unit_range(obs[key])).square().sum((-3, -2, -1))
        return errors

    def to_observations(self, predictions: ObservationTensors) -> ObservationTensors:
        """Return predictions on the scale of observations: images as bytes, the vector without `symlog`."""
        obs = {key: (255 * x).round().clamp(0, 255).byte() for key, x in predictions.items() if key != VECTOR}
        if VECTOR in predictions:
            vector = predictions[VECTOR]
            obs[VECTOR] = symexp(vector) if self.symlog else vector
        return obs


def image_decoder(channels: int, size: Size, config: WorldModelConfig) -> nn.Module:
    """Return the decoder of Dreamer v3 for layers with RMS norm, else that of PlaNet, v1 and v2."""
    return UpsamplingDecoder(channels, size, config) if config.norm == "rms" else StridedDecoder(channels, size, config)


class StridedDecoder(nn.Module):
    """The decoder of PlaNet, Dreamer v1 and v2: transposed convolutions from one pixel, with strides of 2.

    Kernels of 5, 5, 6 and 6 make 64 x 64 pixels.
    """

    def __init__(self, channels: int, size: Size, config: WorldModelConfig) -> None:
        super().__init__()
        style = Style(config.norm, config.image_activation)
        self.seed = linear(config.feature_size, 32 * config.depth, style)
        self.grow = upsampling_layers(32 * config.depth, channels, size, config.depth, style)

    def forward(self, features: Tensor) -> Tensor:
        return map_images(self.grow, self.seed(features)[..., None, None]) + 0.5  # an untrained decoder predicts gray


def upsampling_layers(seed: int, channels: int, size: Size, depth: int, style: Style) -> nn.Sequential:
    """Return transposed convolutions from one pixel of `seed` channels to an image [`channels`, *size].

    Refuse a size whose sides need different numbers of layers.
    """
    heights, widths = kernel_sizes(size[0]), kernel_sizes(size[1])
    if len(heights) != len(widths):
        raise ConfigError(f"environment.resize: {size[0]}x{size[1]} pixels are no shape for this model; 64x64 are")
    layers: list[nn.Module] = []
    for stage, kernel in enumerate(zip(heights, widths, strict=True), 1):
        remaining = len(heights) - stage
        out = depth * 2 ** min(remaining - 1, 2) if remaining else channels
        layers.append(init_convolution(nn.ConvTranspose2d(seed, out, kernel, 2), style))
        layers += [PerPixel(out, style)] if remaining else []
        seed = out
    return nn.Sequential(*layers)


def kernel_sizes(side: int) -> list[int]:
    """Return the kernels of transposed convolutions, with strides of 2, that make one pixel a side of that length."""
    sizes: list[int] = []
    while side > 6:
        kernel = 5 if side % 2 else 6
        sizes.insert(0, kernel)
        side = (side - kernel) // 2 + 1
    return [side, *sizes]


class UpsamplingDecoder(nn.Module):
    """The decoder of Dreamer v3: a small image from `deter` (by blocks) and `stoch`, doubled by each layer.

    Convolutions have kernels of 5.
    """

    def __init__(self, channels: int, size: Size, config: WorldModelConfig) -> None:
        super().__init__()
        stages, (self.height, self.width) = halve_size(size)
        style = Style(config.norm, config.image_activation)
        widths = [config.depth * growth for growth in GROWTH[:stages]]
        top, pixels = widths[-1], self.height * self.width
        self.stoch, self.blocks = config.stoch_size, math.gcd(config.blocks, top, config.deter)
        self.from_memory = nn.Parameter(
            torch.empty(self.blocks, config.deter // self.blocks, pixels * top // self.blocks)
        )
        init_weight(self.from_memory, config.deter, pixels * top, style)
        self.from_sample = nn.Sequential(
            linear(self.stoch, 2 * config.units, style),
            norm_and_activation(2 * config.units, style),
            linear(2 * config.units, pixels * top, style),
        )
        self.begin = PerPixel(top, style)
        outs = [*reversed(widths[:-1]), channels]
        self.convolutions = nn.ModuleList(
            [init_convolution(nn.Conv2d(before, out, 5, padding=2), style) for before, out in pairwise([top, *outs])]
        )
        self.between = nn.ModuleList([PerPixel(out, style) for out in outs[:-1]])

    def forward(self, features: Tensor) -> Tensor:
        sample, memory = features[..., : self.stoch], features[..., self.stoch :]
        blocks = memory.reshape(*memory.shape[:-1], self.blocks, -1)
        by_block = torch.einsum("...gi,gio->...go", blocks, self.from_memory)
        pixels: Tensor = self.from_sample(sample) + by_block.flatten(-2)
        small = pixels.reshape(*features.shape[:-1], -1, self.height, self.width)
        return map_images(self._grow, small)

    def _grow(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        if phases.applies(x, self.between):
            return torch.sigmoid(phases.decode(x, self.convolutions, self.between))
        for index, convolve in enumerate(self.convolutions):
            x = convolve(functional.interpolate(x, scale_factor=2, mode="nearest"))
            if index < len(self.between):
                x = self.between[index](x)
        return torch.sigmoid(x)
