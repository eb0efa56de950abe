"""The recurrent state-space model (Hafner et al. 2019): a deterministic and a stochastic part.

A state has two parts: `deter` [*, D], which a recurrent cell computes, and `stoch` [*, Z], a sample: S numbers
(Gaussian), or S variables of C classes, one-hot and flattened. The posterior is conditioned on the observation, the
prior is not. The caller passes all noise, one step is a small pure function, and what does not depend on the state is
computed for all steps of a sequence at once. Letters in shapes: T steps, B sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.nets.dense import Style, init_weight, linear, norm_and_activation
from cadenza.nets.kernels import has_kernels
from cadenza.nets.rssm_scan import observe_scan, precision
from cadenza.ops.latents import kl_categorical, kl_gaussian, probabilities, sample_categorical, unimix

Parameters = tuple[Tensor, ...]  # (log probabilities [*, S, C],) or (mean [*, S], std [*, S])


class RSSMState(NamedTuple):
    """A latent state."""

    deter: Tensor  # [*, D]
    stoch: Tensor  # [*, Z]

    def features(self) -> Tensor:
        """Return both parts, concatenated [*, Z + D], in the precision that networks are computed in."""
        return torch.cat([self.stoch, self.deter], -1).to(precision(self.deter))

    def detach(self) -> RSSMState:
        """Return the state without its gradients."""
        return RSSMState(self.deter.detach(), self.stoch.detach())


class ObservedStates(NamedTuple):
    """The states of an observed sequence [T, B, …], with posterior and prior."""

    state: RSSMState
    post: Parameters
    prior: Parameters


class RSSM(nn.Module):
    """The model: a recurrent cell, a posterior for embeddings of observations [*, E], and a prior."""

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
        # the first layer of the posterior is in two parts: that of embeddings is computed for all steps at once
        self.post_deter = nn.Linear(deter, hidden, bias=False)
        self.post_embedding = nn.Linear(embedding, hidden)
        for part in (self.post_deter, self.post_embedding):
            init_weight(part.weight, deter + embedding, hidden, style)
        nn.init.zeros_(self.post_embedding.bias)
        self.post_between = norm_and_activation(hidden, style)
        self.post_out = linear(hidden, outputs, style)
        layers: list[nn.Module] = []
        for index in range(config.prior_layers):
            layers += [linear(hidden if index else deter, hidden, style), norm_and_activation(hidden, style)]
        self.prior_hidden = nn.Sequential(*layers)
        self.prior_out = linear(hidden if config.prior_layers else deter, outputs, style)

    def initial(self, *batch: int) -> RSSMState:
        """Return the state [*batch, …] at the start of an episode: zeros."""
        device = self.post_out.weight.device
        return RSSMState(
            *(torch.zeros(*batch, size, device=device) for size in (self.config.deter, self.config.stoch_size))
        )

    @property
    def divergence(self) -> Callable[..., Tensor]:
        """The KL divergence for this kind of latent, a function of `ops/latents.py`."""
        return kl_categorical if self.config.latent == "categorical" else kl_gaussian

    def noise(self, *batch: int, generator: torch.Generator) -> Tensor:
        """Draw noise [*batch, S] for `sample`: uniform for categorical latents, standard normal for Gaussian ones."""
        blank = torch.empty(*batch, self.config.stoch, device=generator.device)
        gaussian = self.config.latent == "gaussian"
        return blank.normal_(generator=generator) if gaussian else blank.uniform_(generator=generator)

    def parameters_of(self, output: Tensor) -> Parameters:
        """Return the parameters of the distribution that an output of prior or posterior encodes."""
        config = self.config
        if config.latent == "categorical":
            logits = self._by_variable(output)
            return (unimix(logits, config.unimix) if config.unimix else logits.log_softmax(-1),)
        mean, raw = output.chunk(2, -1)
        std = functional.softplus(raw) if config.std == "softplus" else 2 * torch.sigmoid(raw / 2)
        return mean, std + config.min_std

    def sample(self, output: Tensor, noise: Tensor) -> Tensor:
        """Sample `stoch` [*, Z] from the distribution of an output, differentiably."""
        if self.config.latent == "categorical":
            return sample_categorical(probabilities(self._by_variable(output), self.config.unimix), noise).flatten(-2)
        mean, std = self.parameters_of(output)
        return mean + std * noise

    def _by_variable(self, output: Tensor) -> Tensor:
        """Return x [*, Z] as [*, S, C]."""
        return output.view(*output.shape[:-1], self.config.stoch, self.config.classes)

    def prior(self, deter: Tensor) -> Tensor:
        """Return the output of the prior for `deter` [*, D]."""
        output: Tensor = self.prior_out(self.prior_hidden(deter))
        return output

    def observe(
        self, embedding: Tensor, action: Tensor, first: Tensor, state: RSSMState, noise: Tensor
    ) -> ObservedStates:
        """Compute the states of a sequence of embeddings [T, B, E], from the state [B, …] before it.

        `action` [T, B, A] is the action before each step. Where an episode starts (`first` [T, B]), the state and the
        action before it are replaced by zeros.
        """
        keep = (~first).to(embedding.dtype).unsqueeze(-1)
        action_inputs = self.cell.prepare(clip_action(action) * keep)
        embedded = self.post_embedding(embedding)
        if self.has_kernels(state):
            deter, stoch, output = observe_scan(self, embedded, action_inputs, keep.squeeze(-1), *state, noise)
            return ObservedStates(
                RSSMState(deter, stoch), self.parameters_of(output), self.parameters_of(self.prior(deter))
            )
        deters, stochs, outputs = [], [], []
        for t in range(len(embedding)):
            state, output = self.observe_step(state, action_inputs[t], embedded[t], keep[t], noise[t])
            deters.append(state.deter)
            stochs.append(state.stoch)
            outputs.append(output)
        deter = torch.stack(deters)
        post = self.parameters_of(torch.stack(outputs))
        return ObservedStates(RSSMState(deter, torch.stack(stochs)), post, self.parameters_of(self.prior(deter)))

    def has_kernels(self, state: RSSMState) -> bool:
        """Return whether `rssm_scan.py` computes this model, that of Dreamer v3, from such a state."""
        style = (self.config.cell, self.config.latent, self.config.norm, self.config.activation)
        is_v3 = type(self) is RSSM and style == ("block", "categorical", *Style())
        return is_v3 and has_kernels(state.deter) and not state.deter.requires_grad

    def observe_one(
        self, embedding: Tensor, action: Tensor, first: Tensor, state: RSSMState, noise: Tensor
    ) -> RSSMState:
        """Return the state after one step [B, …], as `observe` computes it, without the prior."""
        keep = (~first).to(embedding.dtype).unsqueeze(-1)
        action_input = self.cell.prepare(clip_action(action) * keep)
        return self.observe_step(state, action_input, self.post_embedding(embedding), keep, noise)[0]

    def observe_step(
        self, state: RSSMState, action_input: Tensor, embedded: Tensor, keep: Tensor, noise: Tensor
    ) -> tuple[RSSMState, Tensor]:
        """Return the next state [B, …] and the output of the posterior.

        `action_input` and `embedded` are the contributions of action and embedding, computed beforehand.
        """
        deter = self.cell(state.deter * keep, state.stoch * keep, action_input)
        output = self.post_out(self.post_between(self.post_deter(deter) + embedded))
        return RSSMState(deter, self.sample(output, noise)), output

    def prepare(self, action: Tensor) -> Tensor:
        """Return the contribution of actions [*, A] to the next state."""
        return self.cell.prepare(clip_action(action))

    def imagine_step(self, state: RSSMState, action: Tensor, noise: Tensor) -> RSSMState:
        """Return the next state [B, …] after an action, sampled from the prior."""
        deter = self.cell(state.deter, state.stoch, self.prepare(action))
        return RSSMState(deter, self.sample(self.prior(deter), noise))


class DenseCell(nn.Module):
    """A dense layer and a GRU: that of Cho et al. 2014 (PlaNet, Dreamer v1), or one with layer norm (Dreamer v2)."""

    def __init__(self, stoch: int, actions: int, config: WorldModelConfig, style: Style) -> None:
        super().__init__()
        self.from_stoch = nn.Linear(stoch, config.hidden, bias=False)
        self.from_action = nn.Linear(actions, config.hidden)
        for part in (self.from_stoch, self.from_action):
            init_weight(part.weight, stoch + actions, config.hidden, style)
        nn.init.zeros_(self.from_action.bias)
        self.between = norm_and_activation(config.hidden, style)
        self.gru: nn.GRUCell | NormGRU
        self.gru = nn.GRUCell(config.hidden, config.deter) if config.cell == "gru" else NormGRU(config, style)
        if isinstance(self.gru, nn.GRUCell):
            nn.init.xavier_uniform_(self.gru.weight_ih)
            nn.init.orthogonal_(self.gru.weight_hh)
            nn.init.zeros_(self.gru.bias_ih)
            nn.init.zeros_(self.gru.bias_hh)

    def prepare(self, action: Tensor) -> Tensor:
        """Return the contribution of actions [*, A], for any number of steps."""
        action_input: Tensor = self.from_action(action)
        return action_input

    def forward(self, deter: Tensor, stoch: Tensor, action_input: Tensor) -> Tensor:
        """Return the next `deter` [B, D]."""
        x = self.between(self.from_stoch(stoch) + action_input)
        after: Tensor = self.gru(x, deter)
        return after


class NormGRU(nn.Module):
    """A GRU with one layer norm over all gates, whose initial update rate is small."""

    def __init__(self, config: WorldModelConfig, style: Style) -> None:
        super().__init__()
        self.gates = linear(config.hidden + config.deter, 3 * config.deter, style)
        self.norm = nn.LayerNorm(3 * config.deter, eps=1e-3)

    def forward(self, x: Tensor, deter: Tensor) -> Tensor:
        reset, candidate, update = self.norm(self.gates(torch.cat([x, deter], -1))).chunk(3, -1)
        return gru_update(reset, candidate, update, deter)


class BlockCell(nn.Module):
    """The cell of Dreamer v3: a layer for each of `deter`, `stoch` and action, and a block-diagonal GRU.

    A block gets its part of `deter` and all three inputs. The weights of the inputs for all blocks form one matrix;
    only those of the recurrent part are by block [G, in, out].
    """

    def __init__(self, stoch: int, actions: int, config: WorldModelConfig, style: Style) -> None:
        super().__init__()
        deter, hidden, self.blocks = config.deter, config.hidden, config.blocks
        self.from_deter = nn.Sequential(linear(deter, hidden, style), norm_and_activation(hidden, style))
        self.from_stoch = nn.Sequential(linear(stoch, hidden, style), norm_and_activation(hidden, style))
        self.from_action = nn.Sequential(linear(actions, hidden, style), norm_and_activation(hidden, style))
        size = deter // self.blocks
        self.mix_memory = nn.Parameter(torch.empty(self.blocks, size, size))
        self.mix_deter, self.mix_stoch = (nn.Linear(hidden, deter, bias=False) for _ in range(2))
        self.mix_action = nn.Linear(hidden, deter)
        # as in the authors' code, fan-in counts the inputs of all blocks, though each gets only its own
        for weight in (self.mix_memory, self.mix_deter.weight, self.mix_stoch.weight, self.mix_action.weight):
            init_weight(weight, deter + 3 * hidden * self.blocks, deter, style)
        nn.init.zeros_(self.mix_action.bias)
        self.mix_between = norm_and_activation(deter, style)
        self.gates = nn.Parameter(torch.empty(self.blocks, size, 3 * size))
        init_weight(self.gates, deter, 3 * deter, style)
        self.gate_bias = nn.Parameter(torch.zeros(self.blocks, 1, 3 * size))

    def prepare(self, action: Tensor) -> Tensor:
        """Return the contribution of actions [*, A], for any number of steps."""
        action_input: Tensor = self.mix_action(self.from_action(action))
        return action_input

    def forward(self, deter: Tensor, stoch: Tensor, action_input: Tensor) -> Tensor:
        """Return the next `deter` [B, D]."""
        memory = self._split(deter)
        by_block = torch.bmm(memory, self.mix_memory)
        x = (
            self._join(by_block)
            + self.mix_deter(self.from_deter(deter))
            + self.mix_stoch(self.from_stoch(stoch))
            + action_input
        )
        gates = torch.baddbmm(self.gate_bias, self._split(self.mix_between(x)), self.gates)
        reset, candidate, update = gates.chunk(3, -1)
        return self._join(gru_update(reset, candidate, update, memory))

    def _split(self, x: Tensor) -> Tensor:
        """Return x [B, D] as [G, B, D / G]."""
        return x.view(len(x), self.blocks, -1).transpose(0, 1)

    def _join(self, x: Tensor) -> Tensor:
        """Return x [G, B, D / G] as [B, D]."""
        return x.transpose(0, 1).flatten(1)


def gru_update(reset: Tensor, candidate: Tensor, update: Tensor, deter: Tensor) -> Tensor:
    """Return the next `deter` of a GRU from its gates before their activations."""
    candidate = torch.tanh(torch.sigmoid(reset) * candidate)
    # `deter` keeps its precision if gates are computed in half precision
    return torch.lerp(deter, candidate.to(deter.dtype), torch.sigmoid(update - 1).to(deter.dtype))


def clip_action(action: Tensor) -> Tensor:
    """Return actions scaled to a magnitude of at most 1: one outside of the bounds acts like the bound."""
    return action / action.detach().abs().clamp(min=1)
