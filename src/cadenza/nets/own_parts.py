"""Parts of other packages in place of built-in ones: made with the arguments of those, and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config import plugins, registry
from cadenza.config.networks import HeadConfig, OwnPart
from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.errors import ConfigError, foreign_code
from cadenza.types import Dynamics, MemoryLayer, PolicyHead


def own_part(part: OwnPart | HeadConfig, interface: type, *arguments: Any) -> Any:
    """Make a user's module with the arguments of the part it replaces; refuse one that lacks a method."""
    make, where = plugins.load(part.kind, part.name), f"{part.kind} '{part.name}'"
    takes = ", ".join(inspect.signature(interface).parameters)
    with foreign_code(f"{where} cannot be made with {takes} and its kwargs"):
        instance = make(*arguments, **part.kwargs)
    registry.require_methods(instance, interface, where)
    return instance


def own_head(space: spaces.Space[Any], part: HeadConfig) -> Any:
    """Make a user's action head; refuse one whose actions are not those of the space."""
    head, where = own_part(part, PolicyHead, space), f"head '{part.name}'"
    if not isinstance(getattr(head, "outputs", None), int):
        raise ConfigError(f"{where} lacks a whole number `outputs`: how many numbers it needs from the network")
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        output = torch.zeros(3, 2, head.outputs)
        actions = {"mode": head.mode(output, None), "sample": head.sample(output, None, torch.Generator())}
        numbers = dict(zip(("log-probability", "entropy"), head.evaluate(output, None, actions["mode"]), strict=True))
        head.summary(output, None)
        check_shapes(where, actions, (3, 2, *(space.shape or ())))
        check_shapes(where, numbers, (3, 2))
    return head


def own_dynamics(part: OwnPart, actions: int, embedding: int, config: WorldModelConfig) -> Any:
    """Make a user's dynamics of a world model; refuse one whose states do not have the sizes of the settings."""
    model, where = own_part(part, Dynamics, actions, embedding, config), f"dynamics '{part.name}'"
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        start, noise = model.initial(3), model.noise(2, 3, generator=torch.Generator().manual_seed(0))
        blank = (torch.zeros(2, 3, embedding), torch.zeros(2, 3, actions), torch.zeros(2, 3, dtype=torch.bool))
        observed = model.observe(*blank, start, noise)
        imagined = model.imagine_step(start, blank[1][0], noise[0])
        model.observe_one(*(x[0] for x in blank), start, noise[0])
        divergence = model.divergence(*observed.post, *observed.prior)
        for name, size in (("deter", config.deter), ("stoch", config.stoch_size)):
            check_shapes(where, {f"{name} of 2 observed steps": getattr(observed.state, name)}, (2, 3, size))
            check_shapes(where, {f"{name} of an imagined step": getattr(imagined, name)}, (3, size))
        check_shapes(where, {"divergence of 2 steps": divergence}, (2, 3))
    return model


def own_memory(part: OwnPart, inputs: int, size: int) -> Any:
    """Make a user's layer of a memory; refuse one whose features or carries do not have the shapes of one."""
    layer, where = own_part(part, MemoryLayer, inputs, size), f"memory '{part.name}'"
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        carry, first = layer.initial(3), torch.zeros(2, 3, dtype=torch.bool)
        features, carries = layer(torch.zeros(2, 3, inputs), carry, first, True)
        check_shapes(where, {"features of 2 steps of 3 sequences": features}, (2, 3, size))
        for name, before in carry.items():
            check_shapes(where, {f"carry '{name}' after 2 steps": carries[name]}, (2, *before.shape))
    return layer


def check_shapes(where: str, results: Mapping[str, Tensor], shape: tuple[int, ...]) -> None:
    """Refuse results of a user's part, by name, whose shape is another."""
    for name, result in results.items():
        if result.shape != shape:
            raise ConfigError(f"{where}: {name} has the shape {list(result.shape)}, not {list(shape)}")


def own_function(part: OwnPart, builtin: Mapping[str, Callable[..., Any]] = MappingProxyType({})) -> Callable[..., Any]:
    """Return a user's function with its keyword arguments, or an object of a user's class, which is made with them.

    The name may also be one of the `builtin` functions.
    """
    plugin = builtin.get(part.name) or plugins.load(part.kind, part.name)
    if not isinstance(plugin, type):
        return partial(plugin, **part.kwargs) if part.kwargs else plugin
    with foreign_code(f"{part.kind} '{part.name}' cannot be made with its kwargs"):
        function: Callable[..., Any] = plugin(**part.kwargs)
    return function


def own_network(inputs: int, outputs: int, part: OwnPart) -> nn.Module:
    """Make a user's module with its numbers of inputs and outputs; refuse one that does not map [*, inputs] to them."""
    make, where = plugins.load(part.kind, part.name), f"{part.kind} '{part.name}'"
    with foreign_code(f"{where} cannot be made with inputs, outputs and its kwargs"):
        net = make(inputs, outputs, **part.kwargs)
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{where} must be an nn.Module, not a {type(net).__name__}")
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        result = net(torch.zeros(3, 2, inputs))
    if not isinstance(result, Tensor) or result.shape != (3, 2, outputs) or result.dtype != torch.float32:
        kind = f"{list(result.shape)} {result.dtype}" if isinstance(result, Tensor) else type(result).__name__
        raise ConfigError(f"{where} makes {kind} of [3, 2, {inputs}], not [3, 2, {outputs}] torch.float32")
    return net
