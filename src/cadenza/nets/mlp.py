"""Fully connected networks."""

from __future__ import annotations

import math

from torch import Tensor, nn

from cadenza.config.networks import MLPConfig

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class MLP(nn.Sequential):
    """Hidden layers as configured, then one linear layer; orthogonal weights, zero biases.

    `output_gain` is the gain of the last layer: small for a policy, so that it starts close to uniform.
    """

    def __init__(self, inputs: int, outputs: int, config: MLPConfig, output_gain: float = 1.0) -> None:
        layers: list[nn.Module] = []
        for size in config.hidden_sizes:
            layers += [orthogonal(nn.Linear(inputs, size), math.sqrt(2)), ACTIVATIONS[config.activation]()]
            inputs = size
        super().__init__(*layers, orthogonal(nn.Linear(inputs, outputs), output_gain))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
