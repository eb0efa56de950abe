"""What a world model sees: images through convolutions, numbers through layers, any number of both at once."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.errors import ConfigError
from cadenza.nets.dense import Style, between, dense, start
from cadenza.nets.observe import VECTOR, ObservationTensors, images, vector_size
from cadenza.ops.scaling import symlog

Size = tuple[int, int]  # height, width
GROWTH = (2, 3, 4, 4)  # channels of v3's convolutions, in depths
STAGES = len(GROWTH)


class ObservationEncoder(nn.Module):
    """All that is seen at a step, [*, …], to one vector [*, features]. Images of one size are looked at together."""

    def __init__(self, space: spaces.Space[Any], config: WorldModelConfig) -> None:
        super().__init__()
        self.symlog, self.sizes = config.symlog, by_size(images(space))
        numbers, style = vector_size(space), Style(config.norm, config.activation)
        self.vector = dense(numbers, config.units, config.encoder_layers, style) if numbers else None
        self.images = nn.ModuleList(
            [image_encoder(sum(keys.values()), size, config) for size, keys in self.sizes.items()]
        )
        seen = [int(encoder.features) for encoder in self.images]  # type: ignore[arg-type]
        if numbers:
            seen.append(config.units if config.encoder_layers else numbers)
        self.features = sum(seen)

    def forward(self, obs: ObservationTensors) -> Tensor:
        parts = []
        for encoder, keys in zip(self.images, self.sizes.values(), strict=True):
            parts.append(encoder(torch.cat([scaled(obs[key]) for key in keys], -3) - 0.5))
        if self.vector is not None:
            parts.append(self.vector(symlog(obs[VECTOR]) if self.symlog else obs[VECTOR]))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


def by_size(shapes: dict[str, tuple[int, int, int]]) -> dict[Size, dict[str, int]]:
    """Keys and channels of the images of each size."""
    found: dict[Size, dict[str, int]] = {}
    for key, (channels, height, width) in shapes.items():
        found.setdefault((height, width), {})[key] = channels
    return found


def scaled(image: Tensor) -> Tensor:
    """Bytes to [0, 1]."""
    return image.float() / 255 if image.dtype == torch.uint8 else image


def image_encoder(channels: int, size: Size, config: WorldModelConfig) -> nn.Module:
    """v3's where the layers have its norm, else that of its forerunners."""
    style = Style(config.norm, config.image_activation)
    return (
        PooledEncoder(channels, size, config.depth, style)
        if config.norm == "rms"
        else StridedEncoder(channels, size, config.depth, style)
    )


class StridedEncoder(nn.Sequential):
    """PlaNet, Dreamer v1 and v2 (Ha and Schmidhuber 2018): kernels of 4, strides of 2, twice the channels each time."""

    def __init__(self, channels: int, size: Size, depth: int, style: Style) -> None:
        height, width = size
        layers: list[nn.Module] = []
        for stage in range(STAGES):
            if min(height, width) < 4:
                break
            out = depth * 2**stage
            layers += [convolution(nn.Conv2d(channels, out, 4, 2), style), PerPixel(out, style)]
            channels, height, width = out, (height - 4) // 2 + 1, (width - 4) // 2 + 1
        super().__init__(*layers)
        self.features = channels * height * width

    def forward(self, x: Tensor) -> Tensor:
        return on_images(super().forward, x).flatten(-3)


class PooledEncoder(nn.Module):
    """Dreamer v3: kernels of 5, the largest of each 2 x 2 pixels, norm, nonlinearity; down to 4 x 4 of 64 x 64."""

    def __init__(self, channels: int, size: Size, depth: int, style: Style) -> None:
        super().__init__()
        stages, (height, width) = halvings(size)
        widths = [channels, *(depth * growth for growth in GROWTH[:stages])]
        self.convolutions = nn.ModuleList(
            [convolution(nn.Conv2d(widths[i], widths[i + 1], 5, padding=2), style) for i in range(stages)]
        )
        self.between = nn.ModuleList([PerPixel(out, style) for out in widths[1:]])
        self.features = widths[-1] * height * width

    def forward(self, x: Tensor) -> Tensor:
        return on_images(self._see, x).flatten(-3)

    def _see(self, x: Tensor) -> Tensor:
        for convolve, then in zip(self.convolutions, self.between, strict=True):
            x = then(functional.max_pool2d(convolve(x), 2))
        return x


def halvings(size: Size) -> tuple[int, Size]:
    """How often v3 halves an image of that size, and the size that is left."""
    height, width, stages = *size, 0
    while stages < STAGES and height % 2 == width % 2 == 0 and min(height, width) >= 8:
        height, width, stages = height // 2, width // 2, stages + 1
    if max(height, width) > 16 or not stages:
        had, wrong = "x".join(map(str, size)), "cannot be halved by" if not stages else "are too much for"
        raise ConfigError(f"environment.resize: images of {had} pixels {wrong} this model; 64x64 are right")
    return stages, (height, width)


class PerPixel(nn.Module):
    """Norm and nonlinearity over the channels of each pixel [B, C, H, W]."""

    def __init__(self, channels: int, style: Style) -> None:
        super().__init__()
        self.then = between(channels, style)

    def forward(self, x: Tensor) -> Tensor:
        pixels: Tensor = self.then(x.movedim(1, -1))  # no copy: the memory is in this order
        return pixels.movedim(-1, 1)


def on_images(net: Any, x: Tensor) -> Tensor:
    """A network for [B, C, H, W] on [*, C, H, W], channels last in memory, as convolutions and norms like it best."""
    flat = x.flatten(0, -4) if x.dim() > 4 else x.reshape(-1, *x.shape[-3:])
    made: Tensor = net(flat.contiguous(memory_format=torch.channels_last))
    return made.reshape(*x.shape[:-3], *made.shape[1:])


def convolution(layer: nn.Conv2d | nn.ConvTranspose2d, style: Style) -> nn.Conv2d | nn.ConvTranspose2d:
    """The layer with the weights that go with the style."""
    area = math.prod(layer.kernel_size)
    start(layer.weight, layer.in_channels * area, layer.out_channels * area, style)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
