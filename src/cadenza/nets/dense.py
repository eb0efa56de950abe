"""Layers as world models have them: linear, norm, nonlinearity, over and over."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from cadenza.config.networks import Activation
from cadenza.nets.mlp import ACTIVATIONS

Norm = Literal["none", "layer", "rms"]
TRUNCATED = 1.1368  # what a normal distribution cut off at two deviations lacks, as the authors round it


class Style(NamedTuple):
    """What stands between two linear layers. With `rms` weights begin as in Dreamer v3, else as in Keras."""

    norm: Norm = "rms"
    activation: Activation = "silu"


def linear(inputs: int, outputs: int, style: Style, scale: float = 1.0) -> nn.Linear:
    """A linear layer with the weights that go with the style; a `scale` of 0 makes its first outputs zero."""
    layer = nn.Linear(inputs, outputs)
    start(layer.weight, inputs, outputs, style)
    with torch.no_grad():
        layer.weight.mul_(scale)
        layer.bias.zero_()
    return layer


def start(weight: Tensor, inputs: int, outputs: int, style: Style) -> None:
    """Truncated normal by the inputs (Dreamer v3), or uniform by both (Glorot and Bengio 2010)."""
    if style.norm == "rms":
        nn.init.trunc_normal_(weight, std=1.0, a=-2.0, b=2.0)
        with torch.no_grad():
            weight.mul_(TRUNCATED / math.sqrt(inputs))
    else:
        reach = math.sqrt(6 / (inputs + outputs))
        nn.init.uniform_(weight, -reach, reach)


def between(size: int, style: Style) -> nn.Sequential:
    """Norm and nonlinearity after a linear layer of that size."""
    parts: list[nn.Module] = []
    if style.norm == "rms":
        parts.append(nn.RMSNorm(size, eps=1e-4))
    elif style.norm == "layer":
        parts.append(nn.LayerNorm(size, eps=1e-3))
    return nn.Sequential(*parts, ACTIVATIONS[style.activation]())


def dense(inputs: int, units: int, layers: int, style: Style) -> nn.Sequential:
    """Hidden layers [*, inputs] to [*, units]."""
    stack: list[nn.Module] = []
    for index in range(layers):
        stack += [linear(units if index else inputs, units, style), between(units, style)]
    return nn.Sequential(*stack)


class DenseHead(nn.Module):
    """Hidden layers and a linear one on top; `scale` of the last layer's first weights."""

    def __init__(self, inputs: int, outputs: int, units: int, layers: int, style: Style, scale: float = 1.0) -> None:
        super().__init__()
        self.hidden = dense(inputs, units, layers, style)
        self.out = linear(units if layers else inputs, outputs, style, scale)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(self.hidden(x))
        return output
