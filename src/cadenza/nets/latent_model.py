"""The latent model of TD-MPC: encoder, dynamics, reward, values and policy in a latent space, without a decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config.networks import OwnDynamics, OwnNetwork
from cadenza.config.world_model_settings import LatentModelConfig
from cadenza.nets.dense import Style
from cadenza.nets.encoders import StridedEncoder, group_by_size, to_unit_range
from cadenza.nets.heads import squashed
from cadenza.nets.linear import Linear, Mish, batched
from cadenza.nets.observe import VECTOR, ObservationTensors, images, vector_size
from cadenza.nets.own_parts import own_latent_policy, own_network
from cadenza.nets.torso import own_encoder
from cadenza.ops.scaling import symexp, symlog, two_hot_loss, two_hot_mean

LayerStyle = Literal["elu", "mish"]
FIRST_STD = 0.02  # standard deviation of initial weights in the style `mish`
MAX_NOISE = 0.3  # greatest change of an action by noise
WITHIN = 1 - 1e-6  # greatest magnitude of a noisy action
LOG_STD = (-10.0, 2.0)  # range of a squashed policy


class LayerSpec(NamedTuple):
    """The operations after a linear layer."""

    norm: bool
    activation: type[nn.Module]
    dropout: float = 0.0


ELU, NORM_MISH = LayerSpec(False, nn.ELU), LayerSpec(True, Mish)


class SimNorm(nn.Module):
    """A softmax over each group of `size` numbers: points of simplices (Lavoie et al. 2022, arXiv:2204.00616)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).softmax(-1).view_as(x)


def mlp(inputs: int, units: Sequence[int], outputs: int, style: LayerStyle, zero: bool = False) -> nn.Sequential:
    """Return hidden layers and a linear one, whose weights start at 0 if `zero`."""
    spec = ELU if style == "elu" else NORM_MISH
    layers: list[nn.Module] = []
    for before, size in pairwise([inputs, *units]):
        layers.append(init_linear(Linear(before, size), style))
        if spec.norm:
            layers.append(nn.LayerNorm(size))
        layers.append(spec.activation())
    last = init_linear(Linear(units[-1] if units else inputs, outputs), style)
    if zero:
        nn.init.zeros_(last.weight)
    return nn.Sequential(*layers, last)


def init_linear(layer: nn.Linear, style: LayerStyle) -> nn.Linear:
    """Initialise a layer by its style, with zero biases; return it."""
    init_weight(layer.weight, style)
    nn.init.zeros_(layer.bias)
    return layer


def init_weight(weight: Tensor, style: LayerStyle) -> None:
    """Initialise a weight [outputs, inputs]: orthogonal for `elu`, truncated normal for `mish`."""
    if style == "elu":
        nn.init.orthogonal_(weight)
    else:
        nn.init.trunc_normal_(weight, std=FIRST_STD)


class CriticEnsemble(nn.Module):
    """E networks from [B, F] to [E, B, O] with two hidden layers, computed together. Initial outputs are 0.

    `members` [K] evaluates only those networks, at their cost alone. Dropout is active only with a mask `keep`
    [E, B, F] of the units that remain (1 or 0).
    """

    def __init__(self, members: int, inputs: int, units: int, outputs: int, style: LayerStyle, dropout: float) -> None:
        super().__init__()
        first = LayerSpec(True, nn.Tanh, dropout) if style == "elu" else NORM_MISH._replace(dropout=dropout)
        self.after = [first, ELU if style == "elu" else NORM_MISH]
        sizes = [inputs, units, units, outputs]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for number, (before, size) in enumerate(pairwise(sizes)):
            weight = torch.zeros(members, before, size)
            if number < len(self.after):
                for member in weight:
                    init_weight(member.T, style)
            self.weights.append(weight)
            self.biases.append(torch.zeros(members, 1, size))
        norm_sizes = [units for layer in self.after if layer.norm]
        self.scales = nn.ParameterList([torch.ones(members, 1, size) for size in norm_sizes])
        self.shifts = nn.ParameterList([torch.zeros(members, 1, size) for size in norm_sizes])
        self.activations = [layer.activation() for layer in self.after]

    def forward(self, x: Tensor, members: Tensor | None = None, keep: Tensor | None = None) -> Tensor:

        def select(parameters: Iterable[Tensor]) -> list[Tensor]:
            return [values if members is None else values.index_select(0, members) for values in parameters]

        weights, biases = select(self.weights), select(self.biases)
        norms = zip(select(self.scales), select(self.shifts), strict=True)
        x = x.expand(len(weights[0]), *x.shape)
        for number, after in enumerate(self.after):
            x = batched(biases[number], x, weights[number])
            if after.dropout and keep is not None:
                x = x * keep / (1 - after.dropout)
            if after.norm:
                scale, shift = next(norms)
                x = nn.functional.layer_norm(x, x.shape[-1:]) * scale + shift
            x = self.activations[number](x)
        return batched(biases[-1], x, weights[-1])


class OwnCritics(nn.ModuleList):
    """E networks of a user's from [B, F] to [E, B, O], computed one after the other, without dropout.

    All are computed even where `members` [K] selects some: reading their numbers would wait for a device.
    """

    def __init__(self, members: int, inputs: int, outputs: int, part: OwnNetwork) -> None:
        super().__init__(own_network(inputs, outputs, part) for _ in range(members))

    def forward(self, x: Tensor, members: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        values = torch.stack([member(x) for member in self])
        return values if members is None else values.index_select(0, members)


Critics = CriticEnsemble | OwnCritics


class NumberDecoder(nn.Module):
    """Turns network outputs [*, outputs] into numbers [*]: the mean over two-hot bins under `symlog`, or the output."""

    bins: Tensor

    def __init__(self, config: LatentModelConfig) -> None:
        super().__init__()
        self.two_hot = config.numbers == "two_hot"
        self.outputs = config.bins if self.two_hot else 1
        bins = torch.linspace(-config.reach, config.reach, config.bins)
        self.register_buffer("bins", (bins - bins.flip(0)) / 2, persistent=False)

    def mean(self, output: Tensor) -> Tensor:
        """Return the predicted number [*]."""
        return symexp(two_hot_mean(output, self.bins)) if self.two_hot else output.squeeze(-1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss [*] for a target [*], which gets no gradient: cross entropy for bins, else squared error."""
        if self.two_hot:
            return two_hot_loss(output, symlog(target), self.bins)
        return (output.squeeze(-1) - target.detach()).square()


class LatentEncoder(nn.Module):
    """Maps observations [*, …] to latent states [*, latent]; images pass through convolutions first."""

    def __init__(self, space: spaces.Space[Any], config: LatentModelConfig, encoder: str | OwnNetwork = "auto") -> None:
        """Take the features of an `encoder` of the user's as input, in place of images and the vector."""
        super().__init__()
        self.foreign = None if isinstance(encoder, str) else own_encoder(space, encoder, "algorithm.encoder")
        self.sizes = group_by_size(images(space) if self.foreign is None else {})
        style = Style("none", "relu")
        encoders = [StridedEncoder(sum(keys.values()), size, config.depth, style) for size, keys in self.sizes.items()]
        self.images = nn.ModuleList(encoders)
        self.vector = bool(vector_size(space))
        inputs = vector_size(space) + sum(encoder.features for encoder in encoders)
        if self.foreign is not None:
            inputs = self.foreign.features  # type: ignore[assignment]
        hidden = [config.encoder_units] * config.encoder_layers
        self.net = mlp(inputs, hidden, config.latent, config.style)
        self.last = latent_norm(config)

    def forward(self, obs: ObservationTensors) -> Tensor:
        if self.foreign is not None:
            encoded: Tensor = self.last(self.net(self.foreign(obs)))
            return encoded
        parts = [
            encoder(torch.cat([to_unit_range(obs[key]) for key in keys], -3) - 0.5)
            for encoder, keys in zip(self.images, self.sizes.values(), strict=True)
        ]
        if self.vector:
            parts.append(obs[VECTOR])
        latent: Tensor = self.last(self.net(torch.cat(parts, -1) if len(parts) > 1 else parts[0]))
        return latent


def latent_norm(config: LatentModelConfig) -> nn.Module:
    """Return the last layers of encoder and dynamics: SimNorm if `config.simplex`, after a norm in the style `mish`."""
    layers: list[nn.Module] = []
    if config.simplex:
        layers = [SimNorm(config.simplex)]
        if config.style == "mish":
            layers.insert(0, nn.LayerNorm(config.latent))
    return nn.Sequential(*layers)


class SquashedPolicy(nn.Module):
    """A normal policy squashed by tanh, from [*, latent] to actions [*, D] in [-1, 1]."""

    def __init__(self, latent: int, actions: int, config: LatentModelConfig) -> None:
        super().__init__()
        self.net = mlp(latent, [config.units] * 2, 2 * actions, config.style)

    def forward(self, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [*, D] computed from standard normal noise [*, D], and their log-densities [*]."""
        mean, spread = self.net(latent).chunk(2, -1)
        low, high = LOG_STD
        log_std = low + (high - low) / 2 * (torch.tanh(spread) + 1)
        return squashed(mean, log_std, noise)


class NoisyPolicy(nn.Module):
    """A deterministic policy with clipped noise; gradients ignore the clipping."""

    def __init__(self, latent: int, actions: int, config: LatentModelConfig, std: float) -> None:
        super().__init__()
        self.std = std
        self.net = mlp(latent, [config.units] * 2, actions, config.style)

    def forward(self, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [*, D] with noise [*, D] added, and zeros [*]: the log-density is constant."""
        action = torch.tanh(self.net(latent)) + (self.std * noise).clamp(-MAX_NOISE, MAX_NOISE)
        action = action + (action.clamp(-WITHIN, WITHIN) - action).detach()
        return action, torch.zeros_like(action[..., 0])


class LatentModel(nn.Module):
    """Encoder, dynamics, predictors of rewards and terminations, critics and a policy."""

    def __init__(
        self,
        space: spaces.Space[Any],
        actions: int,
        config: LatentModelConfig,
        policy: OwnNetwork | float | None,
        encoder: str | OwnNetwork = "auto",
        dynamics: str | OwnDynamics = "mlp",
        critic: str | OwnNetwork = "mlp",
    ) -> None:
        """`policy` is a user's, the standard deviation of noisy actions, or None: it learns its standard deviation."""
        super().__init__()
        latent, style, hidden = config.latent, config.style, [config.units] * 2
        self.numbers = NumberDecoder(config)
        outputs, inputs = self.numbers.outputs, latent + actions
        self.encoder = LatentEncoder(space, config, encoder)
        step: nn.Module
        if isinstance(dynamics, str):
            step = mlp(inputs, hidden, latent, style)
        else:
            step = own_network(inputs, latent, dynamics)
        self.dynamics = nn.Sequential(step, latent_norm(config))
        self.reward = mlp(inputs, hidden, outputs, style, zero=True)
        self.ends = mlp(latent, hidden, 1, style) if config.ends else None
        self.critics: Critics
        if isinstance(critic, str):
            self.critics = CriticEnsemble(config.critics, inputs, config.units, outputs, style, config.dropout)
        else:
            self.critics = OwnCritics(config.critics, inputs, outputs, critic)
        self.policy: nn.Module
        if isinstance(policy, OwnNetwork):
            self.policy = own_latent_policy(policy, latent, actions)
        elif policy is None:
            self.policy = SquashedPolicy(latent, actions, config)
        else:
            self.policy = NoisyPolicy(latent, actions, config, policy)

    def step(self, latent: Tensor, action: Tensor) -> Tensor:
        """Return the next latent state [*, latent] after an action [*, D]."""
        after: Tensor = self.dynamics(torch.cat([latent, action], -1))
        return after

    def expected_reward(self, latent: Tensor, action: Tensor) -> Tensor:
        """Return the expected reward [*] of an action [*, D] in a state [*, latent]."""
        return self.numbers.mean(self.reward(torch.cat([latent, action], -1)))

    def values(
        self, critics: Critics, latent: Tensor, action: Tensor, members: Tensor, keep: Tensor | None = None
    ) -> Tensor:
        """Return the values [K, *] of an action by the critics `members` [K], with dropout mask `keep`."""
        inputs = torch.cat([latent, action], -1)
        outputs = critics(inputs.flatten(0, -2), members, keep)
        return self.numbers.mean(outputs).view(len(outputs), *inputs.shape[:-1])
