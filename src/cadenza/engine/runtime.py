"""What a run computes with: threads, kernels, compilation, tensor cores. Decided once and kept by every resumption."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Callable
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from cadenza.config.schema import RunConfig
from cadenza.envs.vector import cores
from cadenza.errors import ConfigError
from cadenza.nets.observe import images
from cadenza.types import EnvSpec

# A cold compilation takes about half a minute and saves a third of a gradient step on images (docs/performance.md).
WORTH_COMPILING = 2000  # gradient steps
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's `mallopt`
KEPT_MEMORY = 1 << 28  # bytes: arrays up to this size, and as much that nobody uses
LARGE = 36  # pixels: from this size on images are worth more than one thread


def decide_runtime(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any]) -> None:
    """Settle what is `auto`, unless that was done when the run began."""
    on_cpu = decisions["device"] == "cpu"
    if "runtime.threads" in decisions:
        # runs from before there was a choice, and those that went on to another device, which ends exactness anyway
        decisions["runtime.kernels"] = decisions.get("runtime.kernels", "torch") if on_cpu else "torch"
        decisions.setdefault("runtime.compile", False)
        decisions.setdefault("runtime.tf32", False)
        return
    runtime, sees = config.runtime, large_images(spec)
    if runtime.kernels == "numpy" and not on_cpu:
        raise ConfigError(f"runtime.kernels=numpy: only on the CPU, and this run is on {decisions['device']}")
    if runtime.tf32 and not decisions["device"].startswith("cuda"):
        raise ConfigError(f"runtime.tf32=true: only on CUDA, and this run is on {decisions['device']}")
    # small networks gain nothing from a second thread and lose much when cores are busy
    threads = cores() if sees and on_cpu else 1
    decisions["runtime.threads"] = threads if runtime.threads == "auto" else runtime.threads
    kernels = "numpy" if on_cpu else "torch"
    decisions["runtime.kernels"] = kernels if runtime.kernels == "auto" else runtime.kernels
    decisions["runtime.compile"] = decide_compile(config, sees, decisions["device"])
    decisions["runtime.tf32"] = runtime.tf32


def large_images(spec: EnvSpec) -> bool:
    shapes = [shape for group in spec.groups.values() for shape in images(group.observation).values()]
    return any(min(shape[1:]) >= LARGE for shape in shapes)


def decide_compile(config: RunConfig, sees: bool, device: str) -> bool:
    """`sees`: large images."""
    asked, on_cpu, algorithm = config.runtime.compile, device == "cpu", config.algorithm
    if algorithm.one_graph:
        if asked is True and on_cpu:
            why = f"{algorithm.name} has it for device=cuda, and its small steps are slower compiled on a CPU"
            raise ConfigError(f"runtime.compile=true: {why}")
        return not on_cpu if asked == "auto" else asked
    worthwhile = sees and on_cpu and has_compiler() and gradient_steps(config) >= WORTH_COMPILING
    return worthwhile if asked == "auto" else asked


def gradient_steps(config: RunConfig) -> int:
    """How many a run will make, as far as its config tells."""
    training = config.training
    per_step = config.algorithm.updates_per_env_step(config.environment.num_envs)
    known = [] if training.max_updates is None else [training.max_updates]
    if training.max_timesteps is not None:
        known.append(int(training.max_timesteps * per_step))
    return min(known, default=0)


def has_compiler() -> bool:
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def keep_memory() -> bool:
    """Let large arrays lie where earlier ones lay: pages given back and taken anew cost as much as a copy (glibc).

    Whether it could be had.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # the former first: where it is refused (glibc before 2.35), the latter alone would make things worse
    return bool(set_option and set_option(M_MMAP_THRESHOLD, KEPT_MEMORY) and set_option(M_TRIM_THRESHOLD, KEPT_MEMORY))


def use_runtime(decisions: dict[str, Any]) -> None:
    """In this process from now on."""
    use_threads(decisions["runtime.threads"])
    by_tensor_cores = decisions["runtime.tf32"] and decisions["device"].startswith("cuda")
    torch.set_float32_matmul_precision("high" if by_tensor_cores else "highest")


def use_threads(count: int) -> None:
    """In torch and in NumPy's linear algebra, of this process."""
    torch.set_num_threads(count)
    threadpool_limits(count, user_api="blas")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by torch's compiler, once for each shape it meets: a run's own shapes decide, not their history."""
    torch._dynamo.config.recompile_limit = 256  # beyond it shapes would be computed as if nothing was compiled
    return torch.compile(function, dynamic=False)
