"""Parts of other packages in place of built-in ones: made with the arguments of those, and checked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from cadenza.config import plugins, registry
from cadenza.config.networks import HeadConfig, OwnHead, OwnPart
from cadenza.config.world_model_settings import WorldModelConfig
from cadenza.errors import ConfigError, foreign_code
from cadenza.types import (
    Denoiser,
    DifferentiableHead,
    DiscreteHead,
    Dynamics,
    LatentPolicy,
    MemoryLayer,
    PolicyHead,
)


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
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        output, action = _try_head(head, where, space)
        numbers = dict(zip(("log-probability", "entropy"), head.evaluate(output, None, action), strict=True))
        check_shapes(where, numbers, (3, 2))
    return head


def own_sac_head(space: spaces.Space[Any], part: OwnHead) -> Any:
    """Make a user's action head for SAC; refuse one whose actions or log-probabilities are not those of the space."""
    is_continuous, where = isinstance(space, spaces.Box), f"head '{part.name}'"
    head = own_part(part, DifferentiableHead if is_continuous else DiscreteHead, space)
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        output, action = _try_head(head, where, space)
        if isinstance(space, spaces.Box):
            drawn, log_prob = head.draw(output, torch.Generator())
            units = {"a drawn action": drawn, "to_unit of an action": head.to_unit(action)}
            check_shapes(where, units, (3, 2, math.prod(space.shape)))
            check_shapes(where, {"log-probability of a drawn action": log_prob}, (3, 2))
        elif isinstance(space, spaces.Discrete):
            check_shapes(where, {"log_probs": head.log_probs(output, None)}, (3, 2, int(space.n)))
    return head


def _try_head(head: Any, where: str, space: spaces.Space[Any]) -> tuple[Tensor, Tensor]:
    """Return an output of a network [3, 2, F] and the most likely actions, as a test of a user's action head."""
    if not isinstance(getattr(head, "outputs", None), int):
        raise ConfigError(f"{where} lacks a whole number `outputs`: how many numbers it needs from the network")
    output = torch.zeros(3, 2, head.outputs)
    actions = {"mode": head.mode(output, None), "sample": head.sample(output, None, torch.Generator())}
    head.summary(output, None)
    check_shapes(where, actions, (3, 2, *(space.shape or ())))
    return output, actions["mode"]


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


def own_latent_policy(part: OwnPart, latent: int, actions: int) -> Any:
    """Make a user's policy in latent states; refuse one that does not learn, or whose actions are not theirs."""
    policy, where = own_part(part, LatentPolicy, latent, actions), f"policy '{part.name}'"
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        if not any(parameter.requires_grad for parameter in policy.parameters()):
            raise ConfigError(f"{where} has no parameters to learn")
        action, log_density = policy(torch.zeros(3, 2, latent), torch.zeros(3, 2, actions))
        check_shapes(where, {"action": action}, (3, 2, actions))
        check_shapes(where, {"log-density": log_density}, (3, 2))
    return policy


def own_denoiser(part: OwnPart, actions: int, horizon: int, history: int, features: int) -> Any:
    """Make a user's network that predicts the noise in actions; refuse one that does not return their shape."""
    net, where = own_part(part, Denoiser, actions, horizon, history, features), f"denoiser '{part.name}'"
    shape = (3, horizon, actions)
    with foreign_code(f"{where} cannot be called"), torch.no_grad():
        noise = net(torch.zeros(shape), torch.zeros(3, dtype=torch.long), torch.zeros(3, history, features))
        check_shapes(where, {"noise": noise}, shape)
    return net


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
