"""Several MLPs of the same shape, computed together as batched matrix products."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from cadenza.config.networks import MLPConfig, NetworkConfig
from cadenza.nets.mlp import ACTIVATIONS, network


class OwnEnsemble(nn.ModuleList):
    """E networks of a user's from [B, F] to [E, B, O], computed one after the other."""

    def __init__(self, members: int, inputs: int, outputs: int, config: NetworkConfig) -> None:
        super().__init__(network(inputs, outputs, config) for _ in range(members))

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.stack([member(x) for member in self])


class Ensemble(nn.Module):
    """E MLPs from [B, F] to [E, B, O], with optional dropout and layer norm after hidden layers.

    Weights are initialised as in `nn.Linear`. Dropout is active only if `forward` gets a generator.
    """

    def __init__(
        self, members: int, inputs: int, outputs: int, config: MLPConfig, layer_norm: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        sizes = [inputs, *config.hidden_sizes, outputs]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for before, after in pairwise(sizes):
            bound = 1 / math.sqrt(before)
            self.weights.append(torch.empty(members, before, after).uniform_(-bound, bound))
            self.biases.append(torch.empty(members, 1, after).uniform_(-bound, bound))
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for size in config.hidden_sizes if layer_norm else ():
            self.scales.append(torch.ones(members, 1, size))
            self.shifts.append(torch.zeros(members, 1, size))
        self.activation = ACTIVATIONS[config.activation]()
        self.dropout = dropout

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        x = x.expand(len(self.weights[0]), *x.shape)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if index == len(self.weights) - 1:
                return x
            if self.dropout and generator is not None:
                keep = torch.empty_like(x).bernoulli_(1 - self.dropout, generator=generator)
                x = x * keep / (1 - self.dropout)
            if self.scales:
                x = nn.functional.layer_norm(x, x.shape[-1:]) * self.scales[index] + self.shifts[index]
            x = self.activation(x)
        raise AssertionError
