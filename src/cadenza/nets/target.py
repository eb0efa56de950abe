"""A copy of a network that follows it from behind."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from cadenza.nets.optimizers import Block, Optimizer

Net = TypeVar("Net", bound=nn.Module)


class Target(Generic[Net]):
    """To be made after the network's optimizer: both keep their parameters in one vector, which makes moving quick."""

    def __init__(self, net: Net, optimizer: Optimizer) -> None:
        self.net = copy.deepcopy(net).requires_grad_(False)
        self._followed = net
        self._towards = [block.values for block in optimizer.blocks.values()]
        both = zip(self.net.named_parameters(), net.parameters(), strict=True)
        moving = {parameter: name for (name, parameter), followed in both if followed.requires_grad}
        self._values = [Block(list(moving), moving, ()).values]

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move this far towards the network; 1: become its copy."""
        if tau == 1:
            torch._foreach_copy_(self._values, self._towards)
        else:
            torch._foreach_lerp_(self._values, self._towards, tau)
        for mine, buffer in zip(self.net.buffers(), self._followed.buffers(), strict=True):  # of one's own encoder
            mine.copy_(buffer)
