"""Target networks."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from cadenza.nets.optimizers import Block, Optimizer

Net = TypeVar("Net", bound=nn.Module)


class Target(Generic[Net]):
    """A copy of a network that follows it slowly.

    It is created after the network's optimizer: both have their parameters in one vector, so that an update is fast.
    """

    def __init__(self, net: Net, optimizer: Optimizer) -> None:
        self.net = copy.deepcopy(net).requires_grad_(False)
        self._source_values = [block.values for block in optimizer.blocks.values()]
        pairs = zip(self.net.named_parameters(), net.parameters(), strict=True)
        names = {parameter: name for (name, parameter), source in pairs if source.requires_grad}
        self._values = [Block(list(names), names, ()).values]
        # a user's encoder may have buffers; looking for them through all modules took longer than following did
        modules = zip(self.net.modules(), net.modules(), strict=True)
        self._with_buffers = [pair for pair in modules if any(True for _ in pair[1].buffers(recurse=False))]

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move the copy towards the network by the factor `tau`; 1 makes them equal."""
        if tau == 1:
            torch._foreach_copy_(self._values, self._source_values)
        else:
            torch._foreach_lerp_(self._values, self._source_values, tau)
        for module, source in self._with_buffers:
            for target, buffer in zip(module.buffers(recurse=False), source.buffers(recurse=False), strict=True):
                target.copy_(buffer)
