"""Putting wrappers around an environment: those named in `environment.wrappers`, then what the fields beside it ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium import wrappers as gymnasium_wrappers
from gymnasium.error import DependencyNotInstalled

from cadenza.config import registry
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.families.gym import Gym, check_arguments
from cadenza.envs.images import with_pictures
from cadenza.envs.wrappers import RawReward, RescaledActions, layer
from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, NotFoundError, nearest
from cadenza.types import SINGLE_GROUP, Environment

MakeWrapper = Callable[..., Any]

# Gymnasium's wrappers that would keep state from episode to episode, write files, or do what the engine does.
_STATISTICS = "its statistics would be no part of the run's state"
_FUNCTION = "it takes a function, which a config cannot hold: write a wrapper of your own, id: package.module:Class"
_ARRAYS = "environments speak NumPy here"
REFUSED = {
    "NormalizeObservation": f"{_STATISTICS}: set algorithm.normalize_obs",
    "NormalizeReward": f"{_STATISTICS}: set algorithm.normalize_reward",
    "RecordVideo": "set evaluation.video",
    "RecordEpisodeStatistics": "every episode is recorded anyway: see logging.episodes",
    "RenderCollection": "set evaluation.video",
    "HumanRendering": "`cadenza play` shows a trained policy",
    "TimeLimit": "set environment.max_episode_steps",
    "Autoreset": "the engine resets; environment.autoreset is for vectorize=gymnasium",
    "OrderEnforcing": "the engine keeps the order",
    "PassiveEnvChecker": "the engine checks every step",
    "TransformObservation": _FUNCTION,
    "TransformAction": _FUNCTION,
    "TransformReward": _FUNCTION,
    **dict.fromkeys(("ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"), _ARRAYS),
}
PICTURED = (  # they look at what the environment renders
    gymnasium_wrappers.AddRenderObservation,
    gymnasium_wrappers.AddWhiteNoise,
    gymnasium_wrappers.ObstructView,
)


def dress(made: Environment, config: EnvironmentConfig) -> Environment:
    """The environment as the config wants it seen and acted on; its own rewards stay known beside the wrapped ones."""
    if not config.dressing:
        return made
    if not isinstance(made, Gym):
        raise ConfigError(f"environment.{config.dressing[0]}: {config.id} is no gymnasium.Env, so it takes no wrappers")
    spec, env = made.spec, made.bare
    if config.wrappers:
        if spec.max_episode_steps:  # inside, so that it counts the environment's own steps under repeated actions too
            env = gymnasium_wrappers.TimeLimit(env, spec.max_episode_steps)
        if layer(env, RawReward) is None:  # else it knows itself what it truly gives
            env = RawReward(env)
    for index, settings in enumerate(config.wrappers):
        env = wrap(env, settings, f"environment.wrappers[{index}]")
    if config.rescale_actions:
        env = RescaledActions(env)
    if config.grayscale or config.resize or config.frame_stack:
        env = with_pictures(env, config)
    return Gym(
        env,
        id=spec.id,
        max_episode_steps=spec.max_episode_steps,
        return_threshold=spec.return_threshold,
        clip_actions=config.clip_actions,
        frame_stack=config.frame_stack or 1,
        action_names=spec.groups[SINGLE_GROUP].action_names,
    )


def needs_pictures(config: EnvironmentConfig) -> bool:
    """Whether a wrapper looks at what the environment renders."""
    found = [find(settings["id"], f"environment.wrappers[{index}]") for index, settings in enumerate(config.wrappers)]
    return any(isinstance(wrapper, type) and issubclass(wrapper, PICTURED) for wrapper in found)


def wrap(env: gymnasium.Env[Any, Any], settings: Mapping[str, Any], where: str) -> gymnasium.Env[Any, Any]:
    """One wrapper around an environment."""
    name = settings["id"]
    kwargs = {key: _tuples(value) for key, value in settings.items() if key != "id"}
    make_wrapper = find(name, where)
    check_arguments(make_wrapper, kwargs, name, where, positional=1)
    try:
        wrapped = make_wrapper(env, **kwargs)
    except CadenzaError as problem:
        raise type(problem)(f"{where}: {problem}") from problem
    except (ImportError, DependencyNotInstalled) as problem:
        instead = "; environment.resize needs none" if name == "ResizeObservation" else ""
        raise MissingExtraError(f"{where}: {name} needs a package that is not installed ({problem}){instead}") from None
    except Exception as problem:
        reason = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
        raise ConfigError(f"{where}: {name} cannot be made with {kwargs} ({reason})") from problem
    if not isinstance(wrapped, gymnasium.Env):
        raise ConfigError(f"{where}: {name} must return a gymnasium.Env, not {type(wrapped).__name__}")
    return wrapped


def _tuples(value: Any) -> Any:
    """Configs have lists where Gymnasium's wrappers insist on tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def find(name: str, where: str) -> MakeWrapper:
    """A wrapper by import path, a registered name, or the name of one of Gymnasium's."""
    offered = set(gymnasium_wrappers.__all__) - {"vector"}
    found: MakeWrapper | None = registry.load_own(name) if ":" in name else registry.load_wrapper(name)
    if found is None and name in offered:
        if name in REFUSED:
            raise ConfigError(f"{where}: {name} cannot be used: {REFUSED[name]}")
        found = getattr(gymnasium_wrappers, name)
    if found is None:
        known = [*registry.wrappers(), *(offered - set(REFUSED))]
        places = "cadenza's, Gymnasium's, or package.module:Class"
        raise NotFoundError(f"{where}: unknown wrapper '{name}'{nearest(name, known)} ({places})")
    if not callable(found):
        raise ConfigError(f"{where}: {name} must be a wrapper class or a function of an environment")
    own_name = getattr(found, "__name__", "")
    if own_name in REFUSED and found.__module__.startswith("gymnasium.wrappers."):
        raise ConfigError(f"{where}: {name} cannot be used: {REFUSED[own_name]}")
    return found


def for_other_processes(config: EnvironmentConfig) -> EnvironmentConfig:
    """The same environment and wrappers under names that a process which has imported nothing yet can follow."""
    wrappers = [
        {**settings, "id": _followed(settings["id"], registry.WRAPPERS.get(settings["id"]), "wrapper")}
        for settings in config.wrappers
    ]
    id = _followed(config.id, registry.ENVIRONMENTS.get(config.id), "environment")
    return dataclasses.replace(config, id=id, wrappers=tuple(wrappers))


def _followed(name: str, registered: Any, what: str) -> str:
    if registered is None or isinstance(registered, str):
        return name
    path = registry.import_path(registered)
    if path is None:
        raise ConfigError(
            f"environment.vectorize=workers: {what} '{name}' cannot be imported by another process; "
            "move it to a module, or use in_process"
        )
    return path
