"""Policies for imagination in world models: they sample with noise from the caller, and samples are differentiable.

Models and policies share one encoding of actions [*, size]: one-hot, or scaled from the bounds of the space to [-1, 1].
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.nets.dense import DenseHead, Style
from cadenza.nets.heads import LOG_2PI, log_tanh_slope
from cadenza.ops.latents import sample_categorical, unimix

ActorHead = Literal["bounded_normal", "tanh_normal", "trunc_normal"]
WITHIN = 1 - 1e-6  # greatest magnitude of a truncated action


class Actions:
    """The encoding of one space of actions."""

    def __init__(self, space: spaces.Space[Any], device: torch.device) -> None:
        self.space, self.discrete = space, isinstance(space, spaces.Discrete)
        self.size = int(space.n) if isinstance(space, spaces.Discrete) else math.prod(space.shape or ())
        if isinstance(space, spaces.Box):
            low, high = (np.asarray(x, np.float32).ravel() for x in (space.low, space.high))
            self.middle, self.reach = (torch.from_numpy(x).to(device) for x in ((low + high) / 2, (high - low) / 2))

    def encode(self, action: Tensor) -> Tensor:
        """Return the encoding [*, size] of actions of the environment [*, …]."""
        if isinstance(self.space, spaces.Discrete):
            # zeros fill the rows where no agent acts, and may be outside of the space
            index = (action.long() - int(self.space.start)).clamp(0, self.size - 1)
            return nn.functional.one_hot(index, self.size).float()
        shape = self.space.shape or ()
        flat = action.float().reshape(*action.shape[: action.dim() - len(shape)], self.size)
        return (flat - self.middle) / self.reach

    def decode(self, encoded: Tensor) -> np.ndarray:
        """Return the actions of the environment [*, …] for encoded ones [*, size]; the highest entry if discrete."""
        if isinstance(self.space, spaces.Discrete):
            return np.asarray(encoded.argmax(-1).cpu().numpy() + self.space.start)
        action = (self.middle + self.reach * encoded).cpu().numpy()
        return np.asarray(action.reshape(*action.shape[:-1], *(self.space.shape or ())), self.space.dtype)


class CategoricalActor(nn.Module):
    """A policy over n discrete actions, one-hot, with straight-through gradients."""

    def __init__(self, inputs: int, actions: int, units: int, layers: int, style: Style, mix: float) -> None:
        super().__init__()
        self.actions, self.mix = actions, mix
        self.net = DenseHead(inputs, actions, units, layers, style, scale=0.01 if style.norm == "rms" else 1.0)

    def forward(self, features: Tensor) -> Tensor:
        """Return log-probabilities [*, n], mixed with a uniform distribution of weight `mix`."""
        logits = self.net(features)
        return unimix(logits, self.mix) if self.mix else logits.log_softmax(-1)

    def noise(self, *batch: int, generator: torch.Generator) -> Tensor:
        return torch.empty(*batch, device=generator.device).uniform_(generator=generator)

    def sample(self, output: Tensor, noise: Tensor) -> Tensor:
        return sample_categorical(output.exp(), noise)

    def mode(self, output: Tensor) -> Tensor:
        return nn.functional.one_hot(output.argmax(-1), self.actions).to(output.dtype)

    def log_prob(self, output: Tensor, action: Tensor) -> Tensor:
        return (output * action).sum(-1)

    def entropy(self, output: Tensor) -> Tensor:
        return -(output.exp() * output).sum(-1)


class NormalActor(nn.Module):
    """A policy over independent continuous actions.

    `bounded_normal` (Dreamer v3): a mean within the bounds, a standard deviation between 0.1 and 1, and samples that
    may lie outside. `tanh_normal` (v1): a normal squashed into the bounds. `trunc_normal` (v2): one truncated there.
    """

    def __init__(
        self, inputs: int, actions: int, units: int, layers: int, style: Style, kind: ActorHead, std: float = 5.0
    ) -> None:
        """`std` is the initial standard deviation of a `tanh_normal`."""
        super().__init__()
        self.actions, self.kind, self.std = actions, kind, std
        self.net = DenseHead(inputs, 2 * actions, units, layers, style, scale=0.01 if style.norm == "rms" else 1.0)

    def forward(self, features: Tensor) -> Tensor:
        """Return mean and standard deviation [*, 2 * size], concatenated, before squashing or truncation."""
        mean, std = self.net(features).chunk(2, -1)
        if self.kind == "bounded_normal":
            mean, std = torch.tanh(mean), 0.9 * torch.sigmoid(std + 2) + 0.1
        elif self.kind == "tanh_normal":
            mean = 5 * torch.tanh(mean / 5)
            std = nn.functional.softplus(std + math.log(math.expm1(self.std))) + 1e-4
        else:
            mean, std = torch.tanh(mean), 2 * torch.sigmoid(std / 2) + 0.1
        return torch.cat([mean, std], -1)

    def noise(self, *batch: int, generator: torch.Generator) -> Tensor:
        """Return noise [*batch, size] for `sample`: uniform for `trunc_normal`, else standard normal."""
        blank = torch.empty(*batch, self.actions, device=generator.device)
        truncated = self.kind == "trunc_normal"
        return blank.uniform_(generator=generator) if truncated else blank.normal_(generator=generator)

    def sample(self, output: Tensor, noise: Tensor) -> Tensor:
        mean, std = output.chunk(2, -1)
        if self.kind == "trunc_normal":
            low, high = self._tails(mean, std)
            inner = torch.special.ndtri((low + noise * (high - low)).clamp(1e-7, 1 - 1e-7))
            action: Tensor = mean + std * inner
            return action + (action.clamp(-WITHIN, WITHIN) - action).detach()
        action = mean + std * noise
        return torch.tanh(action) if self.kind == "tanh_normal" else action

    def mode(self, output: Tensor) -> Tensor:
        mean = output.chunk(2, -1)[0]
        return torch.tanh(mean) if self.kind == "tanh_normal" else mean

    def log_prob(self, output: Tensor, action: Tensor) -> Tensor:
        mean, std = output.chunk(2, -1)
        squashed = self.kind == "tanh_normal"
        inner = torch.atanh(action.clamp(-WITHIN, WITHIN)) if squashed else action
        log_prob = -0.5 * (((inner - mean) / std).square() + LOG_2PI) - std.log()
        if squashed:
            log_prob = log_prob - log_tanh_slope(inner)
        elif self.kind == "trunc_normal":
            low, high = self._tails(mean, std)
            log_prob = log_prob - (high - low).log()
        return log_prob.sum(-1)

    def entropy(self, output: Tensor) -> Tensor:
        """Return the entropy [*]; for `tanh_normal`, which has no closed form, that of the normal before squashing."""
        mean, std = output.chunk(2, -1)
        entropy = std.log() + 0.5 * (1 + LOG_2PI)
        if self.kind == "trunc_normal":
            low, high = self._tails(mean, std)
            mass, a, b = high - low, (-1 - mean) / std, (1 - mean) / std
            tilt = (a * torch.exp(-0.5 * a.square()) - b * torch.exp(-0.5 * b.square())) / math.sqrt(2 * math.pi)
            entropy = entropy + mass.log() + tilt / (2 * mass)
        return entropy.sum(-1)

    def _tails(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability that the normal is below the lower and below the upper bound."""
        return torch.special.ndtr((-1 - mean) / std), torch.special.ndtr((1 - mean) / std)


Actor = CategoricalActor | NormalActor
