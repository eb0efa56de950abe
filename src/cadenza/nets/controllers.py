"""Linear controllers, a different one for each environment, all computed at once: the C of World Models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cadenza.nets.actors import Actions


class LinearControllers:
    """One vector of D parameters is one controller: a matrix and a bias from F inputs to actions, encoded as `Actions`.

    Discrete: the highest output. Continuous: its hyperbolic tangent, stretched over the bounds, or taken as the action
    itself and cut to them where `clipped` says so.
    """

    def __init__(self, inputs: int, actions: Actions, clipped: Sequence[int] = ()) -> None:
        self.inputs, self.actions = inputs, actions
        self.size = actions.size * (inputs + 1)
        self.clipped = list(clipped)

    def __call__(self, parameters: Tensor, features: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Encoded actions [N, A] of controllers [N, D] that see [N, F]; `allowed` [N, A] where some actions are not."""
        parts = parameters.view(-1, self.actions.size, self.inputs + 1)
        out = torch.baddbmm(parts[:, :, -1:], parts[:, :, :-1], features.unsqueeze(-1)).squeeze(-1)
        if self.actions.discrete:
            if allowed is not None:
                out = out.masked_fill(~allowed, -torch.inf)
            return torch.nn.functional.one_hot(out.argmax(-1), self.actions.size).float()
        action = torch.tanh(out)
        if self.clipped:
            own = (action - self.actions.middle) / self.actions.reach
            action[:, self.clipped] = own[:, self.clipped].clamp(-1, 1)
        return action
