"""The modules, parameters and optimizers inside any workflow, by path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

ModuleParameters = dict[str, torch.Tensor]  # the parameters of one module, without those of its submodules, by name


class WorkflowContents:
    """The parts of a workflow; a path joins attributes and keys by dots, as in `nets.agent.actor.2.weight`."""

    def __init__(self, workflow: Any) -> None:
        parts = list(walk(workflow, "", set()))
        roots = {path: part for path, part in parts if isinstance(part, nn.Module)}
        self.modules: dict[str, nn.Module] = {}  # submodules included
        for path, root in roots.items():
            for inner, module in root.named_modules():
                self.modules[f"{path}.{inner}" if inner else path] = module
        self.groups: dict[str, ModuleParameters] = {}  # by the module that holds the parameters itself
        for path, module in self.modules.items():
            parameters: ModuleParameters = dict(module.named_parameters(recurse=False))
            if parameters:
                self.groups[path] = parameters
        in_modules = {id(parameter) for group in self.groups.values() for parameter in group.values()}
        optimizers = {path: part for path, part in parts if is_optimizer(part)}
        inside_optimizers = tuple(f"{path}." for path in optimizers)
        self.optimizers = {path: one for path, one in optimizers.items() if not path.startswith(inside_optimizers)}
        for path, part in parts:  # parameters outside modules, such as a temperature
            if is_leaf(part) and id(part) not in in_modules and not path.startswith(inside_optimizers):
                self.groups[path] = {"": part}

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter by its full path."""
        return flat(self.groups)

    @property
    def learned(self) -> dict[str, torch.Tensor]:
        """The parameters that take gradients, so none of a target network."""
        return {name: parameter for name, parameter in self.parameters.items() if parameter.requires_grad}

    def updated_by(self, optimizer: str) -> dict[str, ModuleParameters]:
        """Return the parameters that an optimizer holds, by module; all parameters if it does not expose them."""
        members = {id(part) for _, part in walk(self.optimizers[optimizer], "", set()) if is_leaf(part)}
        groups = {
            path: {name: parameter for name, parameter in group.items() if id(parameter) in members}
            for path, group in self.groups.items()
        }
        return {path: group for path, group in groups.items() if group} or self.groups


def flat(groups: dict[str, ModuleParameters]) -> dict[str, torch.Tensor]:
    """Return the parameters of modules by full path."""
    return {f"{path}.{name}".rstrip("."): one for path, group in groups.items() for name, one in group.items()}


def walk(part: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield `(path, part)` of everything reached by attributes, keys and indices, without entering modules."""
    if id(part) in visited:
        return
    visited.add(id(part))
    if path:
        yield path, part
    if isinstance(part, nn.Module | torch.Tensor | type):
        return
    inner: Iterator[tuple[Any, Any]]
    if isinstance(part, dict):
        inner = iter(part.items())
    elif isinstance(part, list | tuple):
        inner = iter(enumerate(part))
    elif hasattr(part, "__dict__") and (hasattr(part, "state_dict") or dataclasses.is_dataclass(part)):
        inner = iter(vars(part).items())
    else:
        return
    for key, value in inner:
        yield from walk(value, f"{path}.{key}" if path else str(key), visited)


def is_optimizer(part: Any) -> bool:
    return not isinstance(part, nn.Module) and callable(getattr(part, "step", None)) and hasattr(part, "zero_grad")


def is_leaf(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.requires_grad and part.is_leaf


def tensors(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `(path, tensor)` of every tensor in nested containers, such as the inputs or outputs of a module."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors(value, f"{path}.{key}" if path else str(key))
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        yield from tensors(vars(tree), path)
