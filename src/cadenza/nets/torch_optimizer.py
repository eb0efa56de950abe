"""Optimizers of other packages with the interface of `torch.optim.Optimizer`, behind that of `nets/optimizers.py`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.config import plugins
from cadenza.config.networks import OptimizerConfig
from cadenza.errors import ConfigError, foreign_code
from cadenza.nets.optimizers import Block, Optimizer

SAVED = (Tensor, bool, int, float, str, type(None))  # what a checkpoint holds besides dicts, lists and tuples of them


class TorchOptimizer(Optimizer):
    """A torch optimizer on the parameters themselves, with one parameter group for each part.

    The step size of each step is its groups' `lr`. State: torch's, by the names of parameters instead of numbers.
    """

    def __init__(self, net: nn.Module, config: OptimizerConfig, parts: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__(net, config, parts)
        check_works(config)
        self._torch = create(config, [{"params": block.parameters} for block in self.blocks.values()])
        self._names = [name for block in self.blocks.values() for name in block.names]

    def _move_blocks(self, blocks: list[Block], learning_rate: float | Tensor) -> None:
        idle = [parameter for block in self.blocks.values() if block not in blocks for parameter in block.parameters]
        gradients = [parameter.grad for parameter in idle]
        for parameter in idle:
            parameter.grad = None  # torch skips those
        rate = float(learning_rate)  # not every optimizer takes a tensor; waits for the device, so once
        for group in self._torch.param_groups:
            group["lr"] = rate
        with torch.no_grad():
            self._torch.step()
        for parameter, gradient in zip(idle, gradients, strict=True):
            parameter.grad = gradient
        for block in blocks:
            block.gather_values()

    def state_dict(self) -> dict[str, Any]:
        state = self._torch.state_dict()
        named = {self._names[key] if isinstance(key, int) else key: value for key, value in state["state"].items()}
        groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
        return {**state, "state": named, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        numbers = {name: number for number, name in enumerate(self._names)}
        now = self._torch.state_dict()["param_groups"]
        state = copy.deepcopy(state)
        self._torch.load_state_dict(
            {
                **state,
                "state": {numbers.get(key, key): value for key, value in state["state"].items()},
                "param_groups": [
                    {**group, "params": new["params"]} for group, new in zip(state["param_groups"], now, strict=True)
                ],
            }
        )
        self._restore_types(state["state"])

    def _restore_types(self, stored: Mapping[str, Any]) -> None:
        """Bring state back to the dtypes it was stored in: torch's loading casts it to those of the parameters."""
        for block in self.blocks.values():
            for parameter, name in zip(block.parameters, block.names, strict=True):
                for key, value in stored.get(name, {}).items():
                    state = self._torch.state[parameter]  # made where it is asked for
                    if isinstance(value, Tensor) and value.dtype != state[key].dtype:
                        state[key] = value.to(state[key].device)


def create(config: OptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Make the optimizer that the settings name; refuse what is none."""
    make = plugins.load("optimizer", config.name)
    arguments = dict(config.kwargs)
    with foreign_code(f"optimizer '{config.name}' cannot be made with its kwargs"):
        rate = inspect.signature(make).parameters.get("lr")
        if rate is not None and rate.default is rate.empty:
            arguments["lr"] = 1e-3  # until the first step sets it
        optimizer = make(groups, **arguments)
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise ConfigError(f"optimizer '{config.name}' must be a torch.optim.Optimizer, not a {kind}")
    if any("lr" not in group for group in optimizer.param_groups):
        raise ConfigError(
            f"optimizer '{config.name}' has no lr in its groups: algorithm.learning_rate would do nothing"
        )
    return optimizer


def check_works(config: OptimizerConfig) -> None:
    """Refuse an optimizer that cannot make a step from gradients alone, or whose state cannot be saved."""
    where = f"optimizer '{config.name}'"
    weight = nn.Parameter(torch.ones(2, 2))
    trial = create(config, [{"params": [weight]}])
    weight.grad = torch.ones(2, 2)
    with foreign_code(f"{where} cannot make a step from gradients alone"), torch.no_grad():
        trial.step()
    _refuse_unsaved(trial.state_dict(), where)


def _refuse_unsaved(tree: Any, where: str) -> None:
    if isinstance(tree, dict | list | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            _refuse_unsaved(part, where)
    elif not isinstance(tree, SAVED):
        raise ConfigError(f"{where} has a {type(tree).__name__} in its state: a checkpoint holds tensors and numbers")
