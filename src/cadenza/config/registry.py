"""Names for algorithms and environments. Our own entries are import paths, so that a look-up imports nothing heavy."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from cadenza.config.algorithm_settings import AlgorithmSettings, adopt
from cadenza.config.families import FAMILIES as FAMILIES
from cadenza.config.families import Family as Family
from cadenza.errors import ConfigError, NotFoundError, nearest
from cadenza.types import Deployable, Explains, Imagines, Stateful, Workflow


@dataclass(frozen=True)
class Algorithm:
    name: str
    summary: str
    config: str | type  # its frozen settings: the class, or "module:Class", importable without torch
    workflow: str | type  # the class, or "module:Class"


ALGORITHMS: dict[str, Algorithm] = {
    entry.name: entry
    for entry in (
        Algorithm(
            "ppo",
            "Proximal Policy Optimization (Schulman et al. 2017)",
            "cadenza.workflows.ppo_config:PPOConfig",
            "cadenza.workflows.ppo:PPO",
        ),
        Algorithm(
            "a2c",
            "Advantage Actor-Critic (Mnih et al. 2016): PPO's workflow with one step per short rollout",
            "cadenza.workflows.ppo_config:PPOConfig",
            "cadenza.workflows.ppo:PPO",
        ),
        Algorithm(
            "ippo",
            "Independent PPO (de Witt et al. 2020): every group of a team learns on its own",
            "cadenza.workflows.ppo_config:PPOConfig",
            "cadenza.workflows.ppo:PPO",
        ),
        Algorithm(
            "mappo",
            "Multi-agent PPO (Yu et al. 2022): groups of a team with critics that see its state",
            "cadenza.workflows.ppo_config:PPOConfig",
            "cadenza.workflows.ppo:PPO",
        ),
        Algorithm(
            "happo",
            "Heterogeneous-agent PPO (Kuba et al. 2022): groups of a team learn in turn",
            "cadenza.workflows.ppo_config:PPOConfig",
            "cadenza.workflows.ppo:PPO",
        ),
        Algorithm(
            "reinforce",
            "REINFORCE, the Monte-Carlo policy gradient (Williams 1992)",
            "cadenza.workflows.reinforce_config:ReinforceConfig",
            "cadenza.workflows.reinforce:Reinforce",
        ),
        Algorithm(
            "sac",
            "Soft Actor-Critic, continuous and discrete (Haarnoja et al. 2018, Christodoulou 2019)",
            "cadenza.workflows.sac_config:SACConfig",
            "cadenza.workflows.sac:SAC",
        ),
        Algorithm(
            "droq",
            "SAC with dropout and layer norm in the critics, for many updates per step (Hiraoka et al. 2022)",
            "cadenza.workflows.sac_config:SACConfig",
            "cadenza.workflows.sac:SAC",
        ),
        Algorithm(
            "dqn",
            "Deep Q-learning (Mnih et al. 2015); double, dueling, n-step, prioritised, distributional, noisy if asked",
            "cadenza.workflows.dqn_config:DQNConfig",
            "cadenza.workflows.dqn:DQN",
        ),
        Algorithm(
            "rainbow",
            "Rainbow (Hessel et al. 2018): DQN's workflow with all of its extensions",
            "cadenza.workflows.dqn_config:DQNConfig",
            "cadenza.workflows.dqn:DQN",
        ),
        Algorithm(
            "dreamer_v3",
            "Dreamer v3 (Hafner et al. 2023): a policy learned in a world model, one set of settings for all tasks",
            "cadenza.workflows.dreamer_config:DreamerConfig",
            "cadenza.workflows.dreamer:Dreamer",
        ),
        Algorithm(
            "dreamer_v2",
            "Dreamer v2 (Hafner et al. 2021): a policy learned in a world model of categorical latents",
            "cadenza.workflows.dreamer_config:DreamerConfig",
            "cadenza.workflows.dreamer:Dreamer",
        ),
        Algorithm(
            "dreamer_v1",
            "Dreamer (Hafner et al. 2020): a policy climbs predicted returns through a world model",
            "cadenza.workflows.dreamer_config:DreamerConfig",
            "cadenza.workflows.dreamer:Dreamer",
        ),
        Algorithm(
            "planet",
            "PlaNet (Hafner et al. 2019): a learned world model, and planning in it",
            "cadenza.workflows.dreamer_config:DreamerConfig",
            "cadenza.workflows.dreamer:Dreamer",
        ),
        Algorithm(
            "diffusion_policy",
            "Diffusion Policy (Chi et al. 2023): chunks of actions out of noise, learned from demonstrations",
            "cadenza.workflows.diffusion_policy_config:DiffusionPolicyConfig",
            "cadenza.workflows.diffusion_policy:DiffusionPolicy",
        ),
        Algorithm(
            "tdmpc2",
            "TD-MPC2 (Hansen et al. 2024): plans in a latent model, with values beyond them, for any continuous task",
            "cadenza.workflows.tdmpc_config:TDMPCConfig",
            "cadenza.workflows.tdmpc:TDMPC",
        ),
        Algorithm(
            "tdmpc",
            "TD-MPC (Hansen et al. 2022): plans in a latent model, with values beyond them",
            "cadenza.workflows.tdmpc_config:TDMPCConfig",
            "cadenza.workflows.tdmpc:TDMPC",
        ),
        Algorithm(
            "world_models",
            "World Models (Ha and Schmidhuber 2018): an autoencoder sees, a memory predicts, and CMA-ES finds who acts",
            "cadenza.workflows.world_models_config:WorldModelsConfig",
            "cadenza.workflows.world_models:WorldModels",
        ),
        Algorithm(
            "qlearning",
            "tabular Q-learning, SARSA, expected SARSA, double Q-learning; bandits (Watkins 1989, Sutton & Barto 2018)",
            "cadenza.workflows.qlearning_config:QLearningConfig",
            "cadenza.workflows.qlearning:QLearning",
        ),
    )
}


# What `environment.wrappers` can name beside Gymnasium's: import paths of ours, classes or functions that others add.
WRAPPERS: dict[str, Any] = {
    "HideVelocity": "cadenza.envs.wrappers:HideVelocity",
    "SignReward": "cadenza.envs.wrappers:SignReward",
}

# Scripted policies that `cadenza demonstrate` can name: import paths.
EXPERTS: dict[str, str] = {
    "fork": "cadenza.envs.toys.detour:either_way",
    "pusht": "cadenza.envs.families.pusht_expert:Expert",
}

# What other packages and running programs add by id: a function or class that makes a gymnasium.Env.
ENVIRONMENTS: dict[str, Callable[..., Any]] = {}
FROM_PYTHON = "python/"  # ids of environments that `cadenza.train` was given and that no other process can import


def load_object(path: str | type) -> Any:
    """The object behind an import path `package.module:name`."""
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except Exception as problem:  # whatever a user's module may raise
        raise ConfigError(f"cannot import '{path}': {_reason(problem)}") from problem


def load_own(path: str) -> Any:
    """The object behind an import path that a user wrote; modules in the current folder are found, too."""
    here = str(Path.cwd())
    if here not in sys.path:  # only now that this code is wanted, and last, so that nothing is shadowed
        sys.path.append(here)
    return load_object(path)


def import_path(thing: Any) -> str | None:
    """`package.module:name` of a function or class, if another process can import it by that."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__" or module not in sys.modules:
        return None
    try:
        same = operator.attrgetter(name)(sys.modules[module]) is thing
    except AttributeError:  # made inside a function
        return None
    return f"{module}:{name}" if same else None


# algorithms

# What a workflow may offer besides what the engine needs (`types.py`).
OFFERS: dict[str, Callable[..., Any]] = {
    "explain": Explains.explain,
    "imagine": Imagines.imagine,
    "deployed": Deployable.deployed,
}


def load_algorithms() -> dict[str, ConfigError]:
    """Make those of other installed packages known; what is wrong with those that cannot be, by name.

    An entry point `cadenza.algorithms` names a workflow (or a module) that `@register_algorithm` makes known, a
    workflow with its settings in an attribute `Config`, or an `Algorithm`, which need not import torch to be listed.
    """
    return _take_all("cadenza.algorithms", _take_algorithm)


def algorithm(name: str, also: Iterable[str] = ()) -> Algorithm:
    """The algorithm of that name, or behind an import path `package.module:Workflow`; `also` may have been meant."""
    if name not in ALGORITHMS:
        if ":" in name:
            ALGORITHMS[name] = _of_class(name, load_own(name))
        for entry in entry_points(group="cadenza.algorithms", name=name):
            _take_algorithm(entry)
    if name not in ALGORITHMS:
        known = sorted(set(ALGORITHMS) | set(entry_points(group="cadenza.algorithms").names))
        raise NotFoundError(f"unknown algorithm '{name}'{nearest(name, [*known, *also])} (known: {', '.join(known)})")
    return ALGORITHMS[name]


def register_algorithm(name: str, config: type, summary: str = "") -> Callable[[type], type]:
    """Decorator that makes a workflow of one's own known by name."""

    def register(workflow: type) -> type:
        adopt(name, config)
        check_offers(name, workflow)
        ALGORITHMS[name] = Algorithm(name, summary or _summary(workflow), config, workflow)
        return workflow

    return register


def settings_class(name: str) -> type[AlgorithmSettings]:
    """Return the class of an algorithm's settings, checked and with defaults for what it lacks."""
    settings: type[AlgorithmSettings] = load_object(algorithm(name).config)
    adopt(name, settings)
    return settings


def workflow_class(name: str) -> Callable[..., Workflow]:
    """The class of an algorithm, once it is known to have what the engine calls."""
    workflow = load_object(algorithm(name).workflow)
    hooks = getattr(workflow, "hooks", None)
    if not isinstance(hooks, tuple) or not all(isinstance(hook, str) for hook in hooks):
        raise ConfigError(f"algorithm {name}: lacks hooks, a tuple of the names of its update methods")
    needed = [member for member in {**vars(Stateful), **vars(Workflow)} if not member.startswith("_")]
    missing = [member for member in (*needed, *hooks) if not callable(getattr(workflow, member, None))]
    if missing:
        raise ConfigError(f"algorithm {name}: {workflow.__name__} lacks the method(s) {', '.join(missing)}")
    check_offers(name, workflow)
    found: Callable[..., Workflow] = workflow
    return found


def check_offers(name: str, workflow: type) -> None:
    """Refuse a workflow with a method that the lab would call and that takes other arguments."""
    for offer, method in OFFERS.items():
        if not hasattr(workflow, offer):
            continue
        arguments = ", ".join(inspect.signature(method).parameters)
        where = f"algorithm {name}: {workflow.__name__}.{offer}"
        theirs = getattr(workflow, offer)
        if not callable(theirs):
            raise ConfigError(f"{where} must be a method ({arguments}), not a {type(theirs).__name__}")
        try:
            inspect.signature(theirs).bind(*inspect.signature(method).parameters)
        except TypeError:
            raise ConfigError(f"{where}{inspect.signature(theirs)} must take ({arguments})") from None
        if offer == "imagine" and not hasattr(workflow, "imagines"):
            lacks = "lacks imagines, which says whether a model is learned: a property, or imagines = True"
            raise ConfigError(f"algorithm {name}: {workflow.__name__} has imagine and {lacks}")


def _take_algorithm(entry: EntryPoint) -> None:
    if entry.name in ALGORITHMS:
        return
    found = load_entry(entry)
    if isinstance(found, Algorithm):
        ALGORITHMS[entry.name] = found
    elif isinstance(found, type) and hasattr(found, "Config"):
        ALGORITHMS.setdefault(entry.name, _of_class(entry.name, found))
    elif entry.name not in ALGORITHMS:  # loading it may have registered it
        raise ConfigError(f"entry point '{entry.value}' registers no algorithm called '{entry.name}'")


def _of_class(name: str, workflow: Any) -> Algorithm:
    if not isinstance(workflow, type) or not isinstance(getattr(workflow, "Config", None), type):
        raise ConfigError(f"'{name}' must be a workflow class that names its settings: Config = MyConfig")
    return Algorithm(name, _summary(workflow), workflow.Config, workflow)  # type: ignore[attr-defined]


def _summary(workflow: type) -> str:
    return (workflow.__doc__ or "").strip().partition("\n")[0]


def _take_all(group: str, take: Callable[[EntryPoint], None]) -> dict[str, ConfigError]:
    broken = {}
    for entry in entry_points(group=group):
        try:
            take(entry)
        except ConfigError as problem:  # one bad package must not hide the others
            broken[entry.name] = problem
    return broken


def load_entry(entry: EntryPoint) -> Any:
    """Return what an entry point names; what its package raises is a ConfigError."""
    try:
        return entry.load()
    except Exception as problem:
        where = f"entry point '{entry.name} = {entry.value}' in {entry.group}"
        raise ConfigError(f"{where} cannot be loaded: {_reason(problem)}") from problem


def _reason(problem: Exception) -> str:
    plain = isinstance(problem, ImportError | AttributeError)
    return str(problem) if plain else f"{type(problem).__name__}: {problem}"


# environments


def load_environments() -> dict[str, ConfigError]:
    """Make those of other installed packages known; what is wrong with those that cannot be, by name.

    An entry point `cadenza.environments` names a factory, or a `Family`, which is added to the families.
    """
    return _take_all("cadenza.environments", _take_environment)


def _take_environment(entry: EntryPoint) -> None:
    if entry.name in ENVIRONMENTS or entry.name in FAMILIES:
        return
    found = load_entry(entry)
    if isinstance(found, Family):
        if found.extra is None:
            load_object(f"{found.module}:ids")
        FAMILIES[entry.name] = found
    elif callable(found):
        ENVIRONMENTS[entry.name] = found
    else:
        raise ConfigError(f"entry point '{entry.value}' is no Family and nothing that makes an environment")


def register_environment(id: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that makes an environment of one's own known by id: a class, or a function that returns one."""
    if ":" in id or not id:
        raise ConfigError(f"environment id '{id}': must be a name without ':', e.g. mine/cliff")

    def register(factory: Callable[..., Any]) -> Callable[..., Any]:
        ENVIRONMENTS[id] = factory
        return factory

    return register


# wrappers


def wrappers() -> list[str]:
    """Names of ours and of those that other packages and running programs add; nothing is imported for it."""
    return [*WRAPPERS, *_wrapper_entries()]


def load_wrapper(name: str) -> Any | None:
    """One of those, if the name is known: a class or a function that takes an environment and keyword arguments."""
    if name not in WRAPPERS and name in _wrapper_entries():
        WRAPPERS[name] = load_entry(_wrapper_entries()[name])
    return load_object(WRAPPERS[name]) if name in WRAPPERS else None


@functools.cache  # every environment that is made asks, and a search takes longer than making a light one
def _wrapper_entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="cadenza.wrappers")}


def register_wrapper(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that makes a wrapper of one's own known to `environment.wrappers`."""
    if ":" in name or not name:
        raise ConfigError(f"wrapper '{name}': must be a name without ':'")

    def register(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        WRAPPERS[name] = wrapper
        return wrapper

    return register
