"""From an observation to features: encode (vectors, images, or a module of one's own), mix, remember."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cadenza.config.networks import MLPConfig, TorsoConfig
from cadenza.config.registry import load_own
from cadenza.errors import ConfigError
from cadenza.nets.cnn import CNN
from cadenza.nets.memory import Memory
from cadenza.nets.mlp import hidden_layers
from cadenza.nets.observe import VECTOR, ObservationTensors, Observer, images, vector_size
from cadenza.types import Tree


class Torso(nn.Module):
    """[*, …] to [*, features]; with a memory the first axis is time."""

    def __init__(self, space: spaces.Space[Any], config: TorsoConfig) -> None:
        super().__init__()
        self.encoder = Encoder(space, config) if config.encoder == "auto" else own_encoder(space, config)
        features: int = self.encoder.features  # type: ignore[assignment]
        self.mix = hidden_layers(features, MLPConfig(config.hidden_sizes, config.activation))
        features = config.hidden_sizes[-1] if config.hidden_sizes else features
        self.memory = Memory(features, config.memory) if config.memory.type != "none" else None
        self.features = self.memory.size if self.memory is not None else features

    def initial_carry(self, *batch: int) -> Tree:
        return self.memory.initial(*batch) if self.memory is not None else {}

    def forward(self, obs: ObservationTensors, carry: Tree, first: Tensor, carries: bool = True) -> tuple[Tensor, Tree]:
        """The features, and the carries after each step if wanted. `first` [L, *B] marks where episodes begin."""
        features = self.mix(self.encoder(obs))
        return (features, {}) if self.memory is None else self.memory(features, carry, first, carries)


class Encoder(nn.Module):
    """The vector as it is, each image through a CNN, side by side."""

    def __init__(self, space: spaces.Space[Any], config: TorsoConfig) -> None:
        super().__init__()
        self.cnns = nn.ModuleList([CNN(shape, config.cnn) for shape in images(space).values()])
        self.images = list(images(space))
        self.features = vector_size(space) + len(self.images) * config.cnn.features

    def forward(self, obs: ObservationTensors) -> Tensor:
        parts = [cnn(obs[image]) for image, cnn in zip(self.images, self.cnns, strict=True)]
        if VECTOR in obs:
            parts.append(obs[VECTOR])
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


def own_encoder(space: spaces.Space[Any], config: TorsoConfig) -> nn.Module:
    """A user's module: made with the observation space, called with observations, says its number of `features`."""
    create, where = load_own(config.encoder), f"algorithm.torso.encoder={config.encoder}"
    try:
        inspect.signature(create).bind(space, **config.kwargs)
    except TypeError as problem:
        raise ConfigError(f"{where} cannot be made with the observation space and torso.kwargs: {problem}") from None
    try:
        encoder = create(space, **config.kwargs)
    except Exception as problem:  # whatever a stranger's module may raise
        raise ConfigError(f"{where} cannot be made ({type(problem).__name__}: {problem})") from problem
    if not isinstance(encoder, nn.Module) or not isinstance(getattr(encoder, "features", None), int):
        raise ConfigError(f"{where} must be an nn.Module with a whole number `features`, the length of its output")
    blank = Observer(space, torch.device("cpu"), raw=True)(create_empty_array(space, n=2))
    try:
        with torch.no_grad():
            made = encoder(blank)
            drawn = torch.get_rng_state()  # a lazy layer has drawn its weights by now
            encoder(blank)
    except Exception as problem:
        raise ConfigError(f"{where} cannot be called ({type(problem).__name__}: {problem})") from problem
    if not isinstance(made, Tensor) or made.dtype != torch.float32:
        raise ConfigError(f"{where} must make a tensor of float32, not {getattr(made, 'dtype', type(made).__name__)}")
    if made.shape != (2, encoder.features):
        raise ConfigError(f"{where} makes {list(made.shape)} of 2 observations, not [2, {encoder.features}]")
    if not torch.equal(drawn, torch.get_rng_state()) or any(isinstance(x, _BatchNorm) for x in encoder.modules()):
        told = "an observation must have the same features whenever it is seen and whatever is seen beside it"
        raise ConfigError(f"{where} has dropout, batch norm or other chance in it: {told}")
    return encoder
