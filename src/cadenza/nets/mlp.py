"""Fully connected networks."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn

from cadenza.config.networks import MLPConfig, NetworkConfig, OwnNetwork

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class MLP(nn.Sequential):
    """The hidden layers of a config and one linear layer, with orthogonal weights and zero biases.

    `output_gain` scales the weights of the last layer: a small one makes an initial policy nearly uniform.
    """

    def __init__(self, inputs: int, outputs: int, config: MLPConfig, output_gain: float = 1.0) -> None:
        last = config.hidden_sizes[-1] if config.hidden_sizes else inputs
        super().__init__(*hidden_layers(inputs, config), orthogonal(nn.Linear(last, outputs), output_gain))


def network(inputs: int, outputs: int, config: MLPConfig, output_gain: float = 1.0) -> nn.Module:
    """Return the network that the settings name: [*, inputs] to [*, outputs]."""
    if not isinstance(config, NetworkConfig) or config.network == "mlp":
        return MLP(inputs, outputs, config, output_gain)
    from cadenza.nets.own_parts import own_network

    return own_network(inputs, outputs, OwnNetwork(config.network, config.kwargs))


def hidden_layers(inputs: int, config: MLPConfig) -> nn.Sequential:
    """Return the hidden layers of a config; none if `hidden_sizes` is empty."""
    layers: list[nn.Module] = []
    for size in config.hidden_sizes:
        layers += [orthogonal(nn.Linear(inputs, size), math.sqrt(2)), ACTIVATIONS[config.activation]()]
        inputs = size
    return nn.Sequential(*layers)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Initialise a layer with orthogonal weights and zero biases; return it."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
