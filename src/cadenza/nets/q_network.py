"""Q network of discrete actions: a torso and one or two (dueling) streams, noisy or distributional if configured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config.networks import MLPConfig, NetworkConfig, TorsoConfig
from cadenza.nets.mlp import ACTIVATIONS, network
from cadenza.nets.observe import ObservationTensors
from cadenza.nets.torso import Torso
from cadenza.types import GroupSpec

Noise = Sequence[Tensor]  # for each noisy layer, [inputs + outputs]


class QNetworkSettings(Protocol):
    """The fields of an algorithm's config that shape this network."""

    @property
    def torso(self) -> TorsoConfig: ...
    @property
    def hidden(self) -> NetworkConfig: ...
    @property
    def dueling(self) -> bool: ...
    @property
    def distribution(self) -> str: ...
    @property
    def atoms(self) -> int: ...
    @property
    def v_min(self) -> float: ...
    @property
    def v_max(self) -> float: ...
    @property
    def noisy(self) -> bool: ...
    @property
    def noisy_sigma(self) -> float: ...


class QNetwork(nn.Module):
    """Maps observations [*, …] to Q values [*, n], or to distributions [*, n, K]; dueling as in Wang et al. 2016."""

    support: Tensor  # c51: the returns [K] of the atoms

    def __init__(self, group: GroupSpec, config: QNetworkSettings) -> None:
        super().__init__()
        assert isinstance(group.action, spaces.Discrete)
        self.actions, self.distribution = int(group.action.n), config.distribution
        self.atoms = 1 if config.distribution == "none" else config.atoms
        self.torso = Torso(group.observation, config.torso)
        features, sigma = self.torso.features, config.noisy_sigma if config.noisy else None
        self.advantage: Any = stream(features, self.actions * self.atoms, config.hidden, sigma)
        self.value: Any = stream(features, self.atoms, config.hidden, sigma) if config.dueling else None
        if config.distribution == "c51":
            self.register_buffer("support", torch.linspace(config.v_min, config.v_max, self.atoms), persistent=False)

    def forward(self, obs: ObservationTensors, noise: Noise = ()) -> Tensor:
        """Return Q values [*, n] or outputs [*, n, K]; without noise, noisy layers use their mean weights."""
        features = self.torso.mix(self.torso.encoder(obs))
        split = len(noise) // (1 if self.value is None else 2)
        output: Tensor = self.advantage(features, *noise[:split]).unflatten(-1, (self.actions, self.atoms))
        if self.value is not None:
            output = output - output.mean(-2, keepdim=True) + self.value(features, *noise[split:]).unsqueeze(-2)
        return output.squeeze(-1) if self.distribution == "none" else output

    def means(self, output: Tensor) -> Tensor:
        """Return the Q values [*] of outputs [*] or [*, K], all or for some actions."""
        if self.distribution == "c51":
            return (output.softmax(-1) * self.support).sum(-1)
        return output.mean(-1) if self.distribution == "quantile" else output

    def draw(self, generator: torch.Generator) -> Noise:
        """Draw the noise for one forward pass; none if there are no noisy layers."""
        return [layer.draw(generator) for layer in self.modules() if isinstance(layer, NoisyLinear)]


class Stream(nn.Module):
    """The hidden layers of a config and one linear layer, with torch's initial weights: initial values are near 0."""

    def __init__(self, inputs: int, outputs: int, config: MLPConfig, sigma: float | None) -> None:
        super().__init__()
        sizes = pairwise((inputs, *config.hidden_sizes, outputs))
        self.layers = nn.ModuleList(nn.Linear(*size) if sigma is None else NoisyLinear(*size, sigma) for size in sizes)
        self.activation = ACTIVATIONS[config.activation]()

    def forward(self, x: Tensor, *noise: Tensor) -> Tensor:
        """Return the output for x, with the noise of each layer if they are noisy."""
        for index, layer in enumerate(self.layers):
            if index:
                x = self.activation(x)
            x = layer(x, noise[index]) if noise else layer(x)
        return x


def stream(inputs: int, outputs: int, config: NetworkConfig, sigma: float | None) -> nn.Module:
    """Return the layers of a config, or a network of the user's; `sigma` is the initial noise of noisy layers."""
    is_own = config.network != "mlp"
    return network(inputs, outputs, config) if is_own else Stream(inputs, outputs, config, sigma)


class NoisyLinear(nn.Linear):
    """A linear layer with learned, factorised noise (Fortunato et al. 2018, arXiv:1706.10295) from the caller."""

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__(inputs, outputs)
        start = sigma / math.sqrt(inputs)
        self.weight_sigma = nn.Parameter(torch.full_like(self.weight, start))
        self.bias_sigma = nn.Parameter(torch.full_like(self.bias, start))

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw noise [inputs + outputs]."""
        size, device = self.in_features + self.out_features, self.weight.device
        normal = torch.randn(size, generator=generator, device=device, dtype=self.weight.dtype)
        return normal.sign() * normal.abs().sqrt()

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        mean = super().forward(x)
        if noise is None:
            return mean
        input_noise, output_noise = noise[: self.in_features], noise[self.in_features :]
        return mean + output_noise * nn.functional.linear(input_noise * x, self.weight_sigma, self.bias_sigma)
