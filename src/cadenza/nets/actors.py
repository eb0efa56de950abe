"""Policies that act in imagination: the noise they draw with is given, and gradients flow through what they draw.

Actions are encoded the same for models and policies: one-hot, or on a scale of -1 to 1 between their bounds, [*, size].
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.nets.dense import DenseHead, Style
from cadenza.nets.heads import LOG_2PI
from cadenza.ops.latents import sample_categorical, unimix

ActorHead = Literal["bounded_normal", "tanh_normal", "trunc_normal"]
WITHIN = 1 - 1e-6  # how far out a truncated action is taken to lie, at most


class Actions:
    """What an environment takes, and its encoding."""

    def __init__(self, space: spaces.Space[Any], device: torch.device) -> None:
        self.space, self.discrete = space, isinstance(space, spaces.Discrete)
        self.size = int(space.n) if isinstance(space, spaces.Discrete) else math.prod(space.shape or ())
        if isinstance(space, spaces.Box):
            low, high = (np.asarray(x, np.float32).ravel() for x in (space.low, space.high))
            self.middle, self.reach = (torch.from_numpy(x).to(device) for x in ((low + high) / 2, (high - low) / 2))

    def encode(self, action: Tensor) -> Tensor:
        """[*, …] as the environment takes it to [*, size]."""
        if isinstance(self.space, spaces.Discrete):
            index = action.long() - int(self.space.start)
            index = index.clamp(0, self.size - 1)  # rows where nobody acts hold zeros, which may be no action
            return nn.functional.one_hot(index, self.size).float()
        shape = self.space.shape or ()
        flat = action.float().reshape(*action.shape[: action.dim() - len(shape)], self.size)
        return (flat - self.middle) / self.reach

    def decode(self, encoded: Tensor) -> np.ndarray:
        """The way back, as an array."""
        if isinstance(self.space, spaces.Discrete):
            return np.asarray(encoded.argmax(-1).cpu().numpy() + self.space.start)
        action = (self.middle + self.reach * encoded).cpu().numpy()
        return np.asarray(action.reshape(*action.shape[:-1], *(self.space.shape or ())), self.space.dtype)


class CategoricalActor(nn.Module):
    """One of n actions, one-hot; gradients pass a draw as if it were its probabilities."""

    def __init__(self, inputs: int, actions: int, units: int, layers: int, style: Style, mix: float) -> None:
        super().__init__()
        self.actions, self.mix = actions, mix
        self.net = DenseHead(inputs, actions, units, layers, style, scale=0.01 if style.norm == "rms" else 1.0)

    def forward(self, features: Tensor) -> Tensor:
        """Log-probabilities [*, n]."""
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
    """Continuous actions, independent of each other.

    `bounded_normal` (v3): a mean within the bounds, a deviation between 0.1 and 1, and draws that may lie beyond.
    `tanh_normal` (v1): a wide normal squashed into the bounds. `trunc_normal` (v2): one cut off at the bounds.
    """

    def __init__(
        self, inputs: int, actions: int, units: int, layers: int, style: Style, kind: ActorHead, std: float = 5.0
    ) -> None:
        """`std` is the deviation of a `tanh_normal` before anything is learned."""
        super().__init__()
        self.actions, self.kind, self.std = actions, kind, std
        self.net = DenseHead(inputs, 2 * actions, units, layers, style, scale=0.01 if style.norm == "rms" else 1.0)

    def forward(self, features: Tensor) -> Tensor:
        """Mean and deviation side by side [*, 2 size], before any squashing."""
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
        """Standard normal, or uniform where the normal is cut off."""
        blank = torch.empty(*batch, self.actions, device=generator.device)
        truncated = self.kind == "trunc_normal"
        return blank.uniform_(generator=generator) if truncated else blank.normal_(generator=generator)

    def sample(self, output: Tensor, noise: Tensor) -> Tensor:
        mean, std = output.chunk(2, -1)
        if self.kind == "trunc_normal":
            low, high = self._ends(mean, std)
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
            log_prob = log_prob - 2 * (math.log(2) - inner - nn.functional.softplus(-2 * inner))
        elif self.kind == "trunc_normal":
            low, high = self._ends(mean, std)
            log_prob = log_prob - (high - low).log()
        return log_prob.sum(-1)

    def entropy(self, output: Tensor) -> Tensor:
        """That of the normal below the squashing for `tanh_normal`, which has no closed form (and v1 no use for it)."""
        mean, std = output.chunk(2, -1)
        entropy = std.log() + 0.5 * (1 + LOG_2PI)
        if self.kind == "trunc_normal":
            low, high = self._ends(mean, std)
            mass, a, b = high - low, (-1 - mean) / std, (1 - mean) / std
            tilt = (a * torch.exp(-0.5 * a.square()) - b * torch.exp(-0.5 * b.square())) / math.sqrt(2 * math.pi)
            entropy = entropy + mass.log() + tilt / (2 * mass)
        return entropy.sum(-1)

    def _ends(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """How much of the normal lies below each bound."""
        return torch.special.ndtr((-1 - mean) / std), torch.special.ndtr((1 - mean) / std)


Actor = CategoricalActor | NormalActor
