"""Networks of other packages in place of fully connected layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cadenza.config import plugins
from cadenza.config.networks import NetworkConfig
from cadenza.errors import ConfigError, foreign_code


def own_network(inputs: int, outputs: int, config: NetworkConfig) -> nn.Module:
    """Make a user's module with its numbers of inputs and outputs; refuse one that does not map [*, inputs] to them."""
    make, where = plugins.load("network", config.network), f"network '{config.network}'"
    with foreign_code(f"{where} cannot be made with inputs, outputs and its kwargs"):
        net = make(inputs, outputs, **config.kwargs)
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{where} must be an nn.Module, not a {type(net).__name__}")
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        result = net(torch.zeros(3, 2, inputs))
    if not isinstance(result, Tensor) or result.shape != (3, 2, outputs) or result.dtype != torch.float32:
        kind = f"{list(result.shape)} {result.dtype}" if isinstance(result, Tensor) else type(result).__name__
        raise ConfigError(f"{where} makes {kind} of [3, 2, {inputs}], not [3, 2, {outputs}] torch.float32")
    return net
