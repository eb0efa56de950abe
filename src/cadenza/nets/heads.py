"""Action heads: from a network's output to actions and their probabilities, one class for each kind of space.

A head needs `outputs` numbers from the network. For output [*, outputs] and a mask [*, outputs] or None:
`sample` and `mode` (the most likely) return actions [*, …]; `evaluate` returns the log-probability of an action [*] and
the entropy [*]; `summary` returns the distribution: `probs` [*, n], or `mean` and `std` [*, D].
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config.networks import HeadConfig
from cadenza.errors import ConfigError
from cadenza.nets.kernels import has_kernels

LOG_2PI = math.log(2 * math.pi)
EDGE = 1e-6  # least distance of a squashed action from its bounds, on the scale of [-1, 1]
QUADRATURE = 16  # nodes of the integral over the entropy


class CategoricalHead(nn.Module):
    """A categorical distribution over n actions; actions whose `mask` is False have probability 0."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self.outputs = int(space.n)
        self.start = int(space.start)

    def log_probs(self, output: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            output = output.masked_fill(~mask, torch.finfo(output.dtype).min)
        return torch.log_softmax(output, -1)

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        log_probs = self.log_probs(output, mask)
        # the smallest of independent exponential waiting times with rates p falls on i with probability p_i
        waiting = torch.empty_like(log_probs).exponential_(generator=generator)
        return (log_probs.exp() / waiting).argmax(-1) + self.start

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return self.log_probs(output, mask).argmax(-1) + self.start

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = self.log_probs(output, mask)
        log_prob = log_probs.gather(-1, (action - self.start).long().unsqueeze(-1)).squeeze(-1)
        return log_prob, -(log_probs.exp() * log_probs).sum(-1)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        return {"probs": self.log_probs(output, mask).exp()}


class MultiCategoricalHead(nn.Module):
    """Several independent categorical distributions; their masks are concatenated."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self.shape = space.nvec.shape
        choices = zip(space.nvec.ravel().tolist(), space.start.ravel().tolist(), strict=True)
        self.parts = [CategoricalHead(spaces.Discrete(n, start=start)) for n, start in choices]
        self.sizes = [part.outputs for part in self.parts]
        self.outputs = sum(self.sizes)

    def _columns(self, output: Tensor, mask: Tensor | None) -> list[tuple[CategoricalHead, Tensor, Tensor | None]]:
        masks: Any = [None] * len(self.parts) if mask is None else torch.split(mask, self.sizes, -1)
        return list(zip(self.parts, torch.split(output, self.sizes, -1), masks, strict=True))

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        actions = [part.sample(logits, allowed, generator) for part, logits, allowed in self._columns(output, mask)]
        return unflatten(torch.stack(actions, -1), self.shape)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        actions = [part.mode(logits, allowed) for part, logits, allowed in self._columns(output, mask)]
        return unflatten(torch.stack(actions, -1), self.shape)

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        choices = flatten(action, self.shape).unbind(-1)
        log_probs, entropies = [], []
        for (part, logits, allowed), choice in zip(self._columns(output, mask), choices, strict=True):
            log_prob, entropy = part.evaluate(logits, allowed, choice)
            log_probs.append(log_prob)
            entropies.append(entropy)
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        probs = [part.log_probs(logits, allowed).exp() for part, logits, allowed in self._columns(output, mask)]
        return {"probs": torch.cat(probs, -1)}


class BernoulliHead(nn.Module):
    """Independent binary actions."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.shape = space.shape
        self.outputs = math.prod(space.shape)

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        noise = torch.empty_like(output).uniform_(generator=generator)
        return unflatten((noise < torch.sigmoid(output)).to(torch.int8), self.shape)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return unflatten((output > 0).to(torch.int8), self.shape)

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        entropy = nn.functional.binary_cross_entropy_with_logits(output, torch.sigmoid(output), reduction="none")
        on = flatten(action, self.shape).float()
        return -nn.functional.binary_cross_entropy_with_logits(output, on, reduction="none").sum(-1), entropy.sum(-1)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        return {"probs": torch.sigmoid(output)}


class GaussianHead(nn.Module):
    """Independent normal actions; the standard deviation is a parameter or one half of the output."""

    log_std: Tensor

    def __init__(self, space: spaces.Box, config: HeadConfig) -> None:
        super().__init__()
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self.config = config
        self.outputs = self.size * (2 if config.std == "state" else 1)
        if config.std == "parameter":
            self.log_std = nn.Parameter(torch.full((self.size,), config.log_std_init))

    def _normal(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation [*, size], or [size] for a parameter."""
        if self.config.std == "parameter":
            return output, self.log_std
        mean, log_std = output.chunk(2, -1)
        return mean, (log_std + self.config.log_std_init).clamp(-20, 2)

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        mean, log_std = self._normal(output)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return unflatten(mean + log_std.exp() * noise, self.shape)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return unflatten(self._normal(output)[0], self.shape)

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._normal(output)
        noise = (flatten(action, self.shape) - mean) / log_std.exp()
        log_prob = -(0.5 * (noise.square() + LOG_2PI) + log_std).sum(-1)
        entropy = (log_std + 0.5 * (1 + LOG_2PI)).sum(-1)
        return log_prob, entropy.expand(mean.shape[:-1])

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        mean, log_std = self._normal(output)
        return {"mean": mean, "std": log_std.exp().expand(mean.shape)}


class SquashedHead(GaussianHead):
    """Normal actions squashed by tanh into the bounds of the space; the entropy is integrated by quadrature."""

    middle: Tensor
    reach: Tensor
    nodes: Tensor
    weights: Tensor

    def __init__(self, space: spaces.Box, config: HeadConfig) -> None:
        super().__init__(space, config)
        low, high = (torch.from_numpy(np.asarray(x, np.float32).ravel()) for x in (space.low, space.high))
        nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE)
        buffers = {"middle": (low + high) / 2, "reach": (high - low) / 2}
        buffers["nodes"] = torch.from_numpy(nodes).float()
        buffers["weights"] = torch.from_numpy(weights / weights.sum()).float()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        return self._squash(flatten(super().sample(output, mask, generator), self.shape))

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return self._squash(self._normal(output)[0])

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        unit = ((flatten(action, self.shape) - self.middle) / self.reach).clamp(-1 + EDGE, 1 - EDGE)
        inner = torch.atanh(unit)
        log_prob, entropy = super().evaluate(output, mask, unflatten(inner, self.shape))
        mean, log_std = self._normal(output)
        inside = mean.unsqueeze(-2) + log_std.exp().unsqueeze(-2) * self.nodes[:, None]  # [*, nodes, size]
        return log_prob - self._log_slope(inner), entropy + (self._log_slope(inside) * self.weights).sum(-1)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Return mean and standard deviation [*, D] in the environment's units; the latter is that at the middle."""
        inner = super().summary(output, mask)
        mean, std = self.middle + self.reach * torch.tanh(inner["mean"]), self.reach * inner["std"].clamp(max=1.0)
        return {"mean": mean, "std": std}

    def draw(self, output: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sample differentiable actions on the scale [-1, 1] [*, size]; return them and their log-probabilities [*]."""
        mean, log_std = self._normal(output)
        return squashed(mean, log_std.expand(mean.shape), torch.empty_like(mean).normal_(generator=generator))

    def to_unit(self, action: Tensor) -> Tensor:
        """Scale actions [*, …] from the bounds of the space to [-1, 1] [*, size]."""
        return (flatten(action, self.shape) - self.middle) / self.reach

    def _squash(self, inner: Tensor) -> Tensor:
        return unflatten(self.middle + self.reach * torch.tanh(inner), self.shape)

    def _log_slope(self, inner: Tensor) -> Tensor:
        """Return the log-determinant [*] of the squashing at `inner` [*, size]."""
        return (log_tanh_slope(inner) + self.reach.log()).sum(-1)


ActionHead = CategoricalHead | MultiCategoricalHead | BernoulliHead | GaussianHead


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return samples of normals [*, size], squashed by tanh, and their log-probabilities [*]."""
    if has_kernels(mean):
        from cadenza.nets.fused import squash

        return squash(mean, log_std, noise)
    inner = mean + log_std.exp() * noise
    density = 0.5 * (noise.square() + LOG_2PI) + log_std + log_tanh_slope(inner)
    return torch.tanh(inner), -density.sum(-1)


def log_tanh_slope(x: Tensor) -> Tensor:
    """Return log(1 - tanh(x)^2), computed without cancellation."""
    return 2 * (math.log(2) - x - nn.functional.softplus(-2 * x))


def unflatten(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return x [*, F] as [*, *shape]."""
    return x.reshape(*x.shape[:-1], *shape)


def flatten(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return x [*, *shape] as [*, F]."""
    return x.reshape(*x.shape[: x.dim() - len(shape)], -1)


def action_head(space: spaces.Space[Any], config: HeadConfig) -> ActionHead:
    """Return the head for a space of actions, or the one of yours; refuse a kind of space that has none."""
    if config.name != "auto":
        from cadenza.nets.own_parts import own_head

        head: ActionHead = own_head(space, config)
        return head
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space)
    if isinstance(space, spaces.Box):
        return SquashedHead(space, config) if config.squash else GaussianHead(space, config)
    raise ConfigError(f"no action head for {space}")
