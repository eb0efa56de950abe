"""Convolutional networks for images."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cadenza.config.networks import CNNConfig
from cadenza.errors import ConfigError
from cadenza.nets.mlp import ACTIVATIONS, orthogonal

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al. 2015; needs 36 pixels
SMALL = ((16, 3, 1), (32, 3, 2), (32, 2, 1))  # needs 8


class FirstLayer(nn.Conv2d):
    """A convolution of images. Bytes are scaled to [0, 1] through the weights, of which there are fewer than pixels."""

    def forward(self, pixels: Tensor, is_bytes: bool = False) -> Tensor:
        weight = self.weight / 255 if is_bytes else self.weight
        return nn.functional.conv2d(pixels, weight, self.bias, self.stride)


class CNN(nn.Sequential):
    """Images [*, C, H, W] to features [*, features]; bytes are scaled to [0, 1]."""

    def __init__(self, shape: tuple[int, int, int], config: CNNConfig) -> None:
        channels, *sides = shape
        specs = config.layers
        if specs == "auto":
            specs = NATURE if min(sides) >= 36 else SMALL
        layers: list[nn.Module] = []
        for out, kernel, stride in specs:
            sides = [(side - kernel) // stride + 1 for side in sides]
            if min(sides) < 1:
                value = [list(layer) for layer in specs]
                raise ConfigError(f"algorithm.torso.cnn.layers={value}: too much for {shape[1]}x{shape[2]} pixels")
            convolution = (nn.Conv2d if layers else FirstLayer)(channels, out, kernel, stride)
            layers += [orthogonal(convolution, math.sqrt(2)), ACTIVATIONS[config.activation]()]
            channels = out
        flat = channels * math.prod(sides)
        linear = orthogonal(nn.Linear(flat, config.features), math.sqrt(2))
        super().__init__(*layers, nn.Flatten(), linear, ACTIVATIONS[config.activation]())

    def forward(self, x: Tensor) -> Tensor:
        # on a CPU convolutions, and their gradients even more, are faster in the channels-last layout
        layout = torch.channels_last if x.device.type == "cpu" else torch.preserve_format
        first, *rest = self
        pixels: Tensor = first(x.flatten(0, -4).to(torch.float32, memory_format=layout), x.dtype == torch.uint8)
        for layer in rest:
            pixels = layer(pixels)
        return pixels.reshape(*x.shape[:-3], -1)
