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
    "Run",
    "build",
    "compare",
    "evaluate",
    "events",
    "load",
    "register_algorithm",
    "register_buffer",
    "register_decoder",
    "register_dynamics",
    "register_environment",
    "register_estimator",
    "register_head",
    "register_network",
    "register_optimizer",
    "register_planner",
    "register_schedule",
    "register_sink",
    "register_wrapper",
    "runs",
    "sweep",
    "train",
    "tune",
    "verify",
]

_ORIGINS = {
    "Run": "cadenza.api",
    "build": "cadenza.api",
    "compare": "cadenza.api",
    "evaluate": "cadenza.api",
    "events": "cadenza.engine",
    "load": "cadenza.api",
    "register_algorithm": "cadenza.config.registry",
    "register_buffer": "cadenza.config.plugins",
    "register_decoder": "cadenza.config.plugins",
    "register_dynamics": "cadenza.config.plugins",
    "register_estimator": "cadenza.config.plugins",
    "register_head": "cadenza.config.plugins",
    "register_network": "cadenza.config.plugins",
    "register_optimizer": "cadenza.config.plugins",
    "register_planner": "cadenza.config.plugins",
    "register_schedule": "cadenza.config.plugins",
    "register_sink": "cadenza.config.plugins",
    "register_environment": "cadenza.config.registry",
    "register_wrapper": "cadenza.config.registry",
    "runs": "cadenza.api",
    "sweep": "cadenza.api",
    "train": "cadenza.api",
    "tune": "cadenza.api",
    "verify": "cadenza.api",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `import cadenza` does not import torch."""
    if name not in _ORIGINS:
        raise AttributeError(f"module 'cadenza' has no attribute '{name}'")
    from importlib import import_module

    origin = import_module(_ORIGINS[name])
    return getattr(origin, name) if hasattr(origin, name) else import_module(f"{_ORIGINS[name]}.{name}")
