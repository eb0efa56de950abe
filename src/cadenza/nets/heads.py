"""From a network's output to actions and their probabilities, per action space; no distribution objects."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.errors import ConfigError

LOG_2PI = math.log(2 * math.pi)


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

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(action [B], its log-probability [B])"""
        log_probs = self.log_probs(output, mask)
        # the smallest of independent exponential waiting times with rates p falls on i with probability p_i
        waiting = torch.empty_like(log_probs).exponential_(generator=generator)
        choice = (log_probs.exp() / waiting).argmax(-1, keepdim=True)
        return choice.squeeze(-1) + self.start, log_probs.gather(-1, choice).squeeze(-1)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return self.log_probs(output, mask).argmax(-1) + self.start

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probability [B], entropy [B])"""
        log_probs = self.log_probs(output, mask)
        log_prob = log_probs.gather(-1, (action - self.start).long().unsqueeze(-1)).squeeze(-1)
        return log_prob, -(log_probs.exp() * log_probs).sum(-1)


class GaussianHead(nn.Module):
    """Independent normal actions with a learned standard deviation that does not depend on the state."""

    def __init__(self, space: spaces.Box, log_std_init: float) -> None:
        super().__init__()
        self.shape = space.shape
        self.outputs = math.prod(space.shape)
        self.log_std = nn.Parameter(torch.full((self.outputs,), log_std_init))

    def sample(self, output: Tensor, mask: Tensor | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(action [B, *shape], its log-probability [B])"""
        noise = torch.empty_like(output).normal_(generator=generator)
        action = output + self.log_std.exp() * noise
        return action.reshape(*action.shape[:-1], *self.shape), self._log_density(noise)

    def mode(self, output: Tensor, mask: Tensor | None) -> Tensor:
        return output.reshape(*output.shape[:-1], *self.shape)

    def evaluate(self, output: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probability [B], entropy [B])"""
        noise = (action.reshape(output.shape) - output) / self.log_std.exp()
        entropy = (self.log_std + 0.5 * (1 + LOG_2PI)).sum()
        return self._log_density(noise), entropy.expand(output.shape[:-1])

    def _log_density(self, noise: Tensor) -> Tensor:
        return -(0.5 * (noise.square() + LOG_2PI) + self.log_std).sum(-1)


def action_head(space: spaces.Space[Any], log_std_init: float = 0.0) -> CategoricalHead | GaussianHead:
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.Box):
        return GaussianHead(space, log_std_init)
    raise ConfigError(f"no action head for {space}")
