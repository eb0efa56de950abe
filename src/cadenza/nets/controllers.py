"""Controllers, one for each environment, computed in one batch: the C of World Models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from cadenza.config.networks import OwnNetwork
from cadenza.errors import ConfigError, foreign_code
from cadenza.nets.actors import Actions
from cadenza.nets.own_parts import own_network


class Controllers(ABC):
    """Maps from F inputs to encoded `Actions`. A controller is a vector of D = `size` parameters.

    A discrete action is the highest output. A continuous one is tanh of the output, scaled to the bounds; at the
    indices `clipped` it is the action in the environment's units instead, clipped to the bounds.
    """

    size: int
    start: Tensor | None = None  # [D] float64, where the search begins; None: at zero

    def __init__(self, actions: Actions, clipped: Sequence[int] = ()) -> None:
        self.actions, self.clipped = actions, list(clipped)

    def __call__(self, parameters: Tensor, features: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return encoded actions [N, A] of controllers [N, D] for features [N, F], with a mask `allowed` [N, A]."""
        out = self.outputs(parameters, features)
        if self.actions.discrete:
            if allowed is not None:
                out = out.masked_fill(~allowed, -torch.inf)
            return torch.nn.functional.one_hot(out.argmax(-1), self.actions.size).float()
        action = torch.tanh(out)
        if self.clipped:
            scaled = (action - self.actions.middle) / self.actions.reach
            action[:, self.clipped] = scaled[:, self.clipped].clamp(-1, 1)
        return action

    @abstractmethod
    def outputs(self, parameters: Tensor, features: Tensor) -> Tensor:
        """Return the outputs [N, A] of controllers [N, D] for features [N, F]."""


class LinearControllers(Controllers):
    """Linear maps."""

    def __init__(self, inputs: int, actions: Actions, clipped: Sequence[int] = ()) -> None:
        super().__init__(actions, clipped)
        self.inputs = inputs
        self.size = actions.size * (inputs + 1)

    def outputs(self, parameters: Tensor, features: Tensor) -> Tensor:
        parts = parameters.view(-1, self.actions.size, self.inputs + 1)
        return torch.baddbmm(parts[:, :, -1:], parts[:, :, :-1], features.unsqueeze(-1)).squeeze(-1)


class OwnControllers(Controllers):
    """Copies of a user's network, each with parameters of its own; they start around those it is made with."""

    def __init__(
        self, inputs: int, actions: Actions, part: OwnNetwork, clipped: Sequence[int], device: torch.device
    ) -> None:
        super().__init__(actions, clipped)
        self.net = own_network(inputs, actions.size, part).requires_grad_(False)
        self.shapes = {name: parameter.shape for name, parameter in self.net.named_parameters()}
        if not self.shapes:
            raise ConfigError(f"network '{part.name}' has no parameters to evolve")
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.size = sum(self.sizes)
        self.start = torch.cat([parameter.flatten() for parameter in self.net.parameters()]).double()
        with foreign_code(f"network '{part.name}' cannot be computed with several sets of parameters at once"):
            self.outputs(self.start.float().expand(2, -1), torch.zeros(2, inputs))
        self.net.to(device)

    def outputs(self, parameters: Tensor, features: Tensor) -> Tensor:
        pieces = zip(self.shapes.items(), torch.split(parameters, self.sizes, -1), strict=True)
        weights = {name: piece.reshape(-1, *shape) for (name, shape), piece in pieces}
        compute = torch.vmap(lambda weights, x: torch.func.functional_call(self.net, weights, (x,)))
        outputs: Tensor = compute(weights, features)
        return outputs
