"""Decisions on what a run computes with: threads, kernels, compilation, tensor cores. Each is made once for a run.

Hand-written kernels are used only where they compute the loss that stands in the workflow's file (`check_loss`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from cadenza.base import blas
from cadenza.config.networks import OptimizerConfig, own_names
from cadenza.config.registry import workflow_class
from cadenza.config.schema import RunConfig
from cadenza.envs.vector import cores
from cadenza.errors import ConfigError
from cadenza.nets.observe import images
from cadenza.records.decisions import BLAS, BLAS_CHANGES, KERNELS, KERNELS_REASON, LOSS
from cadenza.types import EnvSpec, HandWritten
from cadenza.workflows.loss_check import first_difference, is_same_loss, loss_examples, summary

# A cold compilation takes about half a minute and saves a third of a gradient step on images (docs/performance.md).
WORTH_COMPILING = 2000  # gradient steps
LARGE = 36  # pixels: from this size on images are worth more than one thread
LARGE_PRODUCT = 1 << 26  # multiply-adds, 0.6 ms on one thread: as 256 rows by 512 x 512
WIDTHS = ("units", "encoder_units", "deter", "latent", "hidden", "size")  # settings that are the width of a layer


def decide_runtime(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any]) -> None:
    """Decide what is `auto`, unless that was done when the run began; refuse settings that the device does not have."""
    on_cpu, on_cuda = decisions["device"] == "cpu", decisions["device"].startswith("cuda")
    if "runtime.threads" in decisions:
        # runs from before there was a choice, and those that went on to another device, which ends exactness anyway
        decisions["runtime.kernels"] = decisions.get("runtime.kernels", "torch") if on_cpu else "torch"
        decisions.setdefault("runtime.compile", False)
        decisions.setdefault("runtime.tf32", False)
        return
    runtime, has_images = config.runtime, has_large_images(spec)
    require_kernels(runtime.blas)
    if runtime.kernels == "numpy" and not on_cpu:
        raise ConfigError(f"runtime.kernels=numpy: only on the CPU, and this run is on {decisions['device']}")
    for key in ("tf32", "bf16"):
        if getattr(runtime, key) and not on_cuda:
            raise ConfigError(f"runtime.{key}=true: only on CUDA, and this run is on {decisions['device']}")
    if runtime.bf16 and not config.algorithm.has_bf16:
        raise ConfigError(f"runtime.bf16=true: {config.algorithm.name} computes in float32; runtime.tf32 is faster too")
    threads = (cores() if has_images and on_cpu else 1) if runtime.threads == "auto" else runtime.threads
    decisions["runtime.threads"] = 1 if on_cpu and not has_images and has_small_products(config, spec) else threads
    kernels = "numpy" if on_cpu else "torch"
    decisions["runtime.kernels"] = kernels if runtime.kernels == "auto" else runtime.kernels
    decisions["runtime.compile"] = decide_compile(config, has_images, decisions["device"])
    decisions["runtime.tf32"] = runtime.tf32


def check_loss(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any], fresh: bool = True) -> str | None:
    """Decide on torch if the hand-written kernels do not compute the algorithm's loss; record what the loss computes.

    A `fresh` run of networks of the user's, which no kernel knows, decides on torch, too.

    Return in words that it was decided now, or that the loss cannot be recorded; else None.

    Whoever edits a loss in a workflow's file or in `ops/`, or overrides it in a subclass, then trains with it. Two more
    instances of the algorithm, with made-up parameters, compute figures and gradients of a made-up batch: by autograd
    on the loss, and by the kernels. They compute on the CPU in double precision, which makes the outcome the same on
    every machine, and seed the global generators, which a run seeds after the check. This takes 10 ms, so the outcome
    is not cached.

    `resume` compares the record with that of the checkpoint (`engine/identity.py`); rounding alone does not change it.
    A group whose loss cannot be computed has an empty record.
    """
    workflow: Any = workflow_class(config.algorithm.name)
    observes_images = any(images(group.observation) for group in spec.groups.values())
    stored: dict[str, list[float | None]] = decisions.get(LOSS, {})
    record: dict[str, list[float | None]] = {}
    problem, difference = "", None
    if issubclass(workflow, HandWritten) and not observes_images:
        try:
            by_loss = loss_examples(config, spec, "torch")
            record = {group: summary(example) for group, example in by_loss.items()}
            if decisions[KERNELS] == "numpy":
                by_kernels, modules = loss_examples(config, spec, "numpy"), own_names(config.algorithm)
                difference = first_difference(by_loss, by_kernels)
                if fresh and modules and not by_kernels and config.runtime.kernels == "auto":
                    reason = f"no hand-written kernel knows {' and '.join(modules)}"
                    decisions[KERNELS], decisions[KERNELS_REASON] = "torch", f"runtime.kernels: torch: {reason}"
        except Exception as error:  # a loss of the user's may need what only a training has
            difference = problem = f"on a made-up batch, {type(error).__name__}: {error}"
            record = record or {group: [] for group in spec.groups}
    for group, row in stored.items():  # rounding is no change
        record[group] = row if is_same_loss(row, record.get(group, [])) else record.get(group, [])
    if record:
        decisions[LOSS] = record
    name = config.algorithm.name
    if difference is None or decisions[KERNELS] == "torch":
        unknown = f"a resume cannot notice that the loss of {name} changed ({problem})"
        return unknown if problem and record != stored else None
    reason = f"the hand-written kernels do not compute the loss of {name} ({difference})"
    if config.runtime.kernels == "numpy":
        raise ConfigError(f"runtime.kernels=numpy: {reason}; set runtime.kernels=torch, or undo the change of the loss")
    decisions[KERNELS], decisions[KERNELS_REASON] = "torch", f"runtime.kernels: torch, which is slower: {reason}"
    return str(decisions[KERNELS_REASON])


def has_large_images(spec: EnvSpec) -> bool:
    """Return whether any group observes images of at least `LARGE` pixels a side."""
    shapes = [shape for group in spec.groups.values() for shape in images(group.observation).values()]
    return any(min(shape[1:]) >= LARGE for shape in shapes)


def has_small_products(config: RunConfig, spec: EnvSpec) -> bool:
    """Return whether no product of a gradient step is worth a second thread, as far as the settings tell.

    Threads wait for each other at the end of each product. That takes 20 us where they sleep meanwhile, and 20 ms where
    they spin on a core that another process uses (docs/performance.md).
    """
    algorithm = config.algorithm
    if own_names(algorithm):
        return False
    agents = max(len(group.agents) for group in spec.groups.values())
    rows: float = agents * algorithm.rows_per_update(config.environment.num_envs)
    return 0 < rows * largest_layer(algorithm) < LARGE_PRODUCT


def largest_layer(settings: Any) -> int:
    """Return the number of weights of the largest hidden layer in an algorithm's settings, or 0 if they name none."""
    sizes = [0]
    for key, value in vars(settings).items():
        if is_dataclass(value):
            sizes.append(largest_layer(value))
        elif key == "hidden_sizes":
            sizes.append(max(value, default=0) ** 2)
        elif key in WIDTHS and type(value) is int:
            sizes.append(value**2)
    return max(sizes)


def decide_compile(config: RunConfig, has_images: bool, device: str) -> bool:
    """Return whether to compile the update; refuse that on a CPU for algorithms whose update is one graph."""
    setting, on_cpu, algorithm = config.runtime.compile, device == "cpu", config.algorithm
    foreign = [part for part in vars(algorithm).values() if isinstance(part, OptimizerConfig) and not part.builtin]
    if algorithm.one_graph:
        if setting is True and on_cpu:
            reason = f"{algorithm.name} has it for device=cuda, and its small steps are slower compiled on a CPU"
            raise ConfigError(f"runtime.compile=true: {reason}")
        if foreign and setting is True:
            raise ConfigError(f"runtime.compile=true: the optimizer '{foreign[0].name}' cannot be part of a CUDA graph")
        return not (on_cpu or foreign or own_names(algorithm)) if setting == "auto" else setting
    if setting == "auto" and device.startswith("cuda"):
        return algorithm.has_graphs and not (foreign or own_names(algorithm))
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


def use_runtime(decisions: dict[str, Any]) -> None:
    """Apply the decided threads and matmul precision; raise `OtherKernelsError` if it takes a new process."""
    decisions.setdefault(BLAS, blas.loaded())  # runs from before it was a decision
    blas.require(kernels_of(decisions))
    use_threads(decisions["runtime.threads"])
    tensor_cores = decisions["runtime.tf32"] and decisions["device"].startswith("cuda")
    torch.set_float32_matmul_precision("high" if tensor_cores else "highest")


def require_kernels(setting: str) -> None:
    """Raise `OtherKernelsError` if it takes a new process to compute with the configured kernels of linear algebra.

    Refuse kernels with a name where a new process would not have them either.
    """
    kernels = blas.requested(setting)
    if kernels in ("", blas.loaded()):
        return
    blas.require(kernels)
    if setting != blas.FASTEST:
        lacks = sorted(blas.NEEDED[kernels] - blas.processor_flags())
        before = f"{blas.VARIABLE}={kernels} has to be set before NumPy is imported"
        reason = f"this processor lacks {', '.join(lacks)}" if lacks else before
        raise ConfigError(f"runtime.blas={kernels}: NumPy computes with {blas.loaded() or 'other'} kernels, {reason}")


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
    if torch.cuda.is_available():
        import torch._inductor.config as settings

        settings.deterministic = True  # else kernels are chosen by timing them, each time perhaps others
    return torch.compile(function, dynamic=False)
