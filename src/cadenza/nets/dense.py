"""Fully connected layers of world models: linear, norm, activation."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from cadenza.config.networks import Activation
from cadenza.nets.kernels import has_kernels
from cadenza.nets.mlp import ACTIVATIONS

Norm = Literal["none", "layer", "rms"]
TRUNCATED = 1.1368  # corrects the standard deviation of a normal truncated at 2, as the authors round it


class Style(NamedTuple):
    """Norm and activation after a linear layer. Initial weights are those of Dreamer v3 for `rms`, else of Keras."""

    norm: Norm = "rms"
    activation: Activation = "silu"


def linear(inputs: int, outputs: int, style: Style, scale: float = 1.0) -> nn.Linear:
    """Return a linear layer, initialised by its style. Weights are multiplied by `scale`: 0 makes initial outputs 0."""
    layer = nn.Linear(inputs, outputs)
    init_weight(layer.weight, inputs, outputs, style)
    with torch.no_grad():
        layer.weight.mul_(scale)
        layer.bias.zero_()
    return layer


def init_weight(weight: Tensor, inputs: int, outputs: int, style: Style) -> None:
    """Initialise from a truncated normal scaled by the inputs (Dreamer v3), or uniformly (Glorot and Bengio 2010)."""
    if style.norm == "rms":
        nn.init.trunc_normal_(weight, std=1.0, a=-2.0, b=2.0)
        with torch.no_grad():
            weight.mul_(TRUNCATED / math.sqrt(inputs))
    else:
        reach = math.sqrt(6 / (inputs + outputs))
        nn.init.uniform_(weight, -reach, reach)


class NormSilu(nn.Sequential):
    """An RMS norm and SiLU, on CUDA in one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x):
            result: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return result
        from cadenza.nets.fused import norm_silu

        return norm_silu(x, self[0].weight, self[0].eps)  # type: ignore[arg-type]


def norm_and_activation(size: int, style: Style) -> nn.Sequential:
    """Return the norm and the activation of a style for layers of a size."""
    parts: list[nn.Module] = []
    if style.norm == "rms":
        parts.append(nn.RMSNorm(size, eps=1e-4))
    elif style.norm == "layer":
        parts.append(nn.LayerNorm(size, eps=1e-3))
    kind = NormSilu if style == Style() else nn.Sequential
    return kind(*parts, ACTIVATIONS[style.activation]())


def dense(inputs: int, units: int, layers: int, style: Style) -> nn.Sequential:
    """Return hidden layers from [*, inputs] to [*, units]."""
    stack: list[nn.Module] = []
    for index in range(layers):
        stack += [linear(units if index else inputs, units, style), norm_and_activation(units, style)]
    return nn.Sequential(*stack)


class DenseHead(nn.Module):
    """Hidden layers and a linear layer, whose initial weights are multiplied by `scale`."""

    def __init__(self, inputs: int, outputs: int, units: int, layers: int, style: Style, scale: float = 1.0) -> None:
        super().__init__()
        self.hidden = dense(inputs, units, layers, style)
        self.out = linear(units if layers else inputs, outputs, style, scale)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(self.hidden(x))
        return output.to(self.out.weight.dtype)  # under autocast they differ
