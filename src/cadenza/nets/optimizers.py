"""Optimizers on torch's kernels, and gradients in parts.

Making a `torch.optim.Optimizer` imports torch's compiler, which takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cadenza.config.networks import OptimizerConfig
from cadenza.errors import ConfigError
from cadenza.nets.kernels import has_kernels
from cadenza.trees import leaves, map_tree
from cadenza.types import Tree

ALIGNED = 64  # numbers from the start of a part's vector to the next, at least and in multiples: a multiple of 64 bytes


class StepObserver(Protocol):
    """An observer of parameters and gradients before and after each step of an optimizer (`--debug`)."""

    def before_step(self) -> None: ...

    def after_step(self) -> None: ...


class Optimizer:
    """The base of optimizers. Each part of the network has its parameters in one vector, and its gradients in another.

    Steps and norms are then a few operations, however many layers there are; autograd adds into the same memory. The
    step size is an argument of each step, so that schedules stay outside. The state holds a tensor of each kind for
    every parameter, by the parameter's name.
    """

    kinds: tuple[str, ...] = ()

    def __init__(self, net: nn.Module, config: OptimizerConfig, parts: Mapping[str, nn.Module] | None = None) -> None:
        self.config = config
        names = {parameter: name for name, parameter in net.named_parameters()}
        parts = parts or {"net": net}
        owned = {part: [p for p in module.parameters() if p.requires_grad] for part, module in parts.items()}
        owned = {part: parameters for part, parameters in owned.items() if parameters}
        memory = zip(adjacent_vectors(owned.values()), adjacent_vectors(owned.values()), strict=True)
        self.blocks = {
            part: Block(parameters, names, self.kinds, *vectors)
            for (part, parameters), vectors in zip(owned.items(), memory, strict=True)
        }
        self._rate = torch.zeros((), device=next(iter(names)).device)
        self.observer: StepObserver | None = None

    def zero_grad(self) -> None:
        for block in self.blocks.values():
            block.zero_grad()

    def step(
        self, learning_rate: float | Tensor, max_norm: float | Tensor | None = None, only: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        """Move all parts, or `only` some; return the norms of their gradients, by part and `all`.

        The gradients are first scaled together to a norm of at most `max_norm`; the returned norms are those before.
        """
        if self.observer is None:
            return self._step(learning_rate, max_norm, only)
        self.observer.before_step()
        norms = self._step(learning_rate, max_norm, only)
        self.observer.after_step()
        return norms

    def _step(
        self, learning_rate: float | Tensor, max_norm: float | Tensor | None, only: Collection[str] | None
    ) -> dict[str, Tensor]:
        blocks = {part: block for part, block in self.blocks.items() if only is None or part in only}
        gradients = [block.gather() for block in blocks.values()]
        on_cuda = gradients[0].is_cuda
        # torch's kernels for lists give each block 65,536 numbers, which leaves most of a device idle
        norms = [torch.linalg.vector_norm(x) for x in gradients] if on_cuda else torch._foreach_norm(gradients)
        whole = torch.linalg.vector_norm(torch.stack(norms)) if len(norms) > 1 else norms[0]
        # looking is cheaper than multiplying by one, but waits for a device
        if max_norm is not None and (on_cuda or not float(whole) + 1e-6 <= max_norm):
            factor = clipping_scale(whole, max_norm)
            if on_cuda:
                for gradient in gradients:
                    gradient.mul_(factor)
            else:
                torch._foreach_mul_(gradients, factor)
        if self.config.agc:
            for block in blocks.values():
                block.clip_adaptively(self.config.agc)
        self._move_blocks(list(blocks.values()), learning_rate)
        return {**dict(zip(blocks, norms, strict=True)), "all": whole}

    def _move_blocks(self, blocks: list[Block], learning_rate: float | Tensor) -> None:
        """Move the parameters of some blocks by their gradients."""
        state = {kind: [block.state[kind] for block in blocks] for kind in self.kinds}
        rate = learning_rate if isinstance(learning_rate, Tensor) else self._rate.fill_(learning_rate)
        self._move([block.values for block in blocks], [block.gradient for block in blocks], state, rate)

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, dict[str, Tensor]] = {kind: {} for kind in self.kinds}
        for block in self.blocks.values():
            for kind, name, tensor in block.named_state():
                state[kind][name] = tensor
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for block in self.blocks.values():
            for kind, name, tensor in block.named_state():
                tensor.copy_(state[kind][name])


class Block:
    """Some parameters in one vector, which they become views of, with their gradients and the optimizer's state.

    The vectors of values and gradients are `values` and `gradient`, or new ones.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        names: Mapping[nn.Parameter, str],
        kinds: Iterable[str],
        values: Tensor | None = None,
        gradient: Tensor | None = None,
    ) -> None:
        if len({(p.dtype, p.device) for p in parameters}) > 1:
            raise ConfigError(f"the parameters {', '.join(names[p] for p in parameters)} differ in dtype or device")
        self.parameters, self.names = parameters, [names[p] for p in parameters]
        self.values = torch.cat([p.detach().flatten() for p in parameters], out=values)
        self.gradient = torch.zeros_like(self.values) if gradient is None else gradient
        self.state = {kind: self._blank(kind) for kind in kinds}
        self._values, self._gradients = self._views(self.values), self._views(self.gradient)
        for parameter, values, gradient in zip(parameters, self._values, self._gradients, strict=True):
            parameter.data, parameter.grad = values, gradient

    def _blank(self, kind: str) -> Tensor:
        # torch's kernels want the count of steps as a float beside the parameters
        return torch.zeros((), device=self.values.device) if kind == "steps" else torch.zeros_like(self.values)

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, [p.numel() for p in self.parameters])
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def zero_grad(self) -> None:
        self.gradient.zero_()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def gather(self) -> Tensor:
        """Return the gradients as one vector; copy those that lie elsewhere into it, and zeros where there is none."""
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            if parameter.grad is not gradient:
                gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
                parameter.grad = gradient
        return self.gradient

    def gather_values(self) -> None:
        """Put values and gradients back into the vectors, where kernels and targets look, if an optimizer moved them.

        Values elsewhere are copied. Gradients are not: the next ones overwrite them.
        """
        for parameter, values, gradient in zip(self.parameters, self._values, self._gradients, strict=True):
            parameter.grad = gradient
            if parameter.data_ptr() != values.data_ptr():
                values.copy_(parameter.data)
                parameter.data = values

    def clip_adaptively(self, share: float, smallest: float = 1e-3) -> None:
        """Clip the norm of each gradient to `share` of its parameter's norm (AGC, Brock et al. 2021, arXiv:2102.06171).

        A unit is a whole tensor; the norm of a parameter counts as at least `smallest`.
        """
        allowed = torch._foreach_norm(self._values)
        torch._foreach_clamp_min_(allowed, smallest)
        torch._foreach_mul_(allowed, share)
        torch._foreach_div_(allowed, torch._foreach_norm(self._gradients))
        torch._foreach_clamp_max_(allowed, 1.0)
        torch._foreach_mul_(self._gradients, allowed)

    def named_state(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield (kind, parameter's name, view); the count of steps, which they share, under each name."""
        for kind, tensor in self.state.items():
            views = [tensor] * len(self.names) if kind == "steps" else self._views(tensor)
            for name, view in zip(self.names, views, strict=True):
                yield kind, name, view


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); as `adamw` with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kinds = ("means", "squares", "steps")

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        counts = state["steps"]
        torch._foreach_add_(counts, 1)
        if has_kernels(parameters[0]) and parameters[0].dtype == torch.float32:
            from cadenza.nets.fused import adam

            config = self.config
            for each in zip(parameters, gradients, state["means"], state["squares"], counts, strict=True):
                decay = (config.weight_decay, config.name == "adamw")
                adam(*each, learning_rate, config.betas, config.eps, *decay)
            return
        kernel = torch._fused_adamw_ if self.config.name == "adamw" else torch._fused_adam_
        kernel(
            parameters,
            gradients,
            state["means"],
            state["squares"],
            [],
            counts,
            lr=learning_rate,
            beta1=self.config.betas[0],
            beta2=self.config.betas[1],
            weight_decay=self.config.weight_decay,
            eps=self.config.eps,
            amsgrad=False,
            maximize=False,
        )


class SGD(Optimizer):
    """Gradient descent, with momentum if the config sets it."""

    kinds = ("momenta",)

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        gradients = _with_decay(parameters, gradients, self.config.weight_decay)
        _descend(parameters, gradients, state["momenta"], self.config.momentum, learning_rate)


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012), with epsilon outside the root as in torch."""

    kinds = ("squares", "momenta")

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        gradients = _with_decay(parameters, gradients, self.config.weight_decay)
        torch._foreach_mul_(state["squares"], self.config.alpha)
        torch._foreach_addcmul_(state["squares"], gradients, gradients, 1 - self.config.alpha)
        scale = torch._foreach_sqrt(state["squares"])
        torch._foreach_add_(scale, self.config.eps)
        gradients = list(torch._foreach_div(gradients, scale))
        _descend(parameters, gradients, state["momenta"], self.config.momentum, learning_rate)


class LaProp(Optimizer):
    """Momentum of gradients that are divided by their root mean square first (Ziyin et al. 2020, arXiv:2002.04839).

    As in DreamerV3: bias correction of both averages, epsilon outside the root, decoupled weight decay, and a first
    step of size 0 in a warm-up.
    """

    kinds = ("momenta", "squares", "steps")

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: Tensor
    ) -> None:
        mean_decay, square_decay = self.config.betas
        for values, gradient, momentum, squares, count in zip(
            parameters, gradients, state["momenta"], state["squares"], state["steps"], strict=True
        ):
            ramp = (count / self.config.warmup).clamp(max=1.0) if self.config.warmup else 1.0
            count += 1
            squares.mul_(square_decay).addcmul_(gradient, gradient, value=1 - square_decay)
            scale = (squares / _bias_correction(square_decay, count)).sqrt_().add_(self.config.eps)
            momentum.lerp_(gradient / scale, 1 - mean_decay)
            move = momentum / _bias_correction(mean_decay, count)
            if self.config.weight_decay:
                move.add_(values, alpha=self.config.weight_decay)
            values.sub_(move.mul_(learning_rate * ramp))


def adjacent_vectors(parts: Collection[list[nn.Parameter]]) -> list[Tensor] | list[None]:
    """Return a vector of zeros for the parameters of each part, all in one piece of memory; None where types differ.

    Kernels can then treat equal layers of several parts as one array.
    """
    if len({(p.dtype, p.device) for part in parts for p in part}) != 1:
        return [None] * len(parts)
    sizes = [sum(p.numel() for p in part) for part in parts]
    room = [-(-size // ALIGNED) * ALIGNED for size in sizes]
    pieces = torch.split(next(iter(parts))[0].detach().new_zeros(sum(room)), room)
    return [piece[:size] for piece, size in zip(pieces, sizes, strict=True)]


def clipping_scale(norm: Tensor, max_norm: float | Tensor) -> float | Tensor:
    """Return the factor that brings gradients of this norm to a norm of at most `max_norm`."""
    if norm.device.type != "cpu" or norm.dtype == torch.bfloat16 or isinstance(max_norm, Tensor):
        return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    # the same operations on NumPy's scalars, which round alike and take 1 us instead of 6
    return min(float(max_norm * (1 / (norm.numpy()[()] + 1e-6))), 1.0)


def clip_together(parameters: list[nn.Parameter], max_norm: float | Tensor | None) -> Tensor:
    """Scale the gradients together to a norm of at most `max_norm`; return the norm before, without reading it."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm is not None:
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


def in_parts(
    function: Callable[[Tree], Tree], inputs: Tree, parts: int, dim: int = 0, out_dim: int | None = None
) -> Tree:
    """Return `function(inputs)` for a batch along `dim` of every input, computed in `parts` parts.

    Losses of the outputs, whose batch is along `out_dim` (None: `dim`), are those of the whole batch, and so are their
    gradients, up to rounding. Each part is computed again for its gradient (torch's checkpoints), so that the
    activations of one part at a time are in memory. Random numbers from torch's global generators, as a user's dropout
    draws them, are then the same; those of other generators are not.
    """
    if parts == 1:
        return function(inputs)
    from torch.utils.checkpoint import checkpoint

    count = next(x for _, x in leaves(inputs) if x is not None).shape[dim]
    size = -(-count // parts)

    def compute(start: int) -> Tree:
        length = min(size, count - start)
        piece = map_tree(lambda x: None if x is None else x.narrow(dim, start, length), inputs)
        if not torch.is_grad_enabled():
            return function(piece)
        return checkpoint(function, piece, use_reentrant=False)

    outputs = [compute(start) for start in range(0, count, size)]
    return map_tree(lambda *each: torch.cat(each, dim if out_dim is None else out_dim), *outputs)


def _bias_correction(decay: float, steps: Tensor) -> Tensor:
    """Return 1 - decay ** steps, the weight of the inputs in an average that started at zero."""
    return -torch.expm1(steps * math.log(decay)) if decay else torch.ones_like(steps)


def _descend(
    parameters: list[Tensor], gradients: list[Tensor], momenta: list[Tensor], momentum: float, learning_rate: Tensor
) -> None:
    """Move the parameters against the gradients, or with momentum against their decaying sums."""
    if momentum:
        torch._foreach_mul_(momenta, momentum)
        torch._foreach_add_(momenta, gradients)
        gradients = momenta
    torch._foreach_sub_(parameters, torch._foreach_mul(gradients, learning_rate))


def _with_decay(parameters: list[Tensor], gradients: list[Tensor], weight_decay: float) -> list[Tensor]:
    return list(torch._foreach_add(gradients, parameters, alpha=weight_decay)) if weight_decay else gradients


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": Adam, "sgd": SGD, "rmsprop": RMSprop, "laprop": LaProp}


def optimizer(net: nn.Module, config: OptimizerConfig, parts: Mapping[str, nn.Module] | None = None) -> Optimizer:
    """Make the optimizer of a network, or of some of its parts."""
    if not config.builtin:
        from cadenza.nets.torch_optimizer import TorchOptimizer

        return TorchOptimizer(net, config, parts)
    return OPTIMIZERS[config.name](net, config, parts)
