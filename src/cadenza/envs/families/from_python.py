"""Environments handed to `cadenza.train` as Python objects: a name for each, under which a run can find it again."""

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


class Given(NamedTuple):
    """How a run finds a factory or an environment again: an id, the settings that make the same of it."""

    id: str
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()  # what the user should know


def name_of(env: Any) -> Given:
    if isinstance(env, gymnasium.Env):
        return _of_environment(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigError(f"{env} is several environments at once: give a function that makes one of them")
    if not callable(env):
        raise ConfigError(f"{env!r} is no environment: give an id, or a function that makes a gymnasium.Env")
    registered = next((id for id, factory in registry.ENVIRONMENTS.items() if factory is env), None)
    return Given(registered or registry.import_path(env) or _register(env), {})


def _of_environment(env: gymnasium.Env[Any, Any]) -> Given:
    """An environment of Gymnasium's registry goes by its id; with wrappers, it is made again with them."""
    spec = env.spec
    if spec is None or spec.id not in gymnasium.registry:
        raise ConfigError(f"{env} is one environment, and more of them are needed: {ASK}")
    if any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        raise ConfigError(f"{env} has a wrapper that Gymnasium cannot make again: {ASK}")
    anew = (f"{spec.id} is made anew as Gymnasium registered it: what was changed in the given object is not seen",)
    kwargs = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    known = any(spec.id in ids for ids in environments.families().values())
    if known and not spec.additional_wrappers and _is_plain(kwargs):
        changed = spec.max_episode_steps != gymnasium.registry[spec.id].max_episode_steps
        limit = {"environment.max_episode_steps": spec.max_episode_steps} if changed else {}
        return Given(spec.id, {**({"environment.kwargs": kwargs} if kwargs else {}), **limit}, anew)
    if spec.kwargs.get("render_mode") == "human":  # a window for every environment
        spec = dataclasses.replace(spec, kwargs=kwargs)
    return Given(_register(partial(gymnasium.make, spec, disable_env_checker=True), spec.id), {}, anew)


def _register(factory: Any, stem: str = "") -> str:
    """Make it known in this process; a function defined anew takes its place, what has no name of its own a number."""
    name = getattr(factory, "__qualname__", "<>")
    if isinstance(factory, type | FunctionType) and "<" not in name:
        id = registry.FROM_PYTHON + name
    else:
        stem = stem or re.sub(r"\W", "", name.rpartition(".")[2]) or type(factory).__name__
        number = 1 + sum(known.startswith(registry.FROM_PYTHON) for known in registry.ENVIRONMENTS)
        id = f"{registry.FROM_PYTHON}{stem}#{number}"
    registry.register_environment(id)(factory)
    return id


def _is_plain(kwargs: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(kwargs)) == kwargs)
    except (TypeError, ValueError):
        return False
