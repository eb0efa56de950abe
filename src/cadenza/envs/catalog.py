"""Make environments by name, also the first of a run, and list them. `config/environments.py` resolves the names."""

from __future__ import annotations

import dataclasses
import inspect
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any
from weakref import WeakValueDictionary

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from cadenza.config import registry
from cadenza.config.environments import families, family_of, missing, resolve
from cadenza.config.registry import load_own
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments
from cadenza.envs.layout import Array, describe
from cadenza.errors import CadenzaError, ConfigError, EnvironmentFault
from cadenza.types import Environment, EnvSpec, Frame

FACTS = (
    *("id", "family", "observation", "action", "max_episode_steps", "threshold", "reward_range", "restore"),
    *("variants", "error"),
)
MANY = 40  # a family of at least so many environments is listed without making them, unless the filter names it
_returned: WeakValueDictionary[int, Any] = WeakValueDictionary()  # environments that users' factories made, by id()


def make(config: EnvironmentConfig, render: bool = False) -> Environment:
    """Make one environment with its wrappers, padding and groups; `render` lets it draw pictures.

    A failure under `environment.kwargs` is a config error that shows them, any other an environment fault.
    """
    from cadenza.envs.translation import before_translation, translate
    from cadenza.envs.wrapping import needs_pictures, wrap_all

    config = dataclasses.replace(config, id=resolve(config.id))
    family = family_of(config.id)
    render = render or needs_pictures(config)
    bare = before_translation(config)
    try:
        env: Environment = _make_user_env(bare, render) if family is None else family[1].make(bare, render)
        return translate(wrap_all(env, config), config)
    except CadenzaError:
        raise
    except Exception as problem:
        if family and family[0].requires and isinstance(problem, ImportError | gymnasium.error.DependencyNotInstalled):
            raise missing(family[0]) from problem
        reason = f"{type(problem).__name__}: {problem}"
        if config.kwargs:
            raise ConfigError(f"environment.kwargs: {config.id} refuses {dict(config.kwargs)} ({reason})") from problem
        raise EnvironmentFault(f"environment {config.id} cannot be made ({reason})") from problem


class FirstEnvironment:
    """An environment made to read its spec. A vector may use it as its first one instead of making another.

    It is made before the run's generators are seeded. One whose construction drew from a global random generator is
    therefore not used again: the vector makes it anew, from the run's seed.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        before = _global_generators()
        self._env: Environment | None = make(config)
        self.spec = self._env.spec
        self._drew = _global_generators() != before

    def __enter__(self) -> FirstEnvironment:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environment, unless a vector has it."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def then(self, make_env: Callable[[], Environment]) -> Callable[[], Environment]:
        """Return a factory that hands out this environment once, and after it what `make_env` makes."""
        if self._drew:
            self.close()

        def next_env() -> Environment:
            env, self._env = self._env, None
            return make_env() if env is None else env

        return next_env


def _global_generators() -> tuple[Any, ...]:
    """Return the states of the global generators of Python, NumPy and torch; a torch that is not imported has none."""
    _, keys, *position = tuple[Any, ...](np.random.get_state())
    torch: Any = sys.modules.get("torch")
    return random.getstate(), keys.tobytes(), *position, torch and torch.get_rng_state().tolist()


def listing(filter: str = "") -> list[dict[str, Any]]:
    """Return a row of FACTS for each environment whose id contains `filter` or whose family is `filter`, in any case.

    Each is made and closed to learn its facts; one that fails has a row with `error`. Without a filter, environments
    of families with `MANY` members are not made unless a tuned experiment exists.
    """
    pattern = filter.lower()
    broken = registry.load_environments()
    listed = [(id, family) for family, names in families().items() for id in names]
    listed += [(name, name.partition("/")[0]) for name in broken]
    matches = [(id, family) for id, family in listed if pattern in id.lower() or pattern == family.lower()]
    many = {name for name, names in families().items() if len(names) >= MANY and not pattern}
    return [_row(id, family, broken.get(id), briefly=family in many) for id, family in matches]


def _row(id: str, family: str, broken: CadenzaError | None, briefly: bool = False) -> dict[str, Any]:
    """Return the facts of an environment, those known without making it, or the error of making it."""
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
    except Exception as problem:  # a user's environment may raise anything, also when it is closed
        plain = isinstance(problem, CadenzaError)
        return row | {"error": str(problem) if plain else f"{id}: {type(problem).__name__}: {problem}"}
    return row | facts(spec) | {"restore": native.restore if (native := native_version(config)) else spec.restore}


def facts(spec: EnvSpec) -> dict[str, Any]:
    """Return spaces, time limit and rewards of an environment as texts and numbers."""
    return {
        "observation": _by_group(spec, "observation"),
        "action": _by_group(spec, "action"),
        "max_episode_steps": spec.max_episode_steps,
        "threshold": spec.return_threshold,
        "reward_range": spec.reward_range,
    }


def _by_group(spec: EnvSpec, side: str) -> str:
    described = {name: describe(getattr(group, side)) for name, group in spec.groups.items()}
    if len(described) == 1:
        return next(iter(described.values()))
    return "; ".join(f"{name}: {text}" for name, text in described.items())


def native_version(config: EnvironmentConfig) -> Any | None:
    """Return the family's vectorised version of an environment, or None where it has none."""
    family = family_of(config.id)
    if family is None or set(config.dressing) - set(getattr(family[1], "NATIVE_DRESSING", ())):
        return None
    return family[1].native(config) if hasattr(family[1], "native") else None


def one_per_process(id: str) -> bool:
    """Return whether every environment of this family needs a process of its own."""
    family = family_of(id)
    return family is not None and getattr(family[1], "ONE_PER_PROCESS", False)


def tuned_variants(id: str) -> list[str]:
    """Return the variants that have an experiment file of their own."""
    folder = files("cadenza").joinpath("conf", "experiment", *id.split("/"))
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _make_user_env(config: EnvironmentConfig, render: bool) -> Environment:
    """Make a user's environment, registered or behind an import path, and adapt it by its type."""
    from cadenza.envs.families.gym import Gym
    from cadenza.envs.families.pettingzoo import adapted, is_pettingzoo

    factory = load_own(config.id) if ":" in config.id else registry.ENVIRONMENTS[config.id]
    check_arguments(factory, config.kwargs, config.id)
    env = _call(factory, config.kwargs, render)
    if isinstance(env, gymnasium.Env) or is_pettingzoo(env):
        _refuse_returned_twice(env.unwrapped, config.id)
    if isinstance(env, gymnasium.Env):
        registered, limit = env.spec, inner_limit(env)
        if limit is not None and (config.max_episode_steps or 0) > limit:
            raise ConfigError(
                f"environment.max_episode_steps={config.max_episode_steps}: {config.id} ends its episodes itself, "
                f"by a TimeLimit of {limit} steps; give at most that"
            )
        if limit is None and registered is not None:
            limit = registered.max_episode_steps
        return Gym(env, config, limit, return_threshold=registered.reward_threshold if registered else None)
    if is_pettingzoo(env):
        return adapted(env, config)
    if not hasattr(env, "spec") or not hasattr(env, "step"):
        raise ConfigError(f"'{config.id}' must return a gymnasium.Env, not {type(env).__name__}")
    environment: Environment = env
    limit, env_limit = config.max_episode_steps, environment.spec.max_episode_steps
    if limit is None or limit == env_limit:
        return environment
    if env_limit is not None and limit > env_limit:
        raise ConfigError(
            f"environment.max_episode_steps={limit}: {config.id} ends its episodes itself, after {env_limit} steps; "
            "set it through environment.kwargs, or give at most that"
        )
    return TimeLimited(environment, limit)


class TimeLimited:
    """An environment whose episodes are truncated after `limit` steps; all else, as its fps and keys, is its own."""

    def __init__(self, env: Environment, limit: int) -> None:
        self._env, self._limit, self._steps = env, limit, 0
        self.spec = dataclasses.replace(env.spec, max_episode_steps=limit)
        self.render, self.close = env.render, env.close

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy that has no environment yet
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, seed: int) -> Frame:
        self._steps = 0
        return self._env.reset(seed)

    def step(self, action: dict[str, Array]) -> Frame:
        frame = self._env.step(action)
        self._steps += 1
        if self._steps < self._limit or frame.terminated:
            return frame
        return dataclasses.replace(frame, truncated=True)


def _call(factory: Any, kwargs: Mapping[str, Any], render: bool) -> Any:
    """Call a user's factory, with `render_mode` where pictures are needed and it takes one."""
    parameters = inspect.signature(factory).parameters
    if render and (_innermost(factory) is gymnasium.make or "render_mode" in parameters):
        return factory(**kwargs, render_mode="rgb_array")
    if render and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        with suppress(TypeError):  # **kwargs may be passed on to a constructor without render_mode
            return factory(**kwargs, render_mode="rgb_array")
    return factory(**kwargs)


def _refuse_returned_twice(env: Any, name: str) -> None:
    """Refuse a factory that returns one object again: training and evaluation would step each other's episodes."""
    if _returned.get(id(env)) is env:
        raise ConfigError(f"{name} returned the same environment twice: it must make a new one at every call")
    _returned[id(env)] = env


def _innermost(factory: Any) -> Any:
    """Return the function inside nested functools.partials; anything else as it is."""
    return _innermost(factory.func) if isinstance(factory, partial) else factory


def inner_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the least time limit of Gymnasium's TimeLimit wrappers around an environment, or None."""
    limits = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)
