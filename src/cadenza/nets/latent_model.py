"""A latent model as TD-MPC has it: a state, what an action makes of it, what that earns and is worth; no decoder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config.world_model_settings import LatentModelConfig
from cadenza.nets.dense import Style
from cadenza.nets.encoders import StridedEncoder, by_size, scaled
from cadenza.nets.heads import LOG_2PI
from cadenza.nets.observe import VECTOR, ObservationTensors, images, vector_size
from cadenza.ops.scaling import symexp, symlog, two_hot_loss, two_hot_mean

LayerStyle = Literal["elu", "mish"]
FIRST_STD = 0.02  # of weights in the style `mish`
NOISE_REACH = 0.3  # how far noise may move an action
WITHIN = 1 - 1e-6  # how far out a noisy action lies at most
LOG_STD = (-10.0, 2.0)  # of a squashed policy


class LayerSpec(NamedTuple):
    """What follows a linear layer."""

    norm: bool
    activation: type[nn.Module]
    dropout: float = 0.0


PLAIN, NORMED = LayerSpec(False, nn.ELU), LayerSpec(True, nn.Mish)


class SimNorm(nn.Module):
    """A softmax over each group of `size` numbers (Lavoie et al. 2022, arXiv:2204.00616): points of simplices."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).softmax(-1).view_as(x)


def stack(inputs: int, units: Sequence[int], outputs: int, style: LayerStyle, zero: bool = False) -> nn.Sequential:
    """Hidden layers and a linear one, whose first outputs are zero if asked for."""
    after = PLAIN if style == "elu" else NORMED
    layers: list[nn.Module] = []
    for before, size in pairwise([inputs, *units]):
        layers.append(started(nn.Linear(before, size), style))
        if after.norm:
            layers.append(nn.LayerNorm(size))
        layers.append(after.activation())
    last = started(nn.Linear(units[-1] if units else inputs, outputs), style)
    if zero:
        nn.init.zeros_(last.weight)
    return nn.Sequential(*layers, last)


def started(layer: nn.Linear, style: LayerStyle) -> nn.Linear:
    start(layer.weight, style)
    nn.init.zeros_(layer.bias)
    return layer


def start(weight: Tensor, style: LayerStyle) -> None:
    nn.init.orthogonal_(weight) if style == "elu" else nn.init.trunc_normal_(weight, std=FIRST_STD)


class CriticEnsemble(nn.Module):
    """[B, F] to [E, B, O]: networks of two hidden layers computed together; zero at first.

    `members` [K] asks only those, which costs only theirs. Dropout is on where it is told which units [E, B, F] are
    `kept` by it (1, or 0).
    """

    def __init__(self, members: int, inputs: int, units: int, outputs: int, style: LayerStyle, dropout: float) -> None:
        super().__init__()
        first = LayerSpec(True, nn.Tanh, dropout) if style == "elu" else NORMED._replace(dropout=dropout)
        self.after = [first, PLAIN if style == "elu" else NORMED]
        sizes = [inputs, units, units, outputs]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for number, (before, size) in enumerate(pairwise(sizes)):
            weight = torch.zeros(members, before, size)
            for one in weight if number < len(self.after) else ():
                start(one.T, style)
            self.weights.append(weight)
            self.biases.append(torch.zeros(members, 1, size))
        normed = [units for layer in self.after if layer.norm]
        self.scales = nn.ParameterList([torch.ones(members, 1, size) for size in normed])
        self.shifts = nn.ParameterList([torch.zeros(members, 1, size) for size in normed])
        self.activations = [layer.activation() for layer in self.after]

    def forward(self, x: Tensor, members: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
        weights, biases, scales, shifts = (
            [values if members is None else values.index_select(0, members) for values in kind]
            for kind in (self.weights, self.biases, self.scales, self.shifts)
        )
        norms: Iterator[tuple[Tensor, Tensor]] = zip(scales, shifts, strict=True)
        x = x.expand(len(weights[0]), *x.shape)
        for number, after in enumerate(self.after):
            x = torch.baddbmm(biases[number], x, weights[number])
            if after.dropout and kept is not None:
                x = x * kept / (1 - after.dropout)
            if after.norm:
                scale, shift = next(norms)
                x = nn.functional.layer_norm(x, x.shape[-1:]) * scale + shift
            x = self.activations[number](x)
        return torch.baddbmm(biases[-1], x, weights[-1])


class NumberDecoder(nn.Module):
    """Outputs of networks [*, outputs] as numbers: over bins of their symmetric logarithm, or as they are."""

    bins: Tensor

    def __init__(self, config: LatentModelConfig) -> None:
        super().__init__()
        self.two_hot = config.numbers == "two_hot"
        self.outputs = config.bins if self.two_hot else 1
        bins = torch.linspace(-config.reach, config.reach, config.bins)
        self.register_buffer("bins", (bins - bins.flip(0)) / 2, persistent=False)

    def mean(self, output: Tensor) -> Tensor:
        return symexp(two_hot_mean(output, self.bins)) if self.two_hot else output.squeeze(-1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """[*]; the target gets no gradient."""
        if self.two_hot:
            return two_hot_loss(output, symlog(target), self.bins)
        return (output.squeeze(-1) - target.detach()).square()


class LatentEncoder(nn.Module):
    """All that is seen, [*, …], to a latent state [*, latent]: images through convolutions first."""

    def __init__(self, space: spaces.Space[Any], config: LatentModelConfig) -> None:
        super().__init__()
        self.sizes = by_size(images(space))
        look = Style("none", "relu")
        eyes = [StridedEncoder(sum(keys.values()), size, config.depth, look) for size, keys in self.sizes.items()]
        self.images = nn.ModuleList(eyes)
        self.vector = bool(vector_size(space))
        inputs = vector_size(space) + sum(eye.features for eye in eyes)
        hidden = [config.encoder_units] * config.encoder_layers
        self.net = stack(inputs, hidden, config.latent, config.style)
        self.last = last_of_latent(config)

    def forward(self, obs: ObservationTensors) -> Tensor:
        parts = [
            encoder(torch.cat([scaled(obs[key]) for key in keys], -3) - 0.5)
            for encoder, keys in zip(self.images, self.sizes.values(), strict=True)
        ]
        if self.vector:
            parts.append(obs[VECTOR])
        latent: Tensor = self.last(self.net(torch.cat(parts, -1) if len(parts) > 1 else parts[0]))
        return latent


def last_of_latent(config: LatentModelConfig) -> nn.Module:
    """What an encoder and the dynamics end with: in the style `mish` a norm, and simplices if asked for."""
    norm = [nn.LayerNorm(config.latent)] if config.style == "mish" and config.simplex else []
    return nn.Sequential(*norm, *([SimNorm(config.simplex)] if config.simplex else []))


class SquashedPolicy(nn.Module):
    """A normal through tanh, [*, latent] to actions [*, D] between -1 and 1."""

    def __init__(self, latent: int, actions: int, config: LatentModelConfig) -> None:
        super().__init__()
        self.net = stack(latent, [config.units] * 2, 2 * actions, config.style)

    def forward(self, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions by standard normal noise, and the logarithm of their density [*]."""
        mean, spread = self.net(latent).chunk(2, -1)
        low, high = LOG_STD
        log_std = low + (high - low) / 2 * (torch.tanh(spread) + 1)
        inner = mean + log_std.exp() * noise
        log_slope = 2 * (math.log(2) - inner - nn.functional.softplus(-2 * inner))
        return torch.tanh(inner), -(0.5 * (noise.square() + LOG_2PI) + log_std + log_slope).sum(-1)


class NoisyPolicy(nn.Module):
    """One action for each state, and clipped noise around it that gradients pass by."""

    def __init__(self, latent: int, actions: int, config: LatentModelConfig, std: float) -> None:
        super().__init__()
        self.std = std
        self.net = stack(latent, [config.units] * 2, actions, config.style)

    def forward(self, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The same; its density does not change, and is told as 1."""
        action = torch.tanh(self.net(latent)) + (self.std * noise).clamp(-NOISE_REACH, NOISE_REACH)
        action = action + (action.clamp(-WITHIN, WITHIN) - action).detach()
        return action, torch.zeros_like(action[..., 0])


class LatentModel(nn.Module):
    """Encoder, dynamics, what is predicted of rewards and ends, critics and a policy."""

    def __init__(
        self, space: spaces.Space[Any], actions: int, config: LatentModelConfig, policy_std: float | None
    ) -> None:
        """`policy_std` None: a policy that learns its own."""
        super().__init__()
        latent, style, hidden = config.latent, config.style, [config.units] * 2
        self.numbers = NumberDecoder(config)
        outputs, both = self.numbers.outputs, latent + actions
        self.encoder = LatentEncoder(space, config)
        self.dynamics = nn.Sequential(stack(both, hidden, latent, style), last_of_latent(config))
        self.reward = stack(both, hidden, outputs, style, zero=True)
        self.ends = stack(latent, hidden, 1, style) if config.ends else None
        self.critics = CriticEnsemble(config.critics, both, config.units, outputs, style, config.dropout)
        self.policy: SquashedPolicy | NoisyPolicy
        if policy_std is None:
            self.policy = SquashedPolicy(latent, actions, config)
        else:
            self.policy = NoisyPolicy(latent, actions, config, policy_std)

    def step(self, latent: Tensor, action: Tensor) -> Tensor:
        """What an action makes of a state."""
        after: Tensor = self.dynamics(torch.cat([latent, action], -1))
        return after

    def expected_reward(self, latent: Tensor, action: Tensor) -> Tensor:
        """Expected reward [*]."""
        return self.numbers.mean(self.reward(torch.cat([latent, action], -1)))

    def values(
        self, critics: CriticEnsemble, latent: Tensor, action: Tensor, pair: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """Of two of these critics, [2, *]."""
        inputs = torch.cat([latent, action], -1)
        outputs = critics(inputs.flatten(0, -2), pair, kept)
        return self.numbers.mean(outputs).view(len(outputs), *inputs.shape[:-1])
