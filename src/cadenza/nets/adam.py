"""Adam on torch's fused kernel. Making a `torch.optim.Optimizer` imports torch's compiler, which takes a second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam


class Adam:
    """Kingma and Ba 2015. The step size is given with each step, so that a schedule needs no second place to live."""

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], eps: float, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters = dict(parameters)
        self.eps, self.betas = eps, betas
        self._means = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self._squares = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        # one count for each, as the kernel wants it
        self._steps = {name: torch.zeros((), device=p.device) for name, p in self.parameters.items()}

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self, learning_rate: Tensor) -> None:
        """Move every parameter that has a gradient."""
        moved = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        adam(
            [self.parameters[name] for name in moved],
            [self.parameters[name].grad for name in moved],  # type: ignore[misc]
            [self._means[name] for name in moved],
            [self._squares[name] for name in moved],
            [],
            [self._steps[name] for name in moved],
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"means": dict(self._means), "squares": dict(self._squares), "steps": dict(self._steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for kind, own in self.state_dict().items():
            for name, tensor in own.items():
                tensor.copy_(state[kind][name])
