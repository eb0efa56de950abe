"""Put wrappers around an environment: those of `environment.wrappers`, then those of the fields beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, TypeGuard

import gymnasium
from gymnasium import wrappers as gymnasium_wrappers
from gymnasium.error import DependencyNotInstalled

from cadenza.config import registry
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments
from cadenza.envs.families.gym import Gym
from cadenza.envs.images import with_pictures
from cadenza.envs.wrappers import RawReward, RescaledActions, layer
from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, NotFoundError, nearest
from cadenza.types import SINGLE_GROUP, Environment

MakeWrapper = Callable[..., Any]

# Gymnasium's wrappers that would keep state from episode to episode, write files, or do what the engine does.
_STATISTICS = "its statistics would not be part of the run's state"
_FUNCTION = "it takes a function, which a config cannot hold: write a wrapper of your own, id: package.module:Class"
_ARRAYS = "environments must use NumPy arrays here"
REFUSED = {
    "NormalizeObservation": f"{_STATISTICS}: set algorithm.normalize_obs",
    "NormalizeReward": f"{_STATISTICS}: set algorithm.normalize_reward",
    "RecordVideo": "set evaluation.video",
    "RecordEpisodeStatistics": "every episode is recorded anyway: see logging.episodes",
    "RenderCollection": "set evaluation.video",
    "HumanRendering": "`cadenza play` shows a trained policy",
    "TimeLimit": "set environment.max_episode_steps",
    "Autoreset": "the engine resets; environment.autoreset is for vectorize=gymnasium",
    "OrderEnforcing": "the engine calls reset and step in order",
    "PassiveEnvChecker": "the engine checks every step",
    "TransformObservation": _FUNCTION,
    "TransformAction": _FUNCTION,
    "TransformReward": _FUNCTION,
    **dict.fromkeys(("ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"), _ARRAYS),
}
RENDERING = (  # they read the rendered picture
    gymnasium_wrappers.AddRenderObservation,
    gymnasium_wrappers.AddWhiteNoise,
    gymnasium_wrappers.ObstructView,
)


def wrap_all(inner: Environment, config: EnvironmentConfig) -> Environment:
    """Wrap an environment as `config` asks; its own rewards stay available beside the wrapped ones.

    Return `inner` itself where nothing is asked for. Around a team, each agent has the wrappers of a gymnasium.Env.
    """
    if not config.dressing:
        return inner
    if not isinstance(inner, Gym):
        return _wrap_agents(inner, config)
    spec, env = inner.spec, inner.bare
    if config.wrappers:
        if spec.max_episode_steps:  # innermost, so that it counts the environment's own steps under repeated actions
            env = gymnasium_wrappers.TimeLimit(env, spec.max_episode_steps)
        if layer(env, RawReward) is None:  # some environments bring one of their own
            env = RawReward(env)
    for index, settings in enumerate(config.wrappers):
        env = wrap(env, settings, f"environment.wrappers[{index}]")
    if config.rescale_actions:
        env = RescaledActions(env)
    if config.grayscale or config.resize or config.frame_stack:
        env = with_pictures(env, config)
    return Gym(
        env,
        config,
        spec.max_episode_steps,
        return_threshold=spec.return_threshold,
        frame_stack=config.frame_stack or 1,
        action_names=spec.groups[SINGLE_GROUP].action_names,
    )


def _wrap_agents(inner: Environment, config: EnvironmentConfig) -> Environment:
    """Wrap every agent of a team, after the wrappers of PettingZoo's kind, which its adapter has put around it."""
    from cadenza.envs.agent_wrappers import WrappedAgents
    from cadenza.envs.families.pettingzoo import Parallel

    if config.rescale_actions:
        raise ConfigError(
            f"environment.rescale_actions: {config.id} is no gymnasium.Env, so its actions stay as they are"
        )
    for index, settings in enumerate(config.wrappers):
        where = f"environment.wrappers[{index}]"
        kind = find(settings["id"], where)
        if not wraps_agents(kind):
            if not isinstance(inner, Parallel):
                rule = "environments of PettingZoo whose agents act at the same time take it"
                raise ConfigError(f"{where}: {settings['id']} is no gymnasium.Wrapper; only {rule}")
            if index >= team_wrappers(config):
                raise ConfigError(
                    f"{where}: {settings['id']} wraps the whole environment; put it before those of agents"
                )
        elif issubclass(kind, RENDERING):
            raise ConfigError(f"{where}: {settings['id']} needs a picture of its own for every agent of {config.id}")
    outer = list(enumerate(config.wrappers))[team_wrappers(config) :]
    if not outer and config.dressing == ("wrappers",):
        return inner

    def wrap_agent(view: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        for index, settings in outer:
            view = wrap(view, settings, f"environment.wrappers[{index}]")
        return with_pictures(view, config) if config.grayscale or config.resize or config.frame_stack else view

    return WrappedAgents(inner, wrap_agent)


def wraps_agents(kind: MakeWrapper) -> TypeGuard[type[gymnasium.Wrapper[Any, Any, Any, Any]]]:
    """Return whether a wrapper goes around a gymnasium.Env, so that each agent of a team can have one."""
    return isinstance(kind, type) and issubclass(kind, gymnasium.Wrapper)


def team_wrappers(config: EnvironmentConfig) -> int:
    """Return how many of the first wrappers go around a whole team."""
    kinds = (find(settings["id"], f"environment.wrappers[{i}]") for i, settings in enumerate(config.wrappers))
    return sum(1 for _ in takewhile(lambda kind: not wraps_agents(kind), kinds))


def wrap_team(env: Any, config: EnvironmentConfig) -> Any:
    """Put wrappers of PettingZoo's kind around a ParallelEnv, those of `environment.wrappers` that come first."""
    for index, settings in enumerate(config.wrappers[: team_wrappers(config)]):
        env = _make(env, settings, f"environment.wrappers[{index}]")
        if not hasattr(env, "possible_agents") or not hasattr(env, "observation_space"):
            kind = type(env).__name__
            raise ConfigError(f"environment.wrappers[{index}]: {settings['id']} must return a ParallelEnv, not {kind}")
    return env


def needs_pictures(config: EnvironmentConfig) -> bool:
    """Return whether one of the configured wrappers reads the rendered picture."""
    kinds = [find(settings["id"], f"environment.wrappers[{index}]") for index, settings in enumerate(config.wrappers)]
    return any(isinstance(kind, type) and issubclass(kind, RENDERING) for kind in kinds)


def wrap(env: gymnasium.Env[Any, Any], settings: Mapping[str, Any], where: str) -> gymnasium.Env[Any, Any]:
    """Put one wrapper around an environment; `where` is its dotted key for messages."""
    wrapped = _make(env, settings, where)
    if not isinstance(wrapped, gymnasium.Env):
        raise ConfigError(f"{where}: {settings['id']} must return a gymnasium.Env, not {type(wrapped).__name__}")
    return wrapped


def _make(env: Any, settings: Mapping[str, Any], where: str) -> Any:
    """Make a wrapper around an environment of any kind."""
    name = settings["id"]
    kwargs = {key: _tuples(value) for key, value in settings.items() if key != "id"}
    make_wrapper = find(name, where)
    check_arguments(make_wrapper, kwargs, name, where, positional=1)
    try:
        return make_wrapper(env, **kwargs)
    except CadenzaError as problem:
        raise type(problem)(f"{where}: {problem}") from problem
    except (ImportError, DependencyNotInstalled) as problem:
        instead = "; environment.resize needs none" if name == "ResizeObservation" else ""
        raise MissingExtraError(f"{where}: {name} needs a package that is not installed ({problem}){instead}") from None
    except Exception as problem:
        reason = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
        raise ConfigError(f"{where}: {name} cannot be made with {kwargs} ({reason})") from problem


def _tuples(value: Any) -> Any:
    """Turn lists into tuples, which Gymnasium's wrappers require and configs cannot hold."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def find(name: str, where: str) -> MakeWrapper:
    """Return a wrapper class by import path, registered name or Gymnasium's name; refuse those in `REFUSED`."""
    gymnasium_names = set(gymnasium_wrappers.__all__) - {"vector"}
    wrapper: MakeWrapper | None = registry.load_own(name) if ":" in name else registry.load_wrapper(name)
    if wrapper is None and name in gymnasium_names:
        if name in REFUSED:
            raise ConfigError(f"{where}: {name} cannot be used: {REFUSED[name]}")
        wrapper = getattr(gymnasium_wrappers, name)
    if wrapper is None:
        names = [*registry.wrappers(), *(gymnasium_names - set(REFUSED))]
        places = "cadenza's, Gymnasium's, or package.module:Class"
        raise NotFoundError(f"{where}: unknown wrapper '{name}'{nearest(name, names)} ({places})")
    if not callable(wrapper):
        raise ConfigError(f"{where}: {name} must be a wrapper class or a function of an environment")
    class_name = getattr(wrapper, "__name__", "")
    if class_name in REFUSED and wrapper.__module__.startswith("gymnasium.wrappers."):
        raise ConfigError(f"{where}: {name} cannot be used: {REFUSED[class_name]}")
    return wrapper


def for_other_processes(config: EnvironmentConfig) -> EnvironmentConfig:
    """Replace registered names by import paths, which a new process can resolve; refuse what has none."""
    wrappers = [
        {**settings, "id": _importable(settings["id"], registry.WRAPPERS.get(settings["id"]), "wrapper")}
        for settings in config.wrappers
    ]
    id = _importable(config.id, registry.ENVIRONMENTS.get(config.id), "environment")
    return dataclasses.replace(config, id=id, wrappers=tuple(wrappers))


def _importable(name: str, registered: Any, kind: str) -> str:
    if registered is None or isinstance(registered, str):
        return name
    path = registry.import_path(registered)
    if path is None:
        raise ConfigError(
            f"environment.vectorize=workers: {kind} '{name}' cannot be imported by another process; "
            "move it to a module, or use in_process"
        )
    return path
