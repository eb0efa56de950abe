"""Norms of weights, gradients and updates by module, and the share of dead units by layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.records.metrics import MetricBuffer
from cadenza.watch.workflow_contents import ModuleParameters, WorkflowContents, flat

ACTIVATIONS = "torch.nn.modules.activation"


class Statistics:
    """Metrics `debug/<quantity>/<module>`: means over the gradient steps since the last `take`."""

    def __init__(self, contents: WorkflowContents) -> None:
        self.contents = contents
        self._means = MetricBuffer()
        self._gradients: dict[str, Tensor] = {}
        self._before: dict[str, list[Tensor]] = {}
        self.on = False  # True while learning: acting gives a layer too few inputs at once to call a unit dead
        for name, module in contents.modules.items():
            if type(module).__module__ == ACTIVATIONS and not list(module.parameters()):
                module.register_forward_hook(partial(self._count_dead, name))
        for name, parameter in contents.learned.items():
            hook = partial(self._measure_gradient, name)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Statistics:
        return self  # see FiniteChecks

    def before_step(self, groups: dict[str, ModuleParameters]) -> None:
        """Copy the parameters, and measure gradients that a hand-written kernel has set without `backward`."""
        self._before = {path: [p.detach().clone() for p in group.values()] for path, group in groups.items()}
        for path, parameter in flat(groups).items():
            if path not in self._gradients and parameter.grad is not None and parameter.grad.any():
                self._gradients[path] = joint_norm([parameter.grad])

    def after_step(self, groups: dict[str, ModuleParameters]) -> None:
        """Add the gradient norms, before any clipping, and the relative size of the step."""
        for path, group in groups.items():
            gradients = [self._gradients.pop(name) for name in flat({path: group}) if name in self._gradients]
            if not gradients:
                continue
            before = self._before[path]
            weight = float(joint_norm(before))
            step = joint_norm([new.detach() - old for new, old in zip(group.values(), before, strict=True)])
            ratio = float(step) / weight if weight else 0.0
            self._means.add({f"debug/grad_norm/{path}": joint_norm(gradients), f"debug/update_ratio/{path}": ratio})

    def take(self) -> dict[str, float]:
        """Return the means since the last call, and the present norms of the weights."""
        weights = {
            f"debug/weight_norm/{path}": float(joint_norm([p.detach() for p in group.values()]))
            for path, group in self.contents.groups.items()
        }
        return {**self._means.means(), **weights}

    def _measure_gradient(self, name: str, parameter: Tensor) -> None:
        if self.on and parameter.grad is not None:
            self._gradients[name] = joint_norm([parameter.grad])

    def _count_dead(self, name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self.on and torch.is_grad_enabled() and len(output) > 1:
            units = output.detach().flatten(1)
            dead = (units.amax(0) == units.amin(0)).double().mean()
            self._means.add({f"debug/dead_units/{name}": dead})


def joint_norm(parts: list[Tensor]) -> Tensor:
    """Return the norm of all parts together, in double precision: the square of a large number must stay finite."""
    return torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]).square().sum().sqrt()
