"""cadenza: a reinforcement-learning lab. Importing it is quick and has no side effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadenza.api import Run, build, compare, evaluate, load, runs, sweep, train, tune, verify
    from cadenza.config.plugins import (
        register_buffer,
        register_decoder,
        register_dynamics,
        register_estimator,
        register_head,
        register_network,
        register_optimizer,
        register_planner,
        register_schedule,
        register_sink,
    )
    from cadenza.config.registry import register_algorithm, register_environment, register_wrapper
    from cadenza.engine import events

__version__ = "0.1.0"
__all__ = [
    "Run", "build", "compare", "evaluate", "events", "load", "register_algorithm", "register_buffer",
    "register_decoder", "register_dynamics", "register_environment", "register_estimator", "register_head",
    "register_network", "register_optimizer", "register_planner", "register_schedule", "register_sink",
    "register_wrapper", "runs", "sweep", "train", "tune", "verify",
]  # fmt: skip

_OF_REGISTRY = ("register_algorithm", "register_environment", "register_wrapper")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `import cadenza` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module 'cadenza' has no attribute '{name}'")
    from importlib import import_module

    if name == "events":
        return import_module("cadenza.engine.events")
    registers = "cadenza.config.registry" if name in _OF_REGISTRY else "cadenza.config.plugins"
    return getattr(import_module(registers if name.startswith("register_") else "cadenza.api"), name)
