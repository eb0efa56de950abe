"""Linear controllers, one for each environment, computed in one batch: the C of World Models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cadenza.nets.actors import Actions


class LinearControllers:
    """Linear maps from F inputs to encoded `Actions`. A controller is a vector of D = `size` parameters.

    A discrete action is the highest output. A continuous one is tanh of the output, scaled to the bounds; at the
    indices `clipped` it is the action in the environment's units instead, clipped to the bounds.
    """

    def __init__(self, inputs: int, actions: Actions, clipped: Sequence[int] = ()) -> None:
        self.inputs, self.actions = inputs, actions
        self.size = actions.size * (inputs + 1)
        self.clipped = list(clipped)

    def __call__(self, parameters: Tensor, features: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return encoded actions [N, A] of controllers [N, D] for features [N, F], with a mask `allowed` [N, A]."""
        parts = parameters.view(-1, self.actions.size, self.inputs + 1)
        out = torch.baddbmm(parts[:, :, -1:], parts[:, :, :-1], features.unsqueeze(-1)).squeeze(-1)
        if self.actions.discrete:
            if allowed is not None:
                out = out.masked_fill(~allowed, -torch.inf)
            return torch.nn.functional.one_hot(out.argmax(-1), self.actions.size).float()
        action = torch.tanh(out)
        if self.clipped:
            scaled = (action - self.actions.middle) / self.actions.reach
            action[:, self.clipped] = scaled[:, self.clipped].clamp(-1, 1)
        return action
