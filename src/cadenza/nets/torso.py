"""The part of a network from observations to features: an encoder, hidden layers, and perhaps a memory."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cadenza.config.networks import CNNConfig, MemoryConfig, MLPConfig, OwnNetwork, OwnPart, TorsoConfig
from cadenza.config.plugins import load
from cadenza.errors import ConfigError, foreign_code
from cadenza.nets.mlp import ACTIVATIONS, hidden_layers, orthogonal
from cadenza.nets.observe import VECTOR, ObservationTensors, Observer, images, vector_size
from cadenza.types import Tree

if TYPE_CHECKING:
    from cadenza.nets.memory import Memory

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al. 2015; needs 36 pixels
SMALL = ((16, 3, 1), (32, 3, 2), (32, 2, 1))  # needs 8


class Torso(nn.Module):
    """Maps observations [*, …] to features [*, F]; with a memory the first axis is time."""

    def __init__(self, space: spaces.Space[Any], config: TorsoConfig) -> None:
        super().__init__()
        self.encoder = (
            Encoder(space, config)
            if config.encoder == "auto"
            else own_encoder(space, OwnNetwork(config.encoder, config.kwargs), "algorithm.torso.encoder", raw=True)
        )
        features: int = self.encoder.features  # type: ignore[assignment]
        self.mix = hidden_layers(features, MLPConfig(config.hidden_sizes, config.activation))
        features = config.hidden_sizes[-1] if config.hidden_sizes else features
        self.memory = _memory(features, config.memory)
        self.features = self.memory.size if self.memory is not None else features

    def initial_carry(self, *batch: int) -> Tree:
        return self.memory.initial(*batch) if self.memory is not None else {}

    def forward(self, obs: ObservationTensors, carry: Tree, first: Tensor, carries: bool = True) -> tuple[Tensor, Tree]:
        """Return the features, and the carries after each step if `carries`. `first` [L, *B] marks episode starts."""
        features = self.mix(self.encoder(obs))
        return (features, {}) if self.memory is None else self.memory(features, carry, first, carries)


def _memory(features: int, config: MemoryConfig) -> Memory | None:
    if config.type == "none":
        return None
    from cadenza.nets.memory import Memory

    return Memory(features, config)


class Encoder(nn.Module):
    """Concatenates the vector, unchanged, and the features of each image from a CNN."""

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


class FirstLayer(nn.Conv2d):
    """A convolution of images. Bytes are scaled to [0, 1] through the weights, of which there are fewer than pixels."""

    def forward(self, pixels: Tensor, is_bytes: bool = False) -> Tensor:
        weight = self.weight / 255 if is_bytes else self.weight
        return nn.functional.conv2d(pixels, weight, self.bias, self.stride)


class CNN(nn.Sequential):
    """Images [*, C, H, W] to features [*, features]; bytes are scaled to [0, 1]."""

    def __init__(self, shape: tuple[int, int, int], config: CNNConfig) -> None:
        from cadenza.nets.linear import Linear

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
        linear = orthogonal(Linear(flat, config.features), math.sqrt(2))
        super().__init__(*layers, nn.Flatten(), linear, ACTIVATIONS[config.activation]())

    def forward(self, x: Tensor) -> Tensor:
        # on a CPU convolutions, and their gradients even more, are faster in the channels-last layout
        layout = torch.channels_last if x.device.type == "cpu" else torch.preserve_format
        first, *rest = self
        pixels: Tensor = first(x.flatten(0, -4).to(torch.float32, memory_format=layout), x.dtype == torch.uint8)
        for layer in rest:
            pixels = layer(pixels)
        return pixels.reshape(*x.shape[:-3], -1)


def own_encoder(space: spaces.Space[Any], part: OwnPart, key: str, raw: bool = False) -> nn.Module:
    """Return a user's encoder, made with the observation space; refuse one that breaks the rules of an encoder.

    It is called with a batch of observations, `raw` or as `observe` makes them. It returns float32 [*, `features`], the
    same for equal observations.
    """
    create, where = load(part.kind, part.name), f"{key}={part.name}"
    try:
        inspect.signature(create).bind(space, **part.kwargs)
    except TypeError as problem:
        raise ConfigError(f"{where} cannot be made with the observation space and its kwargs: {problem}") from None
    with foreign_code(f"{where} cannot be made"):
        encoder = create(space, **part.kwargs)
    if not isinstance(encoder, nn.Module) or not isinstance(getattr(encoder, "features", None), int):
        raise ConfigError(f"{where} must be an nn.Module with a whole number `features`, the length of its output")
    blank = Observer(space, torch.device("cpu"), raw=raw)(create_empty_array(space, n=2))
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        output = encoder(blank)
        random_state = torch.get_rng_state()  # a lazy layer has drawn its weights by now
        encoder(blank)
    if not isinstance(output, Tensor) or output.dtype != torch.float32:
        kind = getattr(output, "dtype", type(output).__name__)
        raise ConfigError(f"{where} must return a tensor of float32, not {kind}")
    if output.shape != (2, encoder.features):
        raise ConfigError(f"{where} returns {list(output.shape)} for 2 observations, not [2, {encoder.features}]")
    is_random = not torch.equal(random_state, torch.get_rng_state())
    if is_random or any(isinstance(module, _BatchNorm) for module in encoder.modules()):
        rule = "an observation must have the same features every time, whatever else is in the batch"
        raise ConfigError(f"{where} has dropout, batch norm or other randomness in it: {rule}")
    return encoder
