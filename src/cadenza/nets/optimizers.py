"""Optimizers on torch's kernels. Making a `torch.optim.Optimizer` imports torch's compiler, which takes a second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from cadenza.config.networks import OptimizerConfig


class Optimizer:
    """The step size is given with each step, so that a schedule needs no second place to live.

    State: a tensor of each kind for every parameter, by the parameter's name.
    """

    kinds: tuple[str, ...] = ()

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> None:
        self.parameters = dict(parameters)
        self.config = config
        self._state = {kind: {name: self._blank(kind, p) for name, p in self.parameters.items()} for kind in self.kinds}

    def _blank(self, kind: str, parameter: nn.Parameter) -> Tensor:
        return torch.zeros_like(parameter)

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self, learning_rate: Tensor) -> None:
        """Move every parameter that has a gradient."""
        moved = {name: p for name, p in self.parameters.items() if p.grad is not None}
        state = {kind: [tensors[name] for name in moved] for kind, tensors in self._state.items()}
        self._move(list(moved.values()), [p.grad for p in moved.values()], state, learning_rate)  # type: ignore[misc]

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {kind: dict(tensors) for kind, tensors in self._state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for kind, own in self._state.items():
            for name, tensor in own.items():
                tensor.copy_(state[kind][name])


class Adam(Optimizer):
    """Kingma and Ba 2015; as `adamw` with the decoupled weight decay of Loshchilov and Hutter 2019."""

    kinds = ("means", "squares", "steps")

    def _blank(self, kind: str, parameter: nn.Parameter) -> Tensor:
        # one count for each parameter, as the kernel wants it
        return torch.zeros((), device=parameter.device) if kind == "steps" else torch.zeros_like(parameter)

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        adam(
            parameters,
            gradients,
            state["means"],
            state["squares"],
            [],
            state["steps"],
            fused=True,
            amsgrad=False,
            beta1=self.config.betas[0],
            beta2=self.config.betas[1],
            lr=learning_rate,
            weight_decay=self.config.weight_decay,
            eps=self.config.eps,
            maximize=False,
            decoupled_weight_decay=self.config.name == "adamw",
        )


class SGD(Optimizer):
    """Gradient descent, with momentum if asked for."""

    kinds = ("momenta",)

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        gradients = _decayed(parameters, gradients, self.config.weight_decay)
        if self.config.momentum:
            torch._foreach_mul_(state["momenta"], self.config.momentum)
            torch._foreach_add_(state["momenta"], gradients)
            gradients = state["momenta"]
        torch._foreach_sub_(parameters, torch._foreach_mul(gradients, learning_rate))


class RMSprop(Optimizer):
    """Tieleman and Hinton 2012, epsilon outside the root as in torch."""

    kinds = ("squares", "momenta")

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        gradients = _decayed(parameters, gradients, self.config.weight_decay)
        torch._foreach_mul_(state["squares"], self.config.alpha)
        torch._foreach_addcmul_(state["squares"], gradients, gradients, 1 - self.config.alpha)
        scale = torch._foreach_sqrt(state["squares"])
        torch._foreach_add_(scale, self.config.eps)
        gradients = list(torch._foreach_div(gradients, scale))
        if self.config.momentum:
            torch._foreach_mul_(state["momenta"], self.config.momentum)
            torch._foreach_add_(state["momenta"], gradients)
            gradients = state["momenta"]
        torch._foreach_sub_(parameters, torch._foreach_mul(gradients, learning_rate))


def _decayed(parameters: list[Tensor], gradients: list[Tensor], weight_decay: float) -> list[Tensor]:
    return list(torch._foreach_add(gradients, parameters, alpha=weight_decay)) if weight_decay else gradients


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": Adam, "sgd": SGD, "rmsprop": RMSprop}


def optimizer(net: nn.Module, config: OptimizerConfig) -> Optimizer:
    return OPTIMIZERS[config.name](net.named_parameters(), config)


@torch.no_grad()
def clip_gradients(parts: Mapping[str, nn.Module], limit: float | None) -> dict[str, Tensor]:
    """Scale all gradients together so that their norm is at most `limit`; the norms before, by part and `all`."""
    norms: dict[str, Tensor] = {}
    gradients: list[Tensor] = []
    for name, part in parts.items():
        own = [p.grad for p in part.parameters() if p.grad is not None]
        if own:
            norms[name] = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(own)))
            gradients += own
    norms["all"] = torch.linalg.vector_norm(torch.stack(list(norms.values())))
    if limit is not None:
        torch._foreach_mul_(gradients, (limit / (norms["all"] + 1e-6)).clamp(max=1.0))
    return norms
