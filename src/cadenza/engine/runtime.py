"""Decisions on what a run computes with: threads, kernels, compilation, tensor cores. Each is made once for a run.

Hand-written kernels are used only where they compute the loss that stands in the workflow's file (`check_loss`).
"""

from __future__ import annotations

import ctypes
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from cadenza.base import blas
from cadenza.base.streams import Streams
from cadenza.config.networks import OptimizerConfig
from cadenza.config.registry import workflow_class
from cadenza.config.schema import RunConfig
from cadenza.envs.vector import cores
from cadenza.errors import ConfigError
from cadenza.nets.observe import images
from cadenza.records.decisions import BLAS, BLAS_CHANGES, KERNELS, KERNELS_REASON, LOSS
from cadenza.types import Context, EnvSpec, HandWritten

# A cold compilation takes about half a minute and saves a third of a gradient step on images (docs/performance.md).
WORTH_COMPILING = 2000  # gradient steps
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's `mallopt`
KEPT_MEMORY = 1 << 28  # bytes: of the largest array kept, and of unused memory kept in all
LARGE = 36  # pixels: from this size on images are worth more than one thread
# Of the largest entry: in double precision, autograd and the kernels agree to 1e-12. Weight decay of 1e-6 is above it.
TOLERANCE = 1e-9
SAME_LOSS = 1e-6  # between machines, for a loss that computes some of it in single precision

WIDTH = 8  # of hidden layers in the comparison, which takes 5 times as long with SAC's default of 256

Example = Mapping[str, torch.Tensor]


def decide_runtime(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any]) -> None:
    """Decide what is `auto`, unless that was done when the run began; refuse settings that the device does not have."""
    on_cpu = decisions["device"] == "cpu"
    if "runtime.threads" in decisions:
        # runs from before there was a choice, and those that went on to another device, which ends exactness anyway
        decisions["runtime.kernels"] = decisions.get("runtime.kernels", "torch") if on_cpu else "torch"
        decisions.setdefault("runtime.compile", False)
        decisions.setdefault("runtime.tf32", False)
        return
    runtime, has_images = config.runtime, has_large_images(spec)
    if runtime.kernels == "numpy" and not on_cpu:
        raise ConfigError(f"runtime.kernels=numpy: only on the CPU, and this run is on {decisions['device']}")
    if runtime.tf32 and not decisions["device"].startswith("cuda"):
        raise ConfigError(f"runtime.tf32=true: only on CUDA, and this run is on {decisions['device']}")
    # small networks gain nothing from a second thread and lose much when cores are busy
    threads = cores() if has_images and on_cpu else 1
    decisions["runtime.threads"] = threads if runtime.threads == "auto" else runtime.threads
    kernels = "numpy" if on_cpu else "torch"
    decisions["runtime.kernels"] = kernels if runtime.kernels == "auto" else runtime.kernels
    decisions["runtime.compile"] = decide_compile(config, has_images, decisions["device"])
    decisions["runtime.tf32"] = runtime.tf32


def check_loss(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any]) -> None:
    """Decide on torch if the hand-written kernels do not compute the algorithm's loss; record what the loss computes.

    Whoever edits a loss in a workflow's file or in `ops/`, or overrides it in a subclass, then trains with it. Two more
    instances of the algorithm, with made-up parameters, compute figures and gradients of a made-up batch: by autograd
    on the loss, and by the kernels. They have generators of their own and double precision, which makes the outcome the
    same on every machine. This takes 10 ms, so the outcome is not cached.

    `resume` compares the record with that of the checkpoint (`engine/identity.py`); rounding alone does not change it.
    """
    workflow: Any = workflow_class(config.algorithm.name)
    observes_images = any(images(group.observation) for group in spec.groups.values())
    if decisions["device"] != "cpu" or observes_images or not issubclass(workflow, HandWritten):
        return
    difference = None
    try:
        by_loss = loss_examples(config, spec, "torch")
        record = {group: summary(example) for group, example in by_loss.items()}
        if by_loss and not is_same_loss(decisions.get(LOSS, {}), record):
            decisions[LOSS] = record
        if decisions[KERNELS] == "numpy":
            difference = first_difference(by_loss, loss_examples(config, spec, "numpy"))
    except Exception as problem:  # a loss of the user's may need what only a training has
        difference = f"on a made-up batch, {type(problem).__name__}: {problem}"
    if difference is None or decisions[KERNELS] == "torch":
        return
    reason = f"the hand-written kernels do not compute the loss of {config.algorithm.name} ({difference})"
    if config.runtime.kernels == "numpy":
        raise ConfigError(f"runtime.kernels=numpy: {reason}; set runtime.kernels=torch, or undo the change of the loss")
    decisions[KERNELS], decisions[KERNELS_REASON] = "torch", f"runtime.kernels: torch, which is slower: {reason}"


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


def has_large_images(spec: EnvSpec) -> bool:
    """Return whether any group observes images of at least `LARGE` pixels a side."""
    shapes = [shape for group in spec.groups.values() for shape in images(group.observation).values()]
    return any(min(shape[1:]) >= LARGE for shape in shapes)


def decide_compile(config: RunConfig, has_images: bool, device: str) -> bool:
    """Return whether to compile the update; refuse that on a CPU for algorithms whose update is one graph."""
    setting, on_cpu, algorithm = config.runtime.compile, device == "cpu", config.algorithm
    if algorithm.one_graph:
        if setting is True and on_cpu:
            reason = f"{algorithm.name} has it for device=cuda, and its small steps are slower compiled on a CPU"
            raise ConfigError(f"runtime.compile=true: {reason}")
        own = [part.name for part in vars(algorithm).values() if isinstance(part, OptimizerConfig) and not part.builtin]
        if own and setting is True:
            raise ConfigError(f"runtime.compile=true: the optimizer '{own[0]}' cannot be part of a CUDA graph")
        return not (on_cpu or own) if setting == "auto" else setting
    worthwhile = has_images and on_cpu and has_compiler() and gradient_steps(config) >= WORTH_COMPILING
    return worthwhile if setting == "auto" else setting


def gradient_steps(config: RunConfig) -> int:
    """Return how many gradient steps the budget allows, or 0 where the config gives no budget for them."""
    training = config.training
    per_step = config.algorithm.updates_per_env_step(config.environment.num_envs)
    limits = [] if training.max_updates is None else [training.max_updates]
    if training.max_timesteps is not None:
        limits.append(int(training.max_timesteps * per_step))
    return min(limits, default=0)


def has_compiler() -> bool:
    """Return whether this machine has the C++ compiler that torch.compile needs."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def keep_memory() -> bool:
    """Make glibc reuse the memory of large arrays instead of returning it: fresh pages cost as much as a copy.

    Return whether that was possible.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # the former first: where it is refused (glibc before 2.35), the latter alone would make things worse
    return bool(set_option and set_option(M_MMAP_THRESHOLD, KEPT_MEMORY) and set_option(M_TRIM_THRESHOLD, KEPT_MEMORY))


def use_runtime(decisions: dict[str, Any]) -> None:
    """Apply the decided threads and matmul precision; raise `OtherKernelsError` if it takes a new process."""
    decisions.setdefault(BLAS, blas.loaded())  # runs from before it was a decision
    blas.require(kernels_of(decisions))
    use_threads(decisions["runtime.threads"])
    tensor_cores = decisions["runtime.tf32"] and decisions["device"].startswith("cuda")
    torch.set_float32_matmul_precision("high" if tensor_cores else "highest")


def kernels_of(decisions: dict[str, Any]) -> str:
    """Return the kernels of linear algebra that the run computed with last."""
    changes = decisions.get(BLAS_CHANGES)
    return str(changes[-1]["now"] if changes else decisions[BLAS])


def use_threads(count: int) -> None:
    """Set the number of threads of torch and of NumPy's linear algebra in this process."""
    torch.set_num_threads(count)
    threadpool_limits(count, user_api="blas")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function with torch, once for each input shape, so that the order of shapes does not change results."""
    torch._dynamo.config.recompile_limit = 256  # beyond it further shapes would not be compiled
    return torch.compile(function, dynamic=False)
