"""Make environments by name, and list them with their facts. `config/environments.py` resolves the names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any
from weakref import WeakValueDictionary

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from cadenza.config import registry
from cadenza.config.environments import families, family_of, missing, resolve
from cadenza.config.registry import load_own
from cadenza.config.schema import EnvironmentConfig
from cadenza.errors import (
    CadenzaError,
    ConfigError,
    EnvironmentFault,
)
from cadenza.types import Environment, EnvSpec

FACTS = ("id", "family", "observation", "action", "max_episode_steps", "threshold", "restore", "variants", "error")
MANY = 40  # environments in a family from which on they are listed without being made, unless asked for
_MADE: WeakValueDictionary[int, Any] = WeakValueDictionary()  # what users' factories have returned, by identity


def make(config: EnvironmentConfig, render: bool = False) -> Environment:
    """One environment. Mistakes in `environment.kwargs` are told as such."""
    from cadenza.envs.padding import arranged, by_type
    from cadenza.envs.wrapping import dress, needs_pictures

    config = dataclasses.replace(config, id=resolve(config.id))
    found = family_of(config.id)
    render = render or needs_pictures(config)
    bare = by_type(config)
    try:
        made: Environment = _own(bare, render) if found is None else found[1].make(bare, render)
        return arranged(dress(made, config), config)
    except CadenzaError:
        raise
    except Exception as problem:
        if found and found[0].requires and isinstance(problem, ImportError | gymnasium.error.DependencyNotInstalled):
            raise missing(found[0]) from problem
        reason = f"{type(problem).__name__}: {problem}"
        if config.kwargs:
            raise ConfigError(f"environment.kwargs: {config.id} refuses {dict(config.kwargs)} ({reason})") from problem
        raise EnvironmentFault(f"environment {config.id} cannot be made ({reason})") from problem


def listing(filter: str = "") -> list[dict[str, Any]]:
    """A row per environment whose id or family contains the filter, in the order of the families."""
    wanted = filter.lower()
    broken = registry.load_environments()
    listed = [(id, family) for family, names in families().items() for id in names]
    listed += [(name, name.partition("/")[0]) for name in broken]
    chosen = [(id, family) for id, family in listed if wanted in id.lower() or wanted == family.lower()]
    many = {name for name, names in families().items() if len(names) >= MANY and not wanted}
    return [_row(id, family, broken.get(id), briefly=family in many) for id, family in chosen]


def describe(space: spaces.Space[Any]) -> str:
    """A space in a few letters."""
    if isinstance(space, spaces.Dict):
        return "{" + ", ".join(f"{key}: {describe(part)}" for key, part in space.spaces.items()) + "}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, spaces.Box):
        return f"Box({'x'.join(map(str, space.shape))}) {space.dtype}"
    return str(space)


def _row(id: str, family: str, broken: CadenzaError | None, briefly: bool = False) -> dict[str, Any]:
    """The facts, or those known without making it; of an environment that cannot be made, why not."""
    row: dict[str, Any] = dict.fromkeys(FACTS) | {"id": id, "family": family, "variants": tuned_variants(id)}
    if briefly and not row["variants"]:
        return row
    config = EnvironmentConfig(id=id)
    try:
        if broken is not None:
            raise broken
        env = make(config)
        spec = env.spec
        env.close()
    except Exception as problem:  # whatever closing an environment of somebody's may raise
        plain = isinstance(problem, CadenzaError)
        return row | {"error": str(problem) if plain else f"{id}: {type(problem).__name__}: {problem}"}
    return row | {
        "observation": _by_group(spec, "observation"),
        "action": _by_group(spec, "action"),
        "max_episode_steps": spec.max_episode_steps,
        "threshold": spec.return_threshold,
        "restore": native.restore if (native := native_version(config)) else spec.restore,
    }


def _by_group(spec: EnvSpec, side: str) -> str:
    described = {name: describe(getattr(group, side)) for name, group in spec.groups.items()}
    if len(described) == 1:
        return next(iter(described.values()))
    return "; ".join(f"{name}: {text}" for name, text in described.items())


def native_version(config: EnvironmentConfig) -> Any | None:
    """The family's own vectorised version of an environment, where it has one."""
    family = family_of(config.id)
    if family is None or set(config.dressing) - set(getattr(family[1], "NATIVE_DRESSING", ())):
        return None
    return family[1].native(config) if hasattr(family[1], "native") else None


def one_per_process(id: str) -> bool:
    """Whether every environment of this kind needs a process of its own."""
    family = family_of(id)
    return family is not None and getattr(family[1], "ONE_PER_PROCESS", False)


def tuned_variants(id: str) -> list[str]:
    """Variants with an experiment file of their own."""
    folder = files("cadenza").joinpath("conf", "experiment", *id.split("/"))
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _own(config: EnvironmentConfig, render: bool) -> Environment:
    """A user's environment: registered, or found by its import path."""
    from cadenza.envs.families.gym import Gym, check_arguments
    from cadenza.envs.families.pettingzoo import adapted, is_pettingzoo

    factory = load_own(config.id) if ":" in config.id else registry.ENVIRONMENTS[config.id]
    check_arguments(factory, config.kwargs, config.id)
    made = _called(factory, config.kwargs, render)
    if isinstance(made, gymnasium.Env) or is_pettingzoo(made):
        _refuse_again(made.unwrapped, config.id)
    if isinstance(made, gymnasium.Env):
        registered, limit = made.spec, inner_limit(made)
        if limit is not None and (config.max_episode_steps or 0) > limit:
            raise ConfigError(
                f"environment.max_episode_steps={config.max_episode_steps}: {config.id} ends its episodes itself, "
                f"by a TimeLimit of {limit} steps; give at most that"
            )
        if limit is None and registered is not None:
            limit = registered.max_episode_steps
        return Gym(
            made,
            id=config.id,
            max_episode_steps=config.max_episode_steps or limit,
            return_threshold=registered.reward_threshold if registered else None,
            clip_actions=config.clip_actions,
        )
    if is_pettingzoo(made):
        return adapted(made, config)
    if not hasattr(made, "spec") or not hasattr(made, "step"):
        raise ConfigError(f"'{config.id}' must return a gymnasium.Env, not {type(made).__name__}")
    environment: Environment = made
    if config.max_episode_steps not in (None, environment.spec.max_episode_steps):
        raise ConfigError(
            f"environment.max_episode_steps={config.max_episode_steps}: {config.id} keeps its own time limit "
            f"({environment.spec.max_episode_steps}); set it through environment.kwargs"
        )
    return environment


def _called(factory: Any, kwargs: Mapping[str, Any], render: bool) -> Any:
    """What it makes; to be looked at if it can be."""
    parameters = inspect.signature(factory).parameters
    if render and (_func(factory) is gymnasium.make or "render_mode" in parameters):
        return factory(**kwargs, render_mode="rgb_array")
    if render and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        with suppress(TypeError):  # whoever takes anything may pass it on to one that does not
            return factory(**kwargs, render_mode="rgb_array")
    return factory(**kwargs)


def _refuse_again(made: Any, name: str) -> None:
    """Environments that are one object in truth would step each other, in training and in evaluation."""
    if _MADE.get(id(made)) is made:
        raise ConfigError(f"{name} returned the same environment twice: it must make a new one at every call")
    _MADE[id(made)] = made


def _func(factory: Any) -> Any:
    """What a functools.partial calls in the end; anything else as it is."""
    return _func(factory.func) if isinstance(factory, partial) else factory


def inner_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """The steps after which a wrapper of Gymnasium's ends an episode."""
    limits = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)
