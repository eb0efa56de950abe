"""What a workflow is made of, whoever wrote it: modules, parameters and optimizers by the path that leads to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

Group = dict[str, torch.Tensor]  # the parameters of one module by their own names


class WorkflowContents:
    """Paths are attributes and keys joined by dots, as in `nets.agent.actor.2.weight`."""

    def __init__(self, workflow: Any) -> None:
        found = list(walk(workflow, "", set()))
        roots = {path: part for path, part in found if isinstance(part, nn.Module)}
        self.modules: dict[str, nn.Module] = {}  # with all inside them
        for path, root in roots.items():
            for inner, module in root.named_modules():
                self.modules[f"{path}.{inner}" if inner else path] = module
        self.groups: dict[str, Group] = {}  # parameters by the module that holds them itself
        for path, module in self.modules.items():
            own: Group = {name: parameter for name, parameter in module.named_parameters(recurse=False)}
            if own:
                self.groups[path] = own
        known = {id(parameter) for group in self.groups.values() for parameter in group.values()}
        self.optimizers = {path: part for path, part in found if is_optimizer(part)}
        inside = tuple(f"{path}." for path in self.optimizers)
        for path, part in found:  # parameters in no module, a temperature say
            if is_leaf(part) and id(part) not in known and not path.startswith(inside):
                self.groups[path] = {"": part}

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        return {
            f"{path}.{name}".rstrip("."): parameter
            for path, group in self.groups.items()
            for name, parameter in group.items()
        }

    @property
    def learned(self) -> dict[str, torch.Tensor]:
        """Without those of a network that follows another."""
        return {name: parameter for name, parameter in self.parameters.items() if parameter.requires_grad}

    def moved_by(self, optimizer: str) -> dict[str, Group]:
        """The groups an optimizer holds parameters of; all of them where it does not show."""
        held = {id(part) for _, part in walk(self.optimizers[optimizer], "", set()) if is_leaf(part)}
        groups = {
            path: {name: parameter for name, parameter in group.items() if id(parameter) in held}
            for path, group in self.groups.items()
        }
        return {path: group for path, group in groups.items() if group} or self.groups


def walk(part: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """`(path, part)` of everything reached through attributes, keys and indices; modules are not entered."""
    if id(part) in seen:
        return
    seen.add(id(part))
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
        yield from walk(value, f"{path}.{key}" if path else str(key), seen)


def is_optimizer(part: Any) -> bool:
    return not isinstance(part, nn.Module) and callable(getattr(part, "step", None)) and hasattr(part, "zero_grad")


def is_leaf(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.requires_grad and part.is_leaf


def tensors(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in what a module takes or gives, however nested."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors(value, f"{path}.{key}" if path else str(key))
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        yield from tensors(vars(tree), path)
