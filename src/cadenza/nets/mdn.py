"""Dynamics models of a latent space: an RNN that predicts a mixture of normals, the M of World Models, and an MLP.

Ha and Schmidhuber 2018, after Bishop 1994 and Graves 2013. The deterministic MLP has the same interface. Letters in
shapes: Z numbers of a latent, K normals of a mixture, H hidden units.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cadenza.nets.mlp import ACTIVATIONS
from cadenza.types import LatentMemory

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class DynamicsState(NamedTuple):
    """The state of a dynamics model."""

    h: Tensor  # [*, H] hidden state, an input of controllers
    c: Tensor  # [*, …] cell state of the RNN; the last latent for the MLP


class Prediction(NamedTuple):
    """A prediction of the next step."""

    logits: Tensor  # [*, Z, K] of the mixture weights; each number has its own mixture
    mean: Tensor  # [*, Z, K]
    log_std: Tensor  # [*, Z, K]
    reward: Tensor  # [*] for arriving there
    end: Tensor  # [*] logits of the end of the episode there

    def log_prob(self, z: Tensor) -> Tensor:
        """Return log-densities [*, Z] of latents [*, Z]."""
        error = (z.unsqueeze(-1) - self.mean) * torch.exp(-self.log_std)
        component = -0.5 * error.square() - self.log_std - HALF_LOG_2PI
        return torch.logsumexp(self.logits.log_softmax(-1) + component, -1)

    def sample(self, noise: DreamNoise, temperature: float) -> Tensor:
        """Sample latents [*, Z]; a higher temperature flattens the weights and widens the normals."""
        component = (self.logits / temperature - torch.log(-torch.log(noise.uniform))).argmax(-1, keepdim=True)
        mean, log_std = (x.gather(-1, component).squeeze(-1) for x in (self.mean, self.log_std))
        return mean + math.sqrt(temperature) * log_std.exp() * noise.normal

    def expectation(self) -> Tensor:
        """Return the mean [*, Z] of the mixture."""
        return (self.logits.softmax(-1) * self.mean).sum(-1)


class DreamNoise(NamedTuple):
    """The noise for `Prediction.sample`."""

    uniform: Tensor  # [*, Z, K] in [0, 1)
    normal: Tensor  # [*, Z]

    @staticmethod
    def sample(count: int, latent: int, mixtures: int, generator: torch.Generator) -> DreamNoise:
        """Draw noise for `count` predictions with `latent` numbers and `mixtures` normals each."""
        device = generator.device
        uniform = torch.rand(count, latent, mixtures, generator=generator, device=device)
        return DreamNoise(uniform, torch.randn(count, latent, generator=generator, device=device))


class MixtureRNN(nn.Module):
    """An LSTM over latents and actions; a linear layer predicts the next step from its hidden state."""

    def __init__(self, latent: int, actions: int, hidden: int, mixtures: int, min_std: float = 0.0) -> None:
        super().__init__()
        self.latent, self.hidden, self.mixtures = latent, hidden, mixtures
        self.min_log_std = math.log(min_std) if min_std else None
        self.cell = nn.LSTMCell(latent + actions, hidden)
        with torch.no_grad():
            self.cell.bias_hh[hidden : 2 * hidden] += 1.0  # forget gates are open at first
        self.out = nn.Linear(hidden, 3 * latent * mixtures + 2)

    def initial(self, count: int) -> DynamicsState:
        """Return the state [count, …] at the start of an episode."""
        zeros = self.out.weight.new_zeros(count, self.hidden)
        return DynamicsState(zeros, zeros)

    def step(self, z: Tensor, action: Tensor, before: DynamicsState) -> DynamicsState:
        """Return the state after a latent z [B, Z] and an action [B, A]."""
        return DynamicsState(*self.cell(torch.cat([z, action], -1), tuple(before)))

    def predict(self, state: DynamicsState) -> Prediction:
        """Predict the step after a state [*, …]."""
        out = self.out(state.h)
        mixture = out[..., :-2].view(*out.shape[:-1], 3, self.latent, self.mixtures)
        logits, mean, log_std = mixture.unbind(-3)
        if self.min_log_std is not None:  # a soft minimum, so that gradients are not zero below it
            log_std = self.min_log_std + nn.functional.softplus(log_std - self.min_log_std)
        return Prediction(logits, mean, log_std, reward=out[..., -2], end=out[..., -1])


class DeterministicMLP(nn.Module):
    """An MLP from a latent and an action to the change of the latent; it has no memory."""

    mixtures = 1

    def __init__(self, latent: int, actions: int, hidden: int, layers: int = 2) -> None:
        super().__init__()
        self.latent, self.hidden = latent, hidden
        sizes = [latent + actions, *[hidden] * layers]
        stack: list[nn.Module] = []
        for before, size in pairwise(sizes):
            stack += [nn.Linear(before, size), ACTIVATIONS["silu"]()]
        self.net = nn.Sequential(*stack)
        self.out = nn.Linear(hidden, latent + 2)

    def initial(self, count: int) -> DynamicsState:
        """Return the state [count, …] at the start of an episode."""
        weight = self.out.weight
        return DynamicsState(weight.new_zeros(count, self.hidden), weight.new_zeros(count, self.latent))

    def step(self, z: Tensor, action: Tensor, before: DynamicsState) -> DynamicsState:
        """Return the state after a latent z [B, Z] and an action [B, A]; `before` has no effect."""
        return DynamicsState(self.net(torch.cat([z, action], -1)), z)

    def predict(self, state: DynamicsState) -> Prediction:
        """Predict the step after a state [*, …] as one normal of deviation 1, whose log-density is a squared error."""
        out = self.out(state.h)
        mean = (state.c + out[..., :-2]).unsqueeze(-1)
        zeros = torch.zeros_like(mean)
        return Prediction(zeros, mean, zeros, reward=out[..., -2], end=out[..., -1])


def unroll(model: LatentMemory, z: Tensor, action: Tensor, first: Tensor) -> DynamicsState:
    """Run the model over sequences [T, B, …], resetting it where `first` [T, B]; return the states after each step."""
    state, states = model.initial(z.shape[1]), []
    for t in range(len(z)):
        keep = ~first[t].unsqueeze(-1)
        state = model.step(z[t], action[t], DynamicsState(state.h * keep, state.c * keep))
        states.append(state)
    return DynamicsState(*(torch.stack(parts) for parts in zip(*states, strict=True)))
