"""The state of a workflow, as named parts of a few kinds: networks, optimizers, normalisers; its estimators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.config.networks import EstimatorConfig
from cadenza.errors import ConfigError, foreign_code
from cadenza.ops.returns import ESTIMATORS
from cadenza.types import Stateful

Estimator = Callable[..., Any]  # the arguments of `ops.returns.gae` to advantages [T, …], or those and value targets


class Parts:
    """Stateful parts by kind and name: `Parts(networks={"agent": net}, optimizers={"agent": adam})`.

    The mappings are not copied: a part that is replaced in them is saved and loaded from then on.
    """

    __slots__ = ("kinds",)  # so a search through a workflow's attributes (`watch/`) does not find its parts twice

    def __init__(self, **kinds: Mapping[str, Any]) -> None:
        self.kinds = kinds

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every part, by kind and name."""
        return {kind: {name: part.state_dict() for name, part in parts.items()} for kind, parts in self.kinds.items()}

    def load_state_dict(self, state: Mapping[str, Any], skip: Collection[str] = ()) -> None:
        """Load every part except those in `skip`, which holds kinds and `kind.name`."""
        for kind, parts in self.kinds.items():
            for name, part in parts.items():
                if kind not in skip and f"{kind}.{name}" not in skip:
                    part.load_state_dict(state[kind][name])

    def load_weights(self, state: Mapping[str, Any], skip: Collection[str] = ()) -> None:
        """Load the parts from the state of another run, except optimizers, a user's functions and those in `skip`."""
        self.load_state_dict(state, ("optimizers", "functions", *skip))


def own_states(**functions: Any) -> dict[str, dict[str, Any]]:
    """Return those of a user's functions that have a state, for `Parts`; nothing if none has."""
    stateful = {name: function for name, function in functions.items() if isinstance(function, Stateful)}
    return {"functions": stateful} if stateful else {}


def estimator(config: EstimatorConfig, where: str) -> Estimator:
    """Return the estimator that the settings name; refuse one that cannot be called with the arguments of `gae`."""
    if config.name in ESTIMATORS and not config.kwargs:
        return ESTIMATORS[config.name]
    from cadenza.nets.own_parts import own_function

    trial = torch.zeros(3, 2, 1)
    with foreign_code(f"{where}={config.name} cannot be called as gae is"):
        results = own_function(config, ESTIMATORS)(trial, trial, trial, trial.bool(), 0.99, 0.95)
    for result in results if isinstance(results, tuple) else (results,):
        if not isinstance(result, Tensor) or result.shape != trial.shape:
            shape = "[T, N, A], or a pair of these and of value targets"
            raise ConfigError(f"{where}={config.name} must return a tensor of the shape of the rewards, {shape}")
    return own_function(config, ESTIMATORS)  # another one: the call may have changed its state


def takes_ratio(estimate: Estimator) -> bool:
    """Return whether an estimator has an argument for the likelihood ratios of the actions, as V-trace has."""
    call = estimate.forward if isinstance(estimate, nn.Module) else estimate
    return "ratio" in inspect.signature(call).parameters


def both(results: Any, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return advantages and value targets from the results of an estimator."""
    return results if isinstance(results, tuple) else (results, results + value)
