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


class CNN(nn.Sequential):
    """Images [*, C, H, W] to features [*, features]; bytes are scaled to [0, 1]."""

    def __init__(self, shape: tuple[int, int, int], config: CNNConfig) -> None:
        channels, *sides = shape
        chosen = (NATURE if min(sides) >= 36 else SMALL) if config.layers == "auto" else config.layers
        layers: list[nn.Module] = []
        for out, kernel, stride in chosen:
            sides = [(side - kernel) // stride + 1 for side in sides]
            if min(sides) < 1:
                asked = [list(layer) for layer in chosen]
                raise ConfigError(f"algorithm.torso.cnn.layers={asked}: too much for {shape[1]}x{shape[2]} pixels")
            convolution = nn.Conv2d(channels, out, kernel, stride)
            layers += [orthogonal(convolution, math.sqrt(2)), ACTIVATIONS[config.activation]()]
            channels = out
        flat = channels * math.prod(sides)
        linear = orthogonal(nn.Linear(flat, config.features), math.sqrt(2))
        super().__init__(*layers, nn.Flatten(), linear, ACTIVATIONS[config.activation]())

    def forward(self, x: Tensor) -> Tensor:
        # on a CPU convolutions and above all their gradients are quicker with the channels of a pixel side by side
        layout = torch.channels_last if x.device.type == "cpu" else torch.preserve_format
        pixels = x.flatten(0, -4).to(torch.float32, memory_format=layout)
        first, *rest = self
        assert isinstance(first, nn.Conv2d)
        scale = 1 / 255 if x.dtype == torch.uint8 else 1.0  # of the weights: there are far fewer than pixels
        pixels = nn.functional.conv2d(pixels, scale * first.weight, first.bias, first.stride)
        for layer in rest:
            pixels = layer(pixels)
        return pixels.reshape(*x.shape[:-3], -1)
