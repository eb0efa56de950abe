"""The recurrent state-space model (Hafner et al. 2019): what is remembered, and a guess at what cannot be known.

A state has two parts: `deter` [*, D], which a recurrent cell computes, and `stoch`, sampled: S numbers (Gaussian), or S
variables of C classes, one-hot and flattened. The posterior knows the observation, the prior does not. All noise is
given by the caller, one step is a small pure function, and what does not depend on the state is computed for all steps
of a sequence at once. Letters in shapes: T steps, B sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.nets.dense import Style, between, linear, start
from cadenza.ops.latents import kl_categorical, kl_gaussian, probabilities, sample_categorical, unimix

Parameters = tuple[Tensor, ...]  # (log probabilities [*, S, C],) or (mean [*, S], std [*, S])


class RSSMState(NamedTuple):
    deter: Tensor  # [*, D]
    stoch: Tensor  # [*, Z]

    def features(self) -> Tensor:
        return torch.cat([self.stoch, self.deter], -1)

    def detach(self) -> RSSMState:
        return RSSMState(self.deter.detach(), self.stoch.detach())


class ObservedStates(NamedTuple):
    """A sequence that was looked at, [T, B, …]."""

    state: RSSMState
    post: Parameters
    prior: Parameters


class RSSM(nn.Module):
    def __init__(self, actions: int, embedding: int, config: WorldModelConfig) -> None:
        super().__init__()
        self.config = config
        style = Style(config.norm, config.activation)
        hidden, deter = config.hidden, config.deter
        outputs = config.stoch * (config.classes if config.latent == "categorical" else 2)
        if config.cell == "block":
            self.cell: BlockCell | DenseCell = BlockCell(config.stoch_size, actions, config, style)
        else:
            self.cell = DenseCell(config.stoch_size, actions, config, style)
        # the first layer of the posterior is two: what is seen is known for all steps before the first is made
        self.post_deter = nn.Linear(deter, hidden, bias=False)
        self.post_embedding = nn.Linear(embedding, hidden)
        for part in (self.post_deter, self.post_embedding):
            start(part.weight, deter + embedding, hidden, style)
        nn.init.zeros_(self.post_embedding.bias)
        self.post_between = between(hidden, style)
        self.post_out = linear(hidden, outputs, style)
        layers: list[nn.Module] = []
        for index in range(config.prior_layers):
            layers += [linear(hidden if index else deter, hidden, style), between(hidden, style)]
        self.prior_hidden = nn.Sequential(*layers)
        self.prior_out = linear(hidden if config.prior_layers else deter, outputs, style)

    def initial(self, *batch: int) -> RSSMState:
        device = self.post_out.weight.device
        return RSSMState(
            *(torch.zeros(*batch, size, device=device) for size in (self.config.deter, self.config.stoch_size))
        )

    @property
    def divergence(self) -> Callable[..., Tensor]:
        return kl_categorical if self.config.latent == "categorical" else kl_gaussian

    def noise(self, *batch: int, generator: torch.Generator) -> Tensor:
        """What `sample` needs: uniform for classes, standard normal for numbers, [*batch, S]."""
        blank = torch.empty(*batch, self.config.stoch, device=generator.device)
        gaussian = self.config.latent == "gaussian"
        return blank.normal_(generator=generator) if gaussian else blank.uniform_(generator=generator)

    def parameters_of(self, output: Tensor) -> Parameters:
        """The distribution that a last layer's output stands for."""
        config = self.config
        if config.latent == "categorical":
            logits = self._by_variable(output)
            return (unimix(logits, config.unimix) if config.unimix else logits.log_softmax(-1),)
        mean, raw = output.chunk(2, -1)
        std = functional.softplus(raw) if config.std == "softplus" else 2 * torch.sigmoid(raw / 2)
        return mean, std + config.min_std

    def sample(self, output: Tensor, noise: Tensor) -> Tensor:
        """[*, Z] from what that output stands for, and gradients flow back to it."""
        if self.config.latent == "categorical":
            return sample_categorical(probabilities(self._by_variable(output), self.config.unimix), noise).flatten(-2)
        mean, std = self.parameters_of(output)
        return mean + std * noise

    def _by_variable(self, output: Tensor) -> Tensor:
        """[*, Z] to [*, S, C]"""
        return output.view(*output.shape[:-1], self.config.stoch, self.config.classes)

    def prior(self, deter: Tensor) -> Tensor:
        """The raw output of the guess."""
        output: Tensor = self.prior_out(self.prior_hidden(deter))
        return output

    def observe(
        self, embedding: Tensor, action: Tensor, first: Tensor, state: RSSMState, noise: Tensor
    ) -> ObservedStates:
        """Take in what was seen [T, B, E]; `action` [T, B, A] is the one before, `first` [T, B] begins an episode.

        An episode that begins knows neither a state nor an action before it.
        """
        keep = (~first).to(embedding.dtype).unsqueeze(-1)
        pushes = self.cell.prepare(bounded(action) * keep)
        seen = self.post_embedding(embedding)
        deters, stochs, outputs = [], [], []
        for t in range(len(embedding)):
            state, output = self.observe_step(state, pushes[t], seen[t], keep[t], noise[t])
            deters.append(state.deter)
            stochs.append(state.stoch)
            outputs.append(output)
        deter = torch.stack(deters)
        post = self.parameters_of(torch.stack(outputs))
        return ObservedStates(RSSMState(deter, torch.stack(stochs)), post, self.parameters_of(self.prior(deter)))

    def observe_one(
        self, embedding: Tensor, action: Tensor, first: Tensor, state: RSSMState, noise: Tensor
    ) -> RSSMState:
        """The same for a single step [B, …], without the guess at it."""
        keep = (~first).to(embedding.dtype).unsqueeze(-1)
        push = self.cell.prepare(bounded(action) * keep)
        return self.observe_step(state, push, self.post_embedding(embedding), keep, noise)[0]

    def observe_step(
        self, state: RSSMState, push: Tensor, seen: Tensor, keep: Tensor, noise: Tensor
    ) -> tuple[RSSMState, Tensor]:
        """One step: the state [B, …], and the posterior's raw output."""
        deter = self.cell(state.deter * keep, state.stoch * keep, push)
        output = self.post_out(self.post_between(self.post_deter(deter) + seen))
        return RSSMState(deter, self.sample(output, noise)), output

    def imagine_step(self, state: RSSMState, action: Tensor, noise: Tensor) -> RSSMState:
        """Where an action leads, unseen."""
        deter = self.cell(state.deter, state.stoch, self.cell.prepare(bounded(action)))
        return RSSMState(deter, self.sample(self.prior(deter), noise))


class DenseCell(nn.Module):
    """One layer, then a GRU as Cho et al. have it (PlaNet, Dreamer v1), or one with a layer norm (Dreamer v2)."""

    def __init__(self, stoch: int, actions: int, config: WorldModelConfig, style: Style) -> None:
        super().__init__()
        self.from_stoch = nn.Linear(stoch, config.hidden, bias=False)
        self.from_action = nn.Linear(actions, config.hidden)
        for part in (self.from_stoch, self.from_action):
            start(part.weight, stoch + actions, config.hidden, style)
        nn.init.zeros_(self.from_action.bias)
        self.between = between(config.hidden, style)
        self.gru: nn.GRUCell | NormGRU
        self.gru = nn.GRUCell(config.hidden, config.deter) if config.cell == "gru" else NormGRU(config, style)
        if isinstance(self.gru, nn.GRUCell):
            nn.init.xavier_uniform_(self.gru.weight_ih)
            nn.init.orthogonal_(self.gru.weight_hh)
            nn.init.zeros_(self.gru.bias_ih)
            nn.init.zeros_(self.gru.bias_hh)

    def prepare(self, action: Tensor) -> Tensor:
        """What the action alone decides, for any number of steps."""
        push: Tensor = self.from_action(action)
        return push

    def forward(self, deter: Tensor, stoch: Tensor, push: Tensor) -> Tensor:
        x = self.between(self.from_stoch(stoch) + push)
        after: Tensor = self.gru(x, deter)
        return after


class NormGRU(nn.Module):
    """A GRU whose gates are normed together, with a memory that is slow to change at first."""

    def __init__(self, config: WorldModelConfig, style: Style) -> None:
        super().__init__()
        self.gates = linear(config.hidden + config.deter, 3 * config.deter, style)
        self.norm = nn.LayerNorm(3 * config.deter, eps=1e-3)

    def forward(self, x: Tensor, deter: Tensor) -> Tensor:
        reset, candidate, update = self.norm(self.gates(torch.cat([x, deter], -1))).chunk(3, -1)
        return gated(reset, candidate, update, deter)


class BlockCell(nn.Module):
    """Dreamer v3's: memory, sample and action each through a layer, then a GRU that is block-diagonal in its memory.

    Every block sees its own part of the memory and all three inputs. The weights of the inputs, side by side over all
    blocks, are one plain matrix; only those of the memory are kept by block [G, in, out].
    """

    def __init__(self, stoch: int, actions: int, config: WorldModelConfig, style: Style) -> None:
        super().__init__()
        deter, hidden, self.blocks = config.deter, config.hidden, config.blocks
        self.from_deter = nn.Sequential(linear(deter, hidden, style), between(hidden, style))
        self.from_stoch = nn.Sequential(linear(stoch, hidden, style), between(hidden, style))
        self.from_action = nn.Sequential(linear(actions, hidden, style), between(hidden, style))
        size = deter // self.blocks
        self.mix_memory = nn.Parameter(torch.empty(self.blocks, size, size))
        self.mix_deter, self.mix_stoch = (nn.Linear(hidden, deter, bias=False) for _ in range(2))
        self.mix_action = nn.Linear(hidden, deter)
        # as the authors count it, the inputs are those of all blocks together, though each sees its own alone
        for weight in (self.mix_memory, self.mix_deter.weight, self.mix_stoch.weight, self.mix_action.weight):
            start(weight, deter + 3 * hidden * self.blocks, deter, style)
        nn.init.zeros_(self.mix_action.bias)
        self.mix_between = between(deter, style)
        self.gates = nn.Parameter(torch.empty(self.blocks, size, 3 * size))
        start(self.gates, deter, 3 * deter, style)
        self.gate_bias = nn.Parameter(torch.zeros(self.blocks, 1, 3 * size))

    def prepare(self, action: Tensor) -> Tensor:
        """What the action alone decides, for any number of steps."""
        push: Tensor = self.mix_action(self.from_action(action))
        return push

    def forward(self, deter: Tensor, stoch: Tensor, push: Tensor) -> Tensor:
        memory = self._split(deter)
        own = torch.bmm(memory, self.mix_memory)
        x = self._join(own) + self.mix_deter(self.from_deter(deter)) + self.mix_stoch(self.from_stoch(stoch)) + push
        gates = torch.baddbmm(self.gate_bias, self._split(self.mix_between(x)), self.gates)
        reset, candidate, update = gates.chunk(3, -1)
        return self._join(gated(reset, candidate, update, memory))

    def _split(self, x: Tensor) -> Tensor:
        """[B, D] to [G, B, D / G]"""
        return x.view(len(x), self.blocks, -1).transpose(0, 1)

    def _join(self, x: Tensor) -> Tensor:
        """[G, B, D / G] to [B, D]"""
        return x.transpose(0, 1).flatten(1)


def gated(reset: Tensor, candidate: Tensor, update: Tensor, deter: Tensor) -> Tensor:
    candidate = torch.tanh(torch.sigmoid(reset) * candidate)
    # where gates are computed in half precision, the memory is not kept in it
    return torch.lerp(deter, candidate.to(deter.dtype), torch.sigmoid(update - 1).to(deter.dtype))


def bounded(action: Tensor) -> Tensor:
    """Actions no larger than 1: what lies outside of the bounds does what the bound does."""
    return action / action.detach().abs().clamp(min=1)
