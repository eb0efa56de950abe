"""What a run computes with: threads, kernels, compilation. Decided once, recorded, and kept by every resumption."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from cadenza.config.schema import RunConfig
from cadenza.envs.vector import cores
from cadenza.nets.observe import images
from cadenza.types import EnvSpec

# A cold compilation takes about half a minute and saves a third of a gradient step on images (docs/performance.md).
WORTH_COMPILING = 2000  # gradient steps


def decide_runtime(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any]) -> None:
    """Settle what is `auto`, unless that was done when the run began."""
    if "runtime.threads" in decisions:
        decisions.setdefault("runtime.kernels", "torch")  # runs from before there was a choice
        decisions.setdefault("runtime.compile", False)
        return
    runtime, sees = config.runtime, any(images(group.observation) for group in spec.groups.values())
    on_cpu = decisions["device"] == "cpu"
    # small networks gain nothing from a second thread and lose much when cores are busy
    threads = cores() if sees and on_cpu else 1
    decisions["runtime.threads"] = threads if runtime.threads == "auto" else runtime.threads
    kernels = "numpy" if on_cpu else "torch"
    decisions["runtime.kernels"] = kernels if runtime.kernels == "auto" else runtime.kernels
    worthwhile = sees and on_cpu and has_compiler() and gradient_steps(config) >= WORTH_COMPILING
    decisions["runtime.compile"] = worthwhile if runtime.compile == "auto" else runtime.compile


def gradient_steps(config: RunConfig) -> int:
    """How many a run will make, as far as its config tells."""
    training = config.training
    if training.max_updates is not None:
        return training.max_updates
    per_step = getattr(config.algorithm, "gradient_steps_per_env_step", lambda num_envs: 0.0)
    return int((training.max_timesteps or 0) * per_step(config.environment.num_envs))


def has_compiler() -> bool:
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def use_threads(count: int) -> None:
    """In torch and in NumPy's linear algebra."""
    torch.set_num_threads(count)
    threadpool_limits(count, user_api="blas")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by torch's compiler, once for each shape it meets: a run's own shapes decide, not their history."""
    return torch.compile(function, dynamic=False)
