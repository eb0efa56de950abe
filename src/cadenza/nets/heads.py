"""From a network's output to actions and their probabilities, per action space; no distribution objects.

Every head has `outputs` (how many numbers it wants), and on outputs [*, outputs]: `sample` and `mode` (the most likely)
-> action [*, …], `evaluate(action)` -> (its log-probability [*], the entropy [*]), `summary` -> the distribution:
`probs` [*, n], or `mean` and `std` [*, D].
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

LOG_2PI = math.log(2 * math.pi)
EDGE = 1e-6  # how close to its bound a squashed action is taken to be, at most
QUADRATURE = 16  # nodes


class CategoricalHead(nn.Module):
    """One of n actions; `mask` (True: allowed) removes the others."""

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
    """Several choices at once, independent of each other; masks stand side by side."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self.shape = space.nvec.shape
        counts, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        self.parts = [CategoricalHead(spaces.Discrete(n, start=at)) for n, at in zip(counts, starts, strict=True)]
        self.sizes = [part.outputs for part in self.parts]
        self.outputs = sum(self.sizes)

    def _columns(self, output: Tensor, mask: Tensor | None) -> list[tuple[CategoricalHead, Tensor, Tensor | None]]:
        masks: Any = [None] * len(self.parts) if mask is None else torch.split(mask, self.sizes, -1)
        return list(zip(self.parts, torch.split(output, self.sizes, -1), masks, strict=True))

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        drawn = [part.sample(own, allowed, generator) for part, own, allowed in self._columns(output, mask)]
        return shaped(torch.stack(drawn, -1), self.shape)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        chosen = [part.mode(own, allowed) for part, own, allowed in self._columns(output, mask)]
        return shaped(torch.stack(chosen, -1), self.shape)

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        taken = flat(action, self.shape).unbind(-1)
        columns = zip(self._columns(output, mask), taken, strict=True)
        known = [part.evaluate(own, allowed, one) for (part, own, allowed), one in columns]
        return torch.stack([log_prob for log_prob, _ in known]).sum(0), torch.stack([h for _, h in known]).sum(0)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        parts = [part.log_probs(own, allowed).exp() for part, own, allowed in self._columns(output, mask)]
        return {"probs": torch.cat(parts, -1)}


class BernoulliHead(nn.Module):
    """Several switches, independent of each other."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.shape = space.shape
        self.outputs = math.prod(space.shape)

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        draw = torch.empty_like(output).uniform_(generator=generator)
        return shaped((draw < torch.sigmoid(output)).to(torch.int8), self.shape)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return shaped((output > 0).to(torch.int8), self.shape)

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        entropy = nn.functional.binary_cross_entropy_with_logits(output, torch.sigmoid(output), reduction="none")
        on = flat(action, self.shape).float()
        return -nn.functional.binary_cross_entropy_with_logits(output, on, reduction="none").sum(-1), entropy.sum(-1)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        return {"probs": torch.sigmoid(output)}


class GaussianHead(nn.Module):
    """Independent normal actions; the standard deviation is a parameter, or half of the output."""

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
        """(mean, log standard deviation)"""
        if self.config.std == "parameter":
            return output, self.log_std
        mean, log_std = output.chunk(2, -1)
        return mean, (log_std + self.config.log_std_init).clamp(-20, 2)

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        mean, log_std = self._normal(output)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return shaped(mean + log_std.exp() * noise, self.shape)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return shaped(self._normal(output)[0], self.shape)

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._normal(output)
        noise = (flat(action, self.shape) - mean) / log_std.exp()
        log_prob = -(0.5 * (noise.square() + LOG_2PI) + log_std).sum(-1)
        entropy = (log_std + 0.5 * (1 + LOG_2PI)).sum(-1)
        return log_prob, entropy.expand(mean.shape[:-1])

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        mean, log_std = self._normal(output)
        return {"mean": mean, "std": log_std.exp().expand(mean.shape)}


class SquashedHead(GaussianHead):
    """Normal numbers through tanh into the bounds of the space; the mean of its entropy's integral by quadrature."""

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
        return self._squash(flat(super().sample(output, mask, generator), self.shape))

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return self._squash(self._normal(output)[0])

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        unit = ((flat(action, self.shape) - self.middle) / self.reach).clamp(-1 + EDGE, 1 - EDGE)
        inner = torch.atanh(unit)
        log_prob, entropy = super().evaluate(output, mask, shaped(inner, self.shape))
        mean, log_std = self._normal(output)
        inside = mean.unsqueeze(-2) + log_std.exp().unsqueeze(-2) * self.nodes[:, None]  # [*, nodes, size]
        return log_prob - self._stretch(inner), entropy + (self._stretch(inside) * self.weights).sum(-1)

    def summary(self, output: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Return the standard deviation as it is around the middle of the bounds."""
        inner = super().summary(output, mask)
        mean, std = self.middle + self.reach * torch.tanh(inner["mean"]), self.reach * inner["std"].clamp(max=1.0)
        return {"mean": mean, "std": std}

    def draw(self, output: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions on the unit scale [*, size] that gradients flow through, and their log-probability there [*]."""
        mean, log_std = self._normal(output)
        noise = torch.empty_like(mean).normal_(generator=generator)
        inner = mean + log_std.exp() * noise
        log_slope = 2 * (math.log(2) - inner - nn.functional.softplus(-2 * inner))
        return torch.tanh(inner), -(0.5 * (noise.square() + LOG_2PI) + log_std + log_slope).sum(-1)

    def to_unit(self, action: Tensor) -> Tensor:
        """From the bounds of the space to [-1, 1], [*, size]."""
        return (flat(action, self.shape) - self.middle) / self.reach

    def _squash(self, inner: Tensor) -> Tensor:
        return shaped(self.middle + self.reach * torch.tanh(inner), self.shape)

    def _stretch(self, inner: Tensor) -> Tensor:
        """Log of how much the squashing stretches volume there: log reach (1 - tanh^2), without cancellation."""
        log_slope = 2 * (math.log(2) - inner - nn.functional.softplus(-2 * inner))
        return (log_slope + self.reach.log()).sum(-1)


ActionHead = CategoricalHead | MultiCategoricalHead | BernoulliHead | GaussianHead


def shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[*, F] to [*, *shape]"""
    return x.reshape(*x.shape[:-1], *shape)


def flat(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[*, *shape] to [*, F]"""
    return x.reshape(*x.shape[: x.dim() - len(shape)], -1)


def action_head(space: spaces.Space[Any], config: HeadConfig) -> ActionHead:
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space)
    if isinstance(space, spaces.Box):
        return SquashedHead(space, config) if config.squash else GaussianHead(space, config)
    raise ConfigError(f"no action head for {space}")
