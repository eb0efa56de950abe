"""Encoders of world models: images through convolutions, vectors through dense layers, any number of both."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.errors import ConfigError
from cadenza.nets import phases
from cadenza.nets.dense import Style, dense, init_weight, norm_and_activation
from cadenza.nets.observe import VECTOR, ObservationTensors, images, vector_size
from cadenza.ops.scaling import symlog

Size = tuple[int, int]  # height, width
GROWTH = (2, 3, 4, 4)  # channels of v3's convolutions, in multiples of the depth
STAGES = len(GROWTH)


class ObservationEncoder(nn.Module):
    """Maps observations [*, …] to vectors [*, features]. Images of one size are stacked for one encoder."""

    def __init__(self, space: spaces.Space[Any], config: WorldModelConfig) -> None:
        super().__init__()
        self.symlog, self.sizes = config.symlog, group_by_size(images(space))
        numbers, style = vector_size(space), Style(config.norm, config.activation)
        self.vector = dense(numbers, config.units, config.encoder_layers, style) if numbers else None
        self.images = nn.ModuleList(
            [image_encoder(sum(keys.values()), size, config) for size, keys in self.sizes.items()]
        )
        features = [int(encoder.features) for encoder in self.images]  # type: ignore[arg-type]
        if numbers:
            features.append(config.units if config.encoder_layers else numbers)
        self.features = sum(features)

    def forward(self, obs: ObservationTensors) -> Tensor:
        parts = []
        for encoder, keys in zip(self.images, self.sizes.values(), strict=True):
            parts.append(encoder(torch.cat([to_unit_range(obs[key]) for key in keys], -3) - 0.5))
        if self.vector is not None:
            parts.append(self.vector(symlog(obs[VECTOR]) if self.symlog else obs[VECTOR]))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


def group_by_size(shapes: dict[str, tuple[int, int, int]]) -> dict[Size, dict[str, int]]:
    """Return keys and numbers of channels of the images of each size, from shapes [C, H, W] by key."""
    sizes: dict[Size, dict[str, int]] = {}
    for key, (channels, height, width) in shapes.items():
        sizes.setdefault((height, width), {})[key] = channels
    return sizes


def to_unit_range(image: Tensor) -> Tensor:
    """Scale bytes to [0, 1]; return float images as they are."""
    return image.float() / 255 if image.dtype == torch.uint8 else image


def image_encoder(channels: int, size: Size, config: WorldModelConfig) -> nn.Module:
    """Return the encoder of Dreamer v3 for layers with RMS norm, else that of PlaNet, v1 and v2."""
    encoder = PooledEncoder if config.norm == "rms" else StridedEncoder
    return encoder(channels, size, config.depth, Style(config.norm, config.image_activation))


class StridedEncoder(nn.Sequential):
    """The encoder of PlaNet, Dreamer v1 and v2 (Ha and Schmidhuber 2018): kernels of 4, strides of 2.

    Each layer has twice the channels of the one before.
    """

    def __init__(self, channels: int, size: Size, depth: int, style: Style) -> None:
        height, width = size
        layers: list[nn.Module] = []
        for stage in range(STAGES):
            if min(height, width) < 4:
                break
            out = depth * 2**stage
            layers += [init_convolution(nn.Conv2d(channels, out, 4, 2), style), PerPixel(out, style)]
            channels, height, width = out, (height - 4) // 2 + 1, (width - 4) // 2 + 1
        super().__init__(*layers)
        self.features = channels * height * width

    def forward(self, x: Tensor) -> Tensor:
        return map_images(super().forward, x).flatten(-3)


class PooledEncoder(nn.Module):
    """The encoder of Dreamer v3: kernels of 5, max-pooling, norm, activation; 64 x 64 pixels become 4 x 4."""

    def __init__(self, channels: int, size: Size, depth: int, style: Style) -> None:
        super().__init__()
        stages, (height, width) = halve_size(size)
        widths = [channels, *(depth * growth for growth in GROWTH[:stages])]
        self.convolutions = nn.ModuleList(
            [init_convolution(nn.Conv2d(widths[i], widths[i + 1], 5, padding=2), style) for i in range(stages)]
        )
        self.between = nn.ModuleList([PerPixel(out, style) for out in widths[1:]])
        self.features = widths[-1] * height * width

    def forward(self, x: Tensor) -> Tensor:
        return map_images(self._convolve, x).flatten(-3)

    def _convolve(self, x: Tensor) -> Tensor:
        if phases.applies(x, self.between):
            return phases.encode(x, self.convolutions, self.between)
        for convolve, activate in zip(self.convolutions, self.between, strict=True):
            x = activate(functional.max_pool2d(convolve(x), 2))
        return x


def halve_size(size: Size) -> tuple[int, Size]:
    """Return how often Dreamer v3 halves an image, and the final size; refuse a size that remains too large."""
    height, width, stages = *size, 0
    while stages < STAGES and height % 2 == width % 2 == 0 and min(height, width) >= 8:
        height, width, stages = height // 2, width // 2, stages + 1
    if max(height, width) > 16 or not stages:
        reason = "are too large for" if stages else "cannot be halved by"
        pixels = "x".join(map(str, size))
        raise ConfigError(f"environment.resize: images of {pixels} pixels {reason} this model; 64x64 fit")
    return stages, (height, width)


class PerPixel(nn.Module):
    """Norm and activation over the channels of each pixel [B, C, H, W]."""

    def __init__(self, channels: int, style: Style) -> None:
        super().__init__()
        self.then = norm_and_activation(channels, style)

    def forward(self, x: Tensor) -> Tensor:
        pixels: Tensor = self.then(x.movedim(1, -1))  # no copy: memory is in this order already
        return pixels.movedim(-1, 1)


def map_images(net: Any, x: Tensor) -> Tensor:
    """Apply a network for [B, C, H, W] to images [*, C, H, W], in the channels-last layout, which is the fastest."""
    flat = x.flatten(0, -4) if x.dim() > 4 else x.reshape(-1, *x.shape[-3:])
    output: Tensor = net(flat.contiguous(memory_format=torch.channels_last))
    return output.reshape(*x.shape[:-3], *output.shape[1:])


def init_convolution(layer: nn.Conv2d | nn.ConvTranspose2d, style: Style) -> nn.Conv2d | nn.ConvTranspose2d:
    """Initialise the weights of a layer by its style; return the layer."""
    area = math.prod(layer.kernel_size)
    init_weight(layer.weight, layer.in_channels * area, layer.out_channels * area, style)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
