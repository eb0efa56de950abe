"""What an algorithm's loss computes, by autograd and by its hand-written kernels, on a made-up batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from cadenza.base.streams import Streams
from cadenza.config.convert import to_dict
from cadenza.config.networks import (
    EstimatorConfig,
    HeadConfig,
    MemoryConfig,
    NetworkConfig,
    OptimizerConfig,
    OwnHead,
    TorsoConfig,
)
from cadenza.config.registry import workflow_class
from cadenza.config.schema import RunConfig
from cadenza.types import Context, EnvSpec
from cadenza.workflows.ppo_config import COMMON, PPOConfig

# Of the largest entry: in double precision, autograd and the kernels agree to 1e-12. Weight decay of 1e-6 is above it.
TOLERANCE = 1e-9
SAME_LOSS = 1e-6  # between machines, for a loss that computes some of it in single precision
WIDTH = 8  # of hidden layers in the comparison, which takes 5 times as long with SAC's default of 256

Example = Mapping[str, torch.Tensor]


def loss_examples(config: RunConfig, spec: EnvSpec, kernels: str) -> dict[str, Example]:
    """Return the example of each group from a new instance of the algorithm, with small networks of cadenza's.

    With `kernels` of "numpy", there are only the groups whose networks may have a kernel.
    """
    algorithm = config.algorithm
    names = [name for name in spec.groups if kernels == "torch" or not is_foreign(settings_of(algorithm, name))]
    precision = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        streams = Streams(0)
        streams.seed_globals()
        context = Context(spec, config.environment.num_envs, torch.device("cpu"), streams, kernels)
        workflow: Any = workflow_class(algorithm.name)(small(algorithm), context)
        examples = {name: workflow.loss_example(name, np.random.default_rng(0)) for name in names}
    finally:
        torch.set_default_dtype(precision)
    return {group: flattened(*example) for group, example in examples.items() if example is not None}


def flattened(figures: Mapping[str, Any], networks: Sequence[torch.nn.Module]) -> Example:
    """Return figures, and copies of the networks' gradients, by name."""
    parameters = [pair for net in networks for pair in net.named_parameters()]
    gradients = {f"the gradient of {name}": p.grad.clone() for name, p in parameters if p.grad is not None}
    values = {name: torch.as_tensor(value, dtype=torch.float64).detach() for name, value in figures.items()}
    return values | gradients


def settings_of(algorithm: Any, group: str) -> Any:
    """Return the settings of one group."""
    return algorithm.for_group(group) if isinstance(algorithm, PPOConfig) else algorithm


def is_foreign(settings: Any) -> bool:
    """Return whether the settings name a network of the user's or a memory, for which there are no kernels."""
    if isinstance(settings, NetworkConfig):
        return settings.network != "mlp"
    if isinstance(settings, OwnHead):
        return True
    if isinstance(settings, HeadConfig):
        return settings.name != "auto"
    if isinstance(settings, TorsoConfig):
        return settings.encoder != "auto" or settings.memory.type != "none"
    return is_dataclass(settings) and any(is_foreign(getattr(settings, field.name)) for field in fields(settings))


def small(algorithm: Any) -> Any:
    """Return the settings of an algorithm, and of its groups, with small networks and cadenza's advantages."""
    if not isinstance(algorithm, PPOConfig):
        return narrow(algorithm)
    common = replace(algorithm, groups={}, advantage=EstimatorConfig("gae"))
    groups = {name: to_dict(narrow(algorithm.for_group(name))) | {"advantage": "gae"} for name in algorithm.groups}
    parts = {name: {key: part for key, part in group.items() if key not in COMMON} for name, group in groups.items()}
    return replace(narrow(common), groups=parts)


def narrow(settings: Any) -> Any:
    """Return settings with cadenza's layers, at most `WIDTH` units wide: what a loss says does not depend on them.

    A network, an encoder or an optimizer of the user's may not work in double precision.
    """
    if isinstance(settings, OptimizerConfig):
        return OptimizerConfig()
    if isinstance(settings, OwnHead):
        return "auto"
    if isinstance(settings, HeadConfig) and settings.name != "auto":
        return HeadConfig()
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    changes = {name: narrow(value) for name, value in values.items() if is_dataclass(value)}
    if sizes := values.get("hidden_sizes"):
        changes["hidden_sizes"] = tuple(min(size, WIDTH) for size in sizes)
    if isinstance(settings, NetworkConfig):
        changes |= {"network": "mlp", "kwargs": {}}
    elif isinstance(settings, TorsoConfig):
        changes |= {"encoder": "auto", "kwargs": {}, "memory": MemoryConfig()}
    return replace(settings, **changes)


def first_difference(by_loss: Mapping[str, Example], by_kernels: Mapping[str, Example]) -> str | None:
    """Return in words the first figure or gradient that the kernels compute differently."""
    for group, example in by_kernels.items():
        for name, value in by_loss[group].items():
            other = example[name]
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


def is_same_loss(before: Sequence[float | None], now: Sequence[float | None]) -> bool:
    """Return whether two summaries agree."""
    x, y = np.array(before, float), np.array(now, float)
    return x.shape == y.shape and np.allclose(x, y, SAME_LOSS, atol=1e-9, equal_nan=True)
