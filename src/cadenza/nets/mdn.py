"""Models of what comes next in a latent space: a recurrent one that says a mixture of normals, the M of World Models.

Ha and Schmidhuber 2018, after Bishop 1994 and Graves 2013. Beside it a plain deterministic one with the same face.
Letters in shapes: Z numbers of a latent, K normals of a mixture, H units of a memory.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cadenza.nets.mlp import ACTIVATIONS

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class DynamicsState(NamedTuple):
    """What a model knows after some steps; `h` is what a controller may see of it."""

    h: Tensor  # [*, H]
    c: Tensor  # [*, …]


class Prediction(NamedTuple):
    """What is said of the next moment."""

    logits: Tensor  # [*, Z, K] of the weight of each normal, for each number by itself
    mean: Tensor  # [*, Z, K]
    log_std: Tensor  # [*, Z, K]
    reward: Tensor  # [*] earned on the way there
    end: Tensor  # [*] logits of the episode's end there

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-densities [*, Z] of latents [*, Z]."""
        off = (z.unsqueeze(-1) - self.mean) * torch.exp(-self.log_std)
        each = -0.5 * off.square() - self.log_std - HALF_LOG_2PI
        return torch.logsumexp(self.logits.log_softmax(-1) + each, -1)

    def sample(self, noise: DreamNoise, temperature: float) -> Tensor:
        """Latents [*, Z]; a higher temperature evens out the weights and widens the normals."""
        chosen = (self.logits / temperature - torch.log(-torch.log(noise.uniform))).argmax(-1, keepdim=True)
        mean, log_std = (x.gather(-1, chosen).squeeze(-1) for x in (self.mean, self.log_std))
        return mean + math.sqrt(temperature) * log_std.exp() * noise.normal

    def expectation(self) -> Tensor:
        """The mean [*, Z] of the whole mixture."""
        return (self.logits.softmax(-1) * self.mean).sum(-1)


class DreamNoise(NamedTuple):
    """All randomness of a draw."""

    uniform: Tensor  # [*, Z, K] in [0, 1)
    normal: Tensor  # [*, Z]

    @staticmethod
    def sample(count: int, latent: int, mixtures: int, generator: torch.Generator) -> DreamNoise:
        device = generator.device
        uniform = torch.rand(count, latent, mixtures, generator=generator, device=device)
        return DreamNoise(uniform, torch.randn(count, latent, generator=generator, device=device))


class MixtureRNN(nn.Module):
    """An LSTM over what was seen and done; a linear layer makes its guess of the memory."""

    def __init__(self, latent: int, actions: int, hidden: int, mixtures: int, min_std: float = 0.0) -> None:
        super().__init__()
        self.latent, self.hidden, self.mixtures = latent, hidden, mixtures
        self.least = math.log(min_std) if min_std else None
        self.cell = nn.LSTMCell(latent + actions, hidden)
        with torch.no_grad():
            self.cell.bias_hh[hidden : 2 * hidden] += 1.0  # remembers unless it learns to forget
        self.out = nn.Linear(hidden, 3 * latent * mixtures + 2)

    def initial(self, count: int) -> DynamicsState:
        zeros = self.out.weight.new_zeros(count, self.hidden)
        return DynamicsState(zeros, zeros)

    def step(self, z: Tensor, action: Tensor, before: DynamicsState) -> DynamicsState:
        return DynamicsState(*self.cell(torch.cat([z, action], -1), tuple(before)))

    def predict(self, memory: DynamicsState) -> Prediction:
        out = self.out(memory.h)
        mixture = out[..., :-2].view(*out.shape[:-1], 3, self.latent, self.mixtures)
        logits, mean, log_std = mixture.unbind(-3)
        if self.least is not None:  # smoothly, so that what lies below can find its way back
            log_std = self.least + nn.functional.softplus(log_std - self.least)
        return Prediction(logits, mean, log_std, reward=out[..., -2], end=out[..., -1])


class DeterministicMLP(nn.Module):
    """Layers from what is seen and done to how that changes; nothing before is remembered."""

    mixtures = 1

    def __init__(self, latent: int, actions: int, hidden: int, layers: int = 2) -> None:
        super().__init__()
        self.latent, self.hidden = latent, hidden
        sizes = [latent + actions, *[hidden] * layers]
        stack = [[nn.Linear(a, b), ACTIVATIONS["silu"]()] for a, b in pairwise(sizes)]
        self.net = nn.Sequential(*[layer for pair in stack for layer in pair])
        self.out = nn.Linear(hidden, latent + 2)

    def initial(self, count: int) -> DynamicsState:
        weight = self.out.weight
        return DynamicsState(weight.new_zeros(count, self.hidden), weight.new_zeros(count, self.latent))

    def step(self, z: Tensor, action: Tensor, before: DynamicsState) -> DynamicsState:
        return DynamicsState(self.net(torch.cat([z, action], -1)), z)

    def predict(self, memory: DynamicsState) -> Prediction:
        """One normal of deviation 1: its log-density is a squared error."""
        out = self.out(memory.h)
        mean = (memory.c + out[..., :-2]).unsqueeze(-1)
        zeros = torch.zeros_like(mean)
        return Prediction(zeros, mean, zeros, reward=out[..., -2], end=out[..., -1])


Dynamics = MixtureRNN | DeterministicMLP


def unroll(model: Dynamics, z: Tensor, action: Tensor, first: Tensor) -> DynamicsState:
    """Memories [T, B, …] after each step of sequences [T, B, …], begun anew where an episode does."""
    memory, memories = model.initial(z.shape[1]), []
    for t in range(len(z)):
        kept = ~first[t].unsqueeze(-1)
        memory = model.step(z[t], action[t], DynamicsState(memory.h * kept, memory.c * kept))
        memories.append(memory)
    return DynamicsState(*(torch.stack(parts) for parts in zip(*memories, strict=True)))
