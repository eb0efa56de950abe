"""Environments passed to `cadenza.train` as Python objects: an id for each, by which a run can make it again."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import gymnasium

from cadenza.config import environments, registry
from cadenza.errors import ConfigError

ASK = "give a function that makes it: cadenza.train(lambda: …, 'ppo')"


class EnvironmentReference(NamedTuple):
    """The id by which a run makes an environment again, and the settings that make the same one."""

    id: str
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()  # what the user should know


def reference_to(env: Any) -> EnvironmentReference:
    """Return the reference to a factory or an environment; register it under a new id where it has none.

    Refuse vector environments, environments that cannot be made again, and objects that make none.
    """
    if isinstance(env, gymnasium.Env):
        return _reference_to_environment(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigError(f"{env} is several environments at once: give a function that makes one of them")
    if not callable(env):
        raise ConfigError(f"{env!r} is no environment: give an id, or a function that makes a gymnasium.Env")
    registered = next((id for id, factory in registry.ENVIRONMENTS.items() if factory is env), None)
    return EnvironmentReference(registered or registry.import_path(env) or _register(env), {})


def _reference_to_environment(env: gymnasium.Env[Any, Any]) -> EnvironmentReference:
    """Refer to an environment of Gymnasium's registry by its id; one with wrappers is made again with them."""
    spec = env.spec
    if spec is None or spec.id not in gymnasium.registry:
        raise ConfigError(f"{env} is one environment, and more of them are needed: {ASK}")
    if any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        raise ConfigError(f"{env} has a wrapper that Gymnasium cannot make again: {ASK}")
    notes = (f"{spec.id} is made again as Gymnasium registered it: changes to the object passed are lost",)
    kwargs = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    has_family = any(spec.id in ids for ids in environments.families().values())
    if has_family and not spec.additional_wrappers and _is_json(kwargs):
        changed = spec.max_episode_steps != gymnasium.registry[spec.id].max_episode_steps
        limit = {"environment.max_episode_steps": spec.max_episode_steps} if changed else {}
        return EnvironmentReference(spec.id, {**({"environment.kwargs": kwargs} if kwargs else {}), **limit}, notes)
    if spec.kwargs.get("render_mode") == "human":  # a window for every environment
        spec = dataclasses.replace(spec, kwargs=kwargs)
    return EnvironmentReference(_register(partial(gymnasium.make, spec, disable_env_checker=True), spec.id), {}, notes)


def _register(factory: Any, stem: str = "") -> str:
    """Register a factory in this process and return its id; a redefined function keeps its id, others get a number."""
    name = getattr(factory, "__qualname__", "<>")
    if isinstance(factory, type | FunctionType) and "<" not in name:
        id = registry.FROM_PYTHON + name
    else:
        stem = stem or re.sub(r"\W", "", name.rpartition(".")[2]) or type(factory).__name__
        number = 1 + sum(registered.startswith(registry.FROM_PYTHON) for registered in registry.ENVIRONMENTS)
        id = f"{registry.FROM_PYTHON}{stem}#{number}"
    registry.register_environment(id)(factory)
    return id


def _is_json(kwargs: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(kwargs)) == kwargs)
    except (TypeError, ValueError):
        return False
