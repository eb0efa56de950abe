"""A group's policy as a module of tensors alone, normaliser and memory included: what is exported to act elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from cadenza.nets.observe import ObservationTensors, Observer
from cadenza.trees import map_tree
from cadenza.types import Tree

# (what is seen [1, N, A, …], the carry [N, A, …], where episodes begin [1, N, A]) -> (output [1, N, A, F], carry after)
Network = Callable[[ObservationTensors, Tree, Tensor], tuple[Tensor, Tree]]
Choose = Callable[[Tensor, Tensor | None], Tensor]  # (output, mask) -> the best action


class Deployed(nn.Module):
    """The best action known, without exploring."""

    def __init__(
        self,
        observer: Observer,
        parts: list[nn.Module],
        network: Network,
        choose: Choose,
        carry: Callable[..., Tree] | None = None,
        random_share: float = 0.0,
    ) -> None:
        """`parts` own the weights; `random_share`: how often the run's own policy does anything else, when measured."""
        super().__init__()
        self.observer, self.parts = observer, nn.ModuleList(parts)
        self.network, self.choose, self.carry = network, choose, carry
        self.random_share = random_share

    def initial_carry(self, *batch: int) -> Tree:
        return {} if self.carry is None else self.carry(*batch)

    def forward(
        self, obs: Tree, carry: Tree, is_first: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tree]:
        """Of [N, A, …]: the action, the numbers it was chosen by, the carry. `is_first` [N, A] empties the memory."""
        seen = map_tree(lambda x: x[None], self.observer.from_tensors(obs))  # a sequence of one step
        output, after = self.network(seen, carry, is_first[None])
        return self.choose(output[0], mask), output[0], map_tree(lambda x: x[0], after)
