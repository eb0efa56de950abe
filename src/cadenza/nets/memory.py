"""Memories: modules that carry a state from step to step of an episode.

Each maps x [L, *B, F] (L steps), the carry before the first of them (a dict of [*B, …]) and first [L, *B] (True where
an episode begins, which empties the memory) to features [L, *B, size] and, unless `carries` is false, the carries after
each step [L, *B, …]. One step at a time or many at once makes no difference but rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cadenza.config.networks import MemoryConfig
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
        return {name: torch.zeros(*batch, self.size) for name in self.names}

    def forward(self, x: Tensor, carry: Tree, first: Tensor, carries: bool = True) -> tuple[Tensor, Tree]:
        batch = x.shape[1:-1]
        x, first, carry = x.flatten(1, -2), first.flatten(1), map_tree(lambda h: h.flatten(0, -2), carry)
        if not carries:
            return self._whole(x, carry, first).reshape(len(x), *batch, self.size), {}
        after = []
        for t in range(len(x)):
            carry = map_tree(lambda h, t=t: h.masked_fill(first[t, :, None], 0.0), carry)
            carry = self._run(x[t : t + 1], carry)[1]
            after.append(carry)
        stacked = map_tree(lambda *h: torch.stack(h).reshape(len(x), *batch, self.size), *after)
        return stacked["h"], stacked

    def _run(self, x: Tensor, carry: Tree) -> tuple[Tensor, Tree]:
        """Steps [L, B, F] without a reset between them, and the carry after the last."""
        states = tuple(carry[name][None].contiguous() for name in self.names)
        out, last = self.cell(x, states[0] if len(states) == 1 else states)
        last = (last,) if isinstance(last, Tensor) else last
        return out, {name: h[0] for name, h in zip(self.names, last, strict=True)}

    def _whole(self, x: Tensor, carry: Tree, first: Tensor) -> Tensor:
        """The same for all steps in one call of torch's kernel: what follows a reset becomes a sequence of its own."""
        steps, batch = first.shape
        opens = first.clone()
        opens[0] = True
        opened = opens.T.flatten().cumsum(0).view(batch, steps).T - 1  # [L, B]: which sequence a step belongs to
        at = torch.arange(steps, device=x.device)[:, None].expand_as(first)
        since = at - torch.where(opens, at, 0).cummax(0).values  # [L, B]: which step of it
        count = int(opened[-1, -1]) + 1
        pieces = x.new_zeros(steps, count, x.shape[-1]).index_put((since, opened), x)
        goes_on = ~first[0]
        starts = map_tree(lambda h: h.new_zeros(count, self.size).index_put((opened[0][goes_on],), h[goes_on]), carry)
        return self._run(pieces, starts)[0][since, opened]


class Attention(nn.Module):
    """One transformer layer (norms first) over the last `context` steps of the episode.

    Its carry is what it saw of them, as in Transformer-XL (Dai et al. 2019), and how many of those belong to the
    running episode. How far back a step lies is told to each head by a learned bias.
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
        return {"seen": torch.zeros(*batch, self.past, self.size), "count": torch.zeros(*batch, dtype=torch.int64)}

    def forward(self, x: Tensor, carry: Tree, first: Tensor, carries: bool = True) -> tuple[Tensor, Tree]:
        steps, past = len(x), self.past
        x = self.enter(x)
        seen = torch.cat([carry["seen"].movedim(-2, 0), x])  # [past + L, *B, size]; step t stands at past + t
        at = torch.arange(past, past + steps, device=x.device).view(-1, *[1] * (first.dim() - 1))
        begun = torch.where(first, at, (past - carry["count"]).expand_as(first))
        begun = torch.cummax(begun, 0).values  # where the episode of each step began
        x = x + self._attend(self.norms[0](x), self.norms[0](seen), begun)
        x = x + self.narrow(nn.functional.gelu(self.widen(self.norms[1](x))))
        if not carries:
            return x, {}
        after = seen.unfold(0, past, 1)[1:].movedim(-1, -2) if past else seen.unsqueeze(-2)[..., :0, :]
        return x, {"seen": after, "count": (at - begun + 1).clamp(max=past)}

    def _attend(self, x: Tensor, seen: Tensor, begun: Tensor) -> Tensor:
        steps, past, width = len(x), self.past, self.size // self.heads

        def split(part: Tensor) -> Tensor:
            return part.reshape(*part.shape[:-1], self.heads, width)

        query = split(self.query(x))  # [L, *B, heads, width]
        key, value = map(split, self.key_value(seen).chunk(2, -1))
        logits = torch.einsum("l...hw,k...hw->l...hk", query, key) / width**0.5
        position = torch.arange(past + steps, device=x.device)
        age = position[past:, None] - position  # [L, past + L]; negative: in the future
        bias = self.by_age[:, age.clamp(0, past)]  # [heads, L, past + L]
        near = ((age >= 0) & (age <= past)).view(steps, *[1] * (begun.dim() - 1), 1, past + steps)
        same_episode = position >= begun[..., None, None]
        bias = bias.movedim(0, 1).view(steps, *[1] * (begun.dim() - 1), self.heads, past + steps)
        logits = (logits + bias).masked_fill(~(near & same_episode), torch.finfo(x.dtype).min)
        mixed = torch.einsum("l...hk,k...hw->l...hw", torch.softmax(logits, -1), value)
        attended: Tensor = self.leave(mixed.flatten(-2))
        return attended


class Memory(nn.Module):
    """Layers of one kind on top of each other; the carry is keyed by layer."""

    def __init__(self, inputs: int, config: MemoryConfig) -> None:
        super().__init__()
        layer = Attention if config.type == "transformer" else Recurrent
        self.layers = nn.ModuleList([layer(config.size if i else inputs, config) for i in range(config.layers)])
        self.size = config.size

    def initial(self, *batch: int) -> Tree:
        """The carry before anything was seen."""
        device = next(self.parameters()).device
        blank = {str(i): layer.initial(*batch) for i, layer in enumerate(self.layers)}  # type: ignore[operator]
        return map_tree(lambda x: x.to(device), blank)

    def forward(self, x: Tensor, carry: Tree, first: Tensor, carries: bool = True) -> tuple[Tensor, Tree]:
        after = {}
        for i, layer in enumerate(self.layers):
            x, after[str(i)] = layer(x, carry[str(i)], first, carries)
        return x, after
