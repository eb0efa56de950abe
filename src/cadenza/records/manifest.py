"""The facts that identify and reproduce a run: command, code, versions, machine. Imports nothing heavy."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadenza.config.schema import RunConfig

PACKAGES = ("cadenza", "torch", "numpy", "gymnasium")
# recorded if installed: what the physics and pictures of environments come from
WORLDS = (
    *("mujoco", "dm_control", "box2d", "pygame-ce", "pygame", "ale-py", "minigrid", "envpool", "vmas", "scipy"),
    *("pettingzoo", "mpe2", "gymnasium-robotics", "pymunk", "rlcard", "smac", "smacv2", "minari"),
)
# that change what is computed, or in which order
VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_CBWR", "OPENBLAS_CORETYPE", "PYTHONHASHSEED"),
    *("CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "MUJOCO_GL", "ATEN_CPU_CAPABILITY"),
)
GIT_SECONDS = 1.0


def describe_run(config: RunConfig, command: list[str]) -> dict[str, Any]:
    """Return the content of manifest.json without the run's id."""
    from cadenza.config.convert import config_hash, to_dict
    from cadenza.records.folder import timestamp
    from cadenza.records.trust import signatures

    return {
        "spec": f"{config.environment.id}:{config.variant}",
        "environment": config.environment.id,
        "algorithm": config.algorithm.name,
        "seed": config.seed,
        "name": config.name,
        "tags": list(config.tags),
        "created": timestamp(),
        "command": command,
        "config_hash": config_hash(config),
        "signatures": signatures(to_dict(config)),
        "git": git_state(),
        "versions": versions() | {name: installed for name in WORLDS if (installed := package_version(name))},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "machine": machine(),
        **origin(to_dict(config)),
    }


def origin(config: dict[str, Any]) -> dict[str, Any]:
    """Return the modules that a config names, each with the package it comes from, and the folder of the process.

    Environments and algorithms of packages count by their names. Nothing where a config names none.
    """
    from cadenza.config.registry import ENVIRONMENTS, algorithm
    from cadenza.records.trust import imports_named

    modules = {path.partition(":")[0]: path.partition(":")[0] for path in imports_named(config)}
    if (make := ENVIRONMENTS.get(config["environment"]["id"])) is not None:
        modules[config["environment"]["id"]] = make.__module__
    name = str(config["algorithm"]["name"])
    if ":" not in name:
        modules[name] = place_of(algorithm(name).workflow)
    top = {name: module.partition(".")[0] for name, module in sorted(modules.items())}
    if not {*top.values()} - {"cadenza"}:
        return {}
    packages = packages_distributions()
    owners = {name: packages.get(module, [""])[0] for name, module in top.items() if module != "cadenza"}
    versions = {name: f"{package} {package_version(package)}" if package else None for name, package in owners.items()}
    return {"modules": versions, "folder": os.getcwd()}


def place_of(part: str | type) -> str:
    """Return the module of a class, or of its import path."""
    return part.partition(":")[0] if isinstance(part, str) else part.__module__


def git_state() -> dict[str, Any] | None:
    """Return the commit of the working directory and whether tracked files differ from it; None if not in git."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(*arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def versions() -> dict[str, str | None]:
    return {"python": platform.python_version()} | {package: package_version(package) for package in PACKAGES}


def package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    here = {"platform": platform.platform(), "cpu": _cpu_model(), "cores": cores, "host": platform.node()}
    torch: Any = sys.modules.get("torch")  # runs have it by now; it is not worth importing for this
    if torch is not None and torch.cuda.is_available():
        here |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return here


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
