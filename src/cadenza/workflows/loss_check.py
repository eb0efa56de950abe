"""What an algorithm's loss computes, by autograd and by its hand-written kernels, on a made-up batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from cadenza.base.streams import Streams
from cadenza.config.registry import workflow_class
from cadenza.config.schema import RunConfig
from cadenza.types import Context, EnvSpec

# Of the largest entry: in double precision, autograd and the kernels agree to 1e-12. Weight decay of 1e-6 is above it.
TOLERANCE = 1e-9
SAME_LOSS = 1e-6  # between machines, for a loss that computes some of it in single precision
WIDTH = 8  # of hidden layers in the comparison, which takes 5 times as long with SAC's default of 256

Example = Mapping[str, torch.Tensor]


def loss_examples(config: RunConfig, spec: EnvSpec, kernels: str) -> dict[str, Example]:
    """Return the example of each group whose networks a kernel supports, from a new instance of the algorithm."""
    precision = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        streams = Streams(0)
        streams.seed_globals()
        context = Context(spec, config.environment.num_envs, torch.device("cpu"), streams, kernels)
        workflow: Any = workflow_class(config.algorithm.name)(narrow(config.algorithm), context)
        examples = {group: workflow.loss_example(group, np.random.default_rng(0)) for group in spec.groups}
    finally:
        torch.set_default_dtype(precision)
    return {group: flattened(*example) for group, example in examples.items() if example is not None}


def flattened(figures: Mapping[str, Any], networks: Sequence[torch.nn.Module]) -> Example:
    """Return figures, and copies of the networks' gradients, by name."""
    parameters = [pair for net in networks for pair in net.named_parameters()]
    gradients = {f"the gradient of {name}": p.grad.clone() for name, p in parameters if p.grad is not None}
    values = {name: torch.as_tensor(value, dtype=torch.float64).detach() for name, value in figures.items()}
    return values | gradients


def narrow(settings: Any) -> Any:
    """Return settings with hidden layers of at most `WIDTH` units: what a loss says does not depend on their number."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    blocks = {name: narrow(value) for name, value in values.items() if is_dataclass(value)}
    sizes = tuple(min(size, WIDTH) for size in values.get("hidden_sizes", ()))
    return replace(settings, **blocks, **({"hidden_sizes": sizes} if sizes else {}))


def first_difference(by_loss: Mapping[str, Example], by_kernels: Mapping[str, Example]) -> str | None:
    """Return in words the first figure or gradient that the kernels compute differently."""
    for group, example in by_loss.items():
        for name, value in example.items():
            other = by_kernels[group][name]
            if not float((value - other).abs().max()) <= TOLERANCE * float(value.abs().max()) + 1e-12:
                by = "another" if value.dim() else f"{value:.6g}, not {other:.6g}"
                return f"group {group}: {name} is {by}"
    return None


def summary(example: Example) -> list[float | None]:
    """Return the figures of an example, and the norm and a weighted sum of all gradients."""
    figures = [value for value in example.values() if value.dim() == 0]
    gradient = torch.cat([value.flatten() for value in example.values() if value.dim()])
    weights = torch.as_tensor(np.random.default_rng(1).random(len(gradient)), dtype=torch.float64)
    numbers = [float(x) for x in (*figures, gradient.norm(), gradient @ weights)]
    return [float(f"{x:.8g}") if math.isfinite(x) else None for x in numbers]


def is_same_loss(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two records agree."""
    pairs = [(np.array(before.get(group, []), float), np.array(row, float)) for group, row in now.items()]
    return before.keys() == now.keys() and all(
        x.shape == y.shape and np.allclose(x, y, SAME_LOSS, atol=1e-9, equal_nan=True) for x, y in pairs
    )
