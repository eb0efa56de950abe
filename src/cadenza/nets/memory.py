"""Memories: recurrent and attention layers that carry a state from step to step of an episode.

Each maps x [L, *B, F] (L steps), the carry before the first of them (a dict of [*B, …]) and first [L, *B] (True at the
start of an episode, which resets the memory) to features [L, *B, size] and, unless `carries` is false, the carries
after each step [L, *B, …]. L steps in one call give the same result as L calls, but for rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cadenza.config.networks import MemoryConfig, OwnNetwork
from cadenza.nets.mlp import orthogonal
from cadenza.trees import map_tree
from cadenza.types import Tree


class Recurrent(nn.Module):
    """A GRU (Cho et al. 2014) or an LSTM (Hochreiter and Schmidhuber 1997, forget gates open at first)."""

    def __init__(self, inputs: int, config: MemoryConfig) -> None:
        super().__init__()
        self.size = config.size
        self.names = ("h",) if config.type == "gru" else ("h", "c")
        self.cell = (nn.GRU if config.type == "gru" else nn.LSTM)(inputs, config.size)
        for name, parameter in self.cell.named_parameters():
            nn.init.orthogonal_(parameter) if name.startswith("weight") else nn.init.zeros_(parameter)
        if config.type == "lstm":
            with torch.no_grad():
                self.cell.get_parameter("bias_ih_l0")[config.size : 2 * config.size] = 1.0

    def initial(self, *batch: int) -> Tree:
        """Return the carry [*batch, size] at the start of an episode."""
        return {name: torch.zeros(*batch, self.size) for name in self.names}

    def forward(self, x: Tensor, carry: Tree, first: Tensor, carries: bool = True) -> tuple[Tensor, Tree]:
        batch = x.shape[1:-1]
        x, first, carry = x.flatten(1, -2), first.flatten(1), map_tree(lambda h: h.flatten(0, -2), carry)
        if not carries:
            return self._run_episodes(x, carry, first).reshape(len(x), *batch, self.size), {}
        after = []
        for t in range(len(x)):
            carry = map_tree(lambda h, t=t: h.masked_fill(first[t, :, None], 0.0), carry)
            carry = self._run(x[t : t + 1], carry)[1]
            after.append(carry)
        stacked = map_tree(lambda *h: torch.stack(h).reshape(len(x), *batch, self.size), *after)
        return stacked["h"], stacked

    def _run(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """Run the cell over steps [L, B, F] without resets; return the outputs and the carry after the last."""
        states = tuple(carry[name][None].contiguous() for name in self.names)
        out, last = self.cell(x, states[0] if len(states) == 1 else states)
        last = (last,) if isinstance(last, Tensor) else last
        return out, {name: h[0] for name, h in zip(self.names, last, strict=True)}

    def _run_episodes(self, x: Tensor, carry: Tree, first: Tensor) -> Tensor:
        """Return the outputs of steps [L, B, F] with resets, in one call of torch's kernel.

        The steps after a reset become a sequence of their own, padded at its end.
        """
        steps, batch = first.shape
        is_start = first.clone()
        is_start[0] = True
        sequence = is_start.T.flatten().cumsum(0).view(batch, steps).T - 1  # [L, B] number of the step's sequence
        time = torch.arange(steps, device=x.device)[:, None].expand_as(first)
        offset = time - torch.where(is_start, time, 0).cummax(0).values  # [L, B] position in the sequence
        count = int(sequence[-1, -1]) + 1
        sequences = x.new_zeros(steps, count, x.shape[-1]).index_put((offset, sequence), x)
        goes_on = ~first[0]
        index = sequence[0][goes_on]
        starts = map_tree(lambda h: h.new_zeros(count, self.size).index_put((index,), h[goes_on]), carry)
        return self._run(sequences, starts)[0][offset, sequence]


class Attention(nn.Module):
    """One transformer layer (norms first) over the last `context` steps of the episode.

    Its carry holds the layer's inputs at these steps, as in Transformer-XL (Dai et al. 2019), and how many of them
    belong to the running episode. Each head has a learned bias for the age of a step.
    """

    def __init__(self, inputs: int, config: MemoryConfig) -> None:
        super().__init__()
        self.size, self.heads, self.past = config.size, config.heads, config.context - 1
        self.enter = orthogonal(nn.Linear(inputs, config.size), 1.0) if inputs != config.size else nn.Identity()
        self.norms = nn.ModuleList([nn.LayerNorm(config.size) for _ in range(2)])
        self.query = orthogonal(nn.Linear(config.size, config.size), 1.0)
        self.key_value = orthogonal(nn.Linear(config.size, 2 * config.size), 1.0)
        self.leave = orthogonal(nn.Linear(config.size, config.size), 0.1)
        self.widen = orthogonal(nn.Linear(config.size, 4 * config.size), 2**0.5)
        self.narrow = orthogonal(nn.Linear(4 * config.size, config.size), 0.1)
        self.by_age = nn.Parameter(torch.zeros(config.heads, config.context))

    def initial(self, *batch: int) -> Tree:
        """Return the carry at the start of an episode."""
        return {"seen": torch.zeros(*batch, self.past, self.size), "count": torch.zeros(*batch, dtype=torch.int64)}

    def forward(self, x: Tensor, carry: Tree, first: Tensor, carries: bool = True) -> tuple[Tensor, Tree]:
        steps, past = len(x), self.past
        x = self.enter(x)
        context = torch.cat([carry["seen"].movedim(-2, 0), x])  # [past + L, *B, size]; step t is at past + t
        position = torch.arange(past, past + steps, device=x.device).view(-1, *[1] * (first.dim() - 1))
        start = torch.where(first, position, (past - carry["count"]).expand_as(first))
        start = torch.cummax(start, 0).values  # position of the first step of each step's episode
        x = x + self._attend(self.norms[0](x), self.norms[0](context), start)
        x = x + self.narrow(nn.functional.gelu(self.widen(self.norms[1](x))))
        if not carries:
            return x, {}
        after = context.unfold(0, past, 1)[1:].movedim(-1, -2) if past else context.unsqueeze(-2)[..., :0, :]
        return x, {"seen": after, "count": (position - start + 1).clamp(max=past)}

    def _attend(self, x: Tensor, context: Tensor, start: Tensor) -> Tensor:
        """Let steps x [L, *B, size] attend to those of `context` [past + L, *B, size] from their `start` [L, *B] on."""
        steps, past, width = len(x), self.past, self.size // self.heads

        def split(part: Tensor) -> Tensor:
            return part.reshape(*part.shape[:-1], self.heads, width)

        query = split(self.query(x))  # [L, *B, heads, width]
        key, value = map(split, self.key_value(context).chunk(2, -1))
        logits = torch.einsum("l...hw,k...hw->l...hk", query, key) / width**0.5
        position = torch.arange(past + steps, device=x.device)
        age = position[past:, None] - position  # [L, past + L]; negative for later steps
        bias = self.by_age[:, age.clamp(0, past)]  # [heads, L, past + L]
        in_context = ((age >= 0) & (age <= past)).view(steps, *[1] * (start.dim() - 1), 1, past + steps)
        same_episode = position >= start[..., None, None]
        bias = bias.movedim(0, 1).view(steps, *[1] * (start.dim() - 1), self.heads, past + steps)
        logits = (logits + bias).masked_fill(~(in_context & same_episode), torch.finfo(x.dtype).min)
        mixed = torch.einsum("l...hk,k...hw->l...hw", torch.softmax(logits, -1), value)
        attended: Tensor = self.leave(mixed.flatten(-2))
        return attended


def memory_layer(inputs: int, config: MemoryConfig) -> nn.Module:
    """Return the layer of a memory that the settings name, or the user's."""
    if isinstance(config.type, OwnNetwork):
        from cadenza.nets.own_parts import own_memory

        layer: nn.Module = own_memory(config.type, inputs, config.size)
        return layer
    return (Attention if config.type == "transformer" else Recurrent)(inputs, config)


class Memory(nn.Module):
    """A stack of layers of one kind; the carry is keyed by layer."""

    def __init__(self, inputs: int, config: MemoryConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([memory_layer(config.size if i else inputs, config) for i in range(config.layers)])
        self.size = config.size

    def initial(self, *batch: int) -> Tree:
        """Return the carry [*batch, …] at the start of an episode."""
        device = next(self.parameters()).device
        carry = {str(i): layer.initial(*batch) for i, layer in enumerate(self.layers)}  # type: ignore[operator]
        return map_tree(lambda x: x.to(device), carry)

    def forward(self, x: Tensor, carry: Tree, first: Tensor, carries: bool = True) -> tuple[Tensor, Tree]:
        after = {}
        for i, layer in enumerate(self.layers):
            x, after[str(i)] = layer(x, carry[str(i)], first, carries)
        return x, after
