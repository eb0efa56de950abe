"""Checks that numbers are finite: outputs of modules, gradients, losses, parameters, steps, metrics and states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cadenza.errors import DivergenceError
from cadenza.trees import leaves
from cadenza.types import Acted, Step
from cadenza.watch.workflow_contents import ModuleParameters, WorkflowContents, flat, tensors


class NotFiniteError(DivergenceError):
    """A number is not finite: `site` is where it was first detected, `details` describe the values around it."""

    def __init__(self, site: str, what: str, **details: Any) -> None:
        super().__init__(f"{site} {what}")
        self.site, self.what, self.details = site, what, details


class FiniteChecks:
    """Hooks on every module and parameter of a workflow; they raise NotFiniteError and change nothing."""

    def __init__(self, contents: WorkflowContents) -> None:
        self.on = True
        for name, module in contents.modules.items():
            module.register_forward_hook(partial(self._check_output, name), with_kwargs=True)
        for name, parameter in contents.learned.items():
            hook = partial(self._check_gradient, name)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> FiniteChecks:
        return self  # a copied module copies its hooks, and those must not copy the run

    def _check_output(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for _, tensor in tensors(output) if self.on else ():
            if not finite(tensor):
                raise forward_fault(name, module, (*args, kwargs) if kwargs else args, tensor)
            if tensor.requires_grad:
                tensor.register_hook(partial(self._check_output_gradient, name))  # type: ignore[no-untyped-call]

    def _check_output_gradient(self, name: str, gradient: Tensor) -> None:
        if not finite(gradient):
            values = describe(gradient)
            raise NotFiniteError(name, "gets a gradient from the loss that is not finite", values=values)

    def _check_gradient(self, name: str, parameter: Tensor) -> None:
        gradient = parameter.grad
        if self.on and gradient is not None and not finite(gradient):
            what = "has a gradient that is not finite, though the one arriving at its module is"
            raise NotFiniteError(name, what, values=describe(gradient), parameters={name: describe(parameter)})

    def stepping(self, groups: dict[str, ModuleParameters]) -> None:
        """Check the gradients before a step: hand-written kernels set them without `backward`."""
        for path, parameter in flat(groups).items():
            if parameter.grad is not None and not finite(parameter.grad):
                values, parameters = describe(parameter.grad), {path: describe(parameter)}
                raise NotFiniteError(path, "has a gradient that is not finite", values=values, parameters=parameters)

    def stepped(self, optimizer: str, groups: dict[str, ModuleParameters]) -> None:
        """Check the parameters after a step."""
        for path, group in groups.items():
            for name, parameter in group.items():
                if not finite(parameter):
                    gradient = {} if parameter.grad is None else {"gradients": {path: describe(parameter.grad)}}
                    what = f"is not finite after a step of {optimizer}"
                    raise NotFiniteError(f"{path}.{name}".rstrip("."), what, values=describe(parameter), **gradient)

    def state(self, state: dict[str, Any]) -> None:
        """Check the state of a workflow: normaliser statistics, optimizer moments, tables."""
        for path, leaf in leaves(state):
            if isinstance(leaf, Tensor | np.ndarray) and not finite(leaf):
                raise NotFiniteError(path, "is not finite in the workflow's state", values=describe(leaf))

    def metrics(self, metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if not finite(value):
                raise NotFiniteError(name, f"is {float(value)}", values=describe(value))

    def acted(self, acted: Acted) -> None:
        for part in ("action", "extras", "carry"):
            for path, leaf in leaves(getattr(acted, part)):
                if not finite(leaf):
                    raise NotFiniteError(f"{part}.{path}", "is not finite", values=describe(leaf))

    def step(self, step: Step) -> None:
        for part in ("obs", "final_obs", "reward", "state", "final_state"):
            for path, leaf in leaves(getattr(step, part)):
                if leaf is not None and not finite(leaf):
                    site = f"{part}.{path}".rstrip(".")
                    raise NotFiniteError(site, "came from the environment not finite", values=describe(leaf))


class LossCheck(TorchFunctionMode):
    """A context that checks every tensor on which `backward` is called."""

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.backward or func is torch.autograd.grad:
            for _, loss in tensors(args[:1]):
                if not finite(loss):
                    what = "is not finite, though every module's output is"
                    raise NotFiniteError("loss", what, values=describe(loss))
        return func(*args, **(kwargs or {}))


def forward_fault(name: str, module: nn.Module, inputs: Any, output: Tensor) -> NotFiniteError:
    """Return the error for an output that is not finite: the fault of the module's parameters, its inputs or itself."""
    parameters = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    input_tensors = dict(tensors(inputs))
    details = {
        "module": type(module).__name__,
        "values": describe(output),
        "inputs": {f"input {path}".strip(): describe(tensor) for path, tensor in input_tensors.items()},
        "parameters": {f"{name}.{key}": describe(parameter) for key, parameter in parameters.items()},
    }
    for key, parameter in parameters.items():
        if not finite(parameter):
            return NotFiniteError(f"{name}.{key}", "is not finite when its module is called", **details)
    if not all(finite(tensor) for tensor in input_tensors.values()):
        return NotFiniteError(name, "was given inputs that are not finite", **details)
    return NotFiniteError(name, "made numbers that are not finite from finite inputs and parameters", **details)


def finite(values: Tensor | np.ndarray | float) -> bool:
    """Return whether every number is finite; integers and booleans are."""
    if isinstance(values, Tensor):
        return not (values.is_floating_point() or values.is_complex()) or bool(values.isfinite().all())
    array = np.asarray(values)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def describe(values: Tensor | np.ndarray | float) -> dict[str, Any]:
    """Describe an array: shape, type, counts of NaN and infinity, and the range and mean of its finite numbers."""
    tensor = torch.as_tensor(values).detach()
    facts: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    numbers = tensor.double().flatten()
    finite_numbers = numbers[numbers.isfinite()]
    facts |= {"nan": int(numbers.isnan().sum()), "inf": int(numbers.isinf().sum())}
    facts["finite_fraction"] = len(finite_numbers) / max(1, len(numbers))
    if len(finite_numbers):
        low, high, mean = finite_numbers.min(), finite_numbers.max(), finite_numbers.mean()
        facts |= {"min": float(low), "max": float(high), "mean": float(mean)}
    return facts
