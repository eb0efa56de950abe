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
from typing import Any, TypeVar

from cadenza.config.algorithm_settings import AlgorithmSettings, adopt
from cadenza.config.families import FAMILIES as FAMILIES
from cadenza.config.families import Family as Family
from cadenza.errors import ConfigError, NotFoundError, nearest
from cadenza.types import Collects, Deployable, Explains, HandWritten, Imagines, Stateful, Workflow

Factory = Callable[..., Any]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Algorithm:
    """An algorithm by name: its settings class and its workflow."""

    name: str
    summary: str
    config: str | type  # the frozen settings class, or "module:Class", importable without torch
    workflow: str | type  # the class, or "module:Class"


_TABLE = (  # name, place in `cadenza.workflows`, summary; the settings of PPO in `ppo` are PPOConfig in `ppo_config`
    ("ppo", "ppo:PPO", "Proximal Policy Optimization (Schulman et al. 2017)"),
    ("a2c", "ppo:PPO", "Advantage Actor-Critic (Mnih et al. 2016): PPO's workflow with one step per short rollout"),
    ("ippo", "ppo:PPO", "Independent PPO (de Witt et al. 2020): every group of a team learns on its own"),
    ("mappo", "ppo:PPO", "Multi-agent PPO (Yu et al. 2022): groups of a team with critics that see its state"),
    ("happo", "ppo:PPO", "Heterogeneous-agent PPO (Kuba et al. 2022): groups of a team learn in turn"),
    ("reinforce", "reinforce:Reinforce", "REINFORCE, the Monte-Carlo policy gradient (Williams 1992)"),
    ("sac", "sac:SAC", "Soft Actor-Critic, continuous and discrete (Haarnoja et al. 2018, Christodoulou 2019)"),
    ("droq", "sac:SAC", "DroQ (Hiraoka et al. 2022): SAC with dropout and layer norm, for many updates per step"),
    ("dqn", "dqn:DQN", "Deep Q-learning (Mnih et al. 2015), with every extension of Rainbow as an option"),
    ("rainbow", "dqn:DQN", "Rainbow (Hessel et al. 2018): DQN's workflow with all of its extensions"),
    ("dreamer_v3", "dreamer:Dreamer", "Dreamer v3 (Hafner et al. 2023): one set of settings for all tasks"),
    ("dreamer_v2", "dreamer:Dreamer", "Dreamer v2 (Hafner et al. 2021): a world model of categorical latents"),
    ("dreamer_v1", "dreamer:Dreamer", "Dreamer (Hafner et al. 2020): a policy learned inside a world model"),
    ("planet", "dreamer:Dreamer", "PlaNet (Hafner et al. 2019): a learned world model, and planning in it"),
    ("diffusion_policy", "diffusion_policy:DiffusionPolicy", "Diffusion Policy (Chi et al. 2023) and cloning"),
    ("tdmpc2", "tdmpc:TDMPC", "TD-MPC2 (Hansen et al. 2024): TD-MPC with one set of settings for all continuous tasks"),
    ("tdmpc", "tdmpc:TDMPC", "TD-MPC (Hansen et al. 2022): plans in a latent model, with values beyond them"),
    ("world_models", "world_models:WorldModels", "World Models (Ha and Schmidhuber 2018): VAE, RNN and CMA-ES"),
    ("qlearning", "qlearning:QLearning", "tabular Q-learning and SARSA (Watkins 1989, Sutton & Barto 2018), bandits"),
)
_ROOT = "cadenza.workflows."
ALGORITHMS: dict[str, Algorithm] = {
    name: Algorithm(name, summary, f"{_ROOT}{place.replace(':', '_config:')}Config", f"{_ROOT}{place}")
    for name, place, summary in _TABLE
}


# Wrappers besides Gymnasium's that `environment.wrappers` can name: import paths of ours, registered callables.
WRAPPERS: dict[str, Any] = {
    "HideVelocity": "cadenza.envs.wrappers:HideVelocity",
    "ScaleReward": "cadenza.envs.wrappers:ScaleReward",
    "SignReward": "cadenza.envs.wrappers:SignReward",
}

# Scripted policies that `cadenza demonstrate` can name: import paths.
EXPERTS: dict[str, str] = {
    "fork": "cadenza.envs.toys.detour:either_way",
    "pusht": "cadenza.envs.families.pusht_expert:Expert",
}

# Environments that packages and programs register by id: callables that return a gymnasium.Env.
ENVIRONMENTS: dict[str, Callable[..., Any]] = {}
FROM_PYTHON = "python/"  # prefix of ids of environments passed to `cadenza.train` that no other process can import


ORIGINS: dict[str, str] = {}  # by a module or environment that an opened run names: how to make it known here


def load_object(path: str | type) -> Any:
    """Return the object that `package.module:name` names, or the module `package.module`; return others as they are."""
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    imported: Any = None
    try:
        imported = importlib.import_module(module)
        return operator.attrgetter(name)(imported) if name else imported
    except Exception as problem:  # whatever a user's module may raise
        guess = "" if imported is None else nearest(name, dir(imported))
        if isinstance(problem, ModuleNotFoundError) and (origin := ORIGINS.get(module)):
            guess = f"; {origin}"
        raise ConfigError(f"cannot import '{path}': {_reason(problem)}{guess}") from problem


def load_own(path: str) -> Any:
    """Return the object that a user's import path names; modules in the current folder can be imported, too."""
    folder = str(Path.cwd())
    if folder not in sys.path:  # only now that this code is needed, and last, so that nothing is shadowed
        sys.path.append(folder)
    return load_object(path)


def import_path(thing: Any) -> str | None:
    """Return `package.module:name` of a function or class, or None if another process cannot import it by that."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__" or module not in sys.modules:
        return None
    try:
        same = operator.attrgetter(name)(sys.modules[module]) is thing
    except AttributeError:  # made inside a function
        return None
    return f"{module}:{name}" if same else None


# algorithms

# Optional methods of a workflow (`types.py`).
OFFERS: dict[str, Callable[..., Any]] = {
    "collect_step": Collects.collect_step,
    "explain": Explains.explain,
    "imagine": Imagines.imagine,
    "loss_example": HandWritten.loss_example,
    "deployed": Deployable.deployed,
}


def load_algorithms() -> dict[str, ConfigError]:
    """Register the algorithms of other installed packages; return the error of each that cannot be loaded, by name.

    An entry point `cadenza.algorithms` names a module or workflow that registers itself with `@register_algorithm`, a
    workflow with its settings in an attribute `Config`, or an `Algorithm`, which need not import torch to be listed.
    """
    return _load_entries("cadenza.algorithms", _load_algorithm)


def algorithm(name: str, also: Iterable[str] = ()) -> Algorithm:
    """Return the algorithm of a name or of an import path `package.module:Workflow`.

    The error for an unknown name suggests the nearest one; `also` holds further names to suggest.
    """
    if name not in ALGORITHMS:
        if ":" in name:
            ALGORITHMS[name] = _of_class(name, load_own(name))
        for entry in entry_points(group="cadenza.algorithms", name=name):
            _load_algorithm(entry)
    if name not in ALGORITHMS:
        names = sorted(set(ALGORITHMS) | set(entry_points(group="cadenza.algorithms").names))
        hint = f"; {ORIGINS[name]}" if name in ORIGINS else nearest(name, [*names, *also])
        raise NotFoundError(f"unknown algorithm '{name}'{hint} (known: {', '.join(names)})")
    return ALGORITHMS[name]


def register_algorithm(name: str, config: type, summary: str = "") -> Callable[[type], type]:
    """Return a class decorator that registers a workflow with its settings class under a name."""

    def register(workflow: type) -> type:
        adopt(name, config)
        check_offers(name, workflow)
        ALGORITHMS[name] = Algorithm(name, summary or _summary(workflow), config, workflow)
        return workflow

    return register


def settings_class(name: str) -> type[AlgorithmSettings]:
    """Return the settings class of an algorithm, checked and with defaults for the members it lacks."""
    settings: type[AlgorithmSettings] = load_object(algorithm(name).config)
    adopt(name, settings)
    return settings


def workflow_class(name: str) -> Callable[..., Workflow]:
    """Return the workflow class of an algorithm; refuse one that lacks a member that the engine calls."""
    workflow = load_object(algorithm(name).workflow)
    hooks = getattr(workflow, "hooks", None)
    if not isinstance(hooks, tuple) or not all(isinstance(hook, str) for hook in hooks):
        raise ConfigError(f"algorithm {name}: lacks hooks, a tuple of the names of its update methods")
    require_methods(workflow, Workflow, f"algorithm {name}: {workflow.__name__}", hooks)
    check_offers(name, workflow)
    checked: Callable[..., Workflow] = workflow
    return checked


def require_methods(part: Any, interface: type, where: str, hooks: Iterable[str] = ()) -> None:
    """Refuse a stateful part that lacks a method of its interface or one of its update hooks."""
    members = dict.fromkeys(name for cls in (Stateful, *reversed(interface.__mro__)) for name in vars(cls))
    needed = [member for member in members if not member.startswith("_")]
    missing = [member for member in (*needed, *hooks) if not callable(getattr(part, member, None))]
    if missing:
        raise ConfigError(f"{where} lacks the method(s) {', '.join(missing)}")


def check_offers(name: str, workflow: type) -> None:
    """Refuse a workflow whose optional methods (`OFFERS`) do not take the arguments that they are called with."""
    for offer, method in OFFERS.items():
        if not hasattr(workflow, offer):
            continue
        arguments = ", ".join(inspect.signature(method).parameters)
        where = f"algorithm {name}: {workflow.__name__}.{offer}"
        member = getattr(workflow, offer)
        if not callable(member):
            raise ConfigError(f"{where} must be a method ({arguments}), not a {type(member).__name__}")
        try:
            inspect.signature(member).bind(*inspect.signature(method).parameters)
        except TypeError:
            raise ConfigError(f"{where}{inspect.signature(member)} must take ({arguments})") from None
        if offer == "imagine" and not hasattr(workflow, "imagines"):
            lacks = "lacks imagines, which says whether a model is learned: a property, or imagines = True"
            raise ConfigError(f"algorithm {name}: {workflow.__name__} has imagine and {lacks}")


def _load_algorithm(entry: EntryPoint) -> None:
    if entry.name in ALGORITHMS:
        return
    loaded = load_entry(entry)
    if isinstance(loaded, Algorithm):
        ALGORITHMS[entry.name] = loaded
    elif isinstance(loaded, type) and hasattr(loaded, "Config"):
        ALGORITHMS.setdefault(entry.name, _of_class(entry.name, loaded))
    elif entry.name not in ALGORITHMS:  # loading it may have registered it
        raise ConfigError(f"entry point '{entry.value}' registers no algorithm called '{entry.name}'")


def _of_class(name: str, workflow: Any) -> Algorithm:
    if not isinstance(workflow, type) or not isinstance(getattr(workflow, "Config", None), type):
        raise ConfigError(f"'{name}' must be a workflow class that names its settings: Config = MyConfig")
    return Algorithm(name, _summary(workflow), workflow.Config, workflow)  # type: ignore[attr-defined]


def _summary(workflow: type) -> str:
    return (workflow.__doc__ or "").strip().partition("\n")[0]


def _load_entries(group: str, load: Callable[[EntryPoint], None]) -> dict[str, ConfigError]:
    """Load every entry point of a group; return the errors by name, since one bad package must not hide the others."""
    broken = {}
    for entry in entry_points(group=group):
        try:
            load(entry)
        except ConfigError as problem:
            broken[entry.name] = problem
    return broken


@functools.cache  # wrappers are looked up for every environment made, and the search takes milliseconds
def entries(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of a kind of parts, the group `cadenza.KINDs`, by name; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=f"cadenza.{kind.removesuffix('s')}s")}


def register_part(table: dict[str, Any], name: str, refusal: str) -> Callable[[Part], Part]:
    """Return a decorator that puts a part into a table under a name; refuse an import path and an empty name."""
    if ":" in name or not name:
        raise ConfigError(refusal)

    def put(part: Part) -> Part:
        table[name] = part
        return part

    return put


def load_entry(entry: EntryPoint) -> Any:
    """Return the object that an entry point names; an exception of its package becomes a ConfigError."""
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
    """Register the environments of other installed packages; return the error of each that cannot be loaded, by name.

    An entry point `cadenza.environments` names a factory, or a `Family`, which is added to the families.
    """
    return _load_entries("cadenza.environments", _load_environment)


def _load_environment(entry: EntryPoint) -> None:
    if entry.name in ENVIRONMENTS or entry.name in FAMILIES:
        return
    loaded = load_entry(entry)
    if isinstance(loaded, Family):
        if loaded.extra is None:
            load_object(f"{loaded.module}:ids")
        FAMILIES[entry.name] = loaded
    elif callable(loaded):
        ENVIRONMENTS[entry.name] = loaded
    else:
        raise ConfigError(f"entry point '{entry.value}' is neither a Family nor a function that makes an environment")


def register_environment(id: str) -> Callable[[Factory], Factory]:
    """Return a decorator that registers an environment under an id: a class, or a function that returns one."""
    return register_part(ENVIRONMENTS, id, f"environment id '{id}': must be a name without ':', e.g. mine/cliff")


def register_wrapper(name: str) -> Callable[[Factory], Factory]:
    """Return a decorator that registers a wrapper for `environment.wrappers` under a name."""
    return register_part(WRAPPERS, name, f"wrapper '{name}': must be a name without ':'")


# wrappers


def wrappers() -> list[str]:
    """Return the names of all registered wrappers, other packages' included; nothing is imported."""
    return [*WRAPPERS, *entries("wrapper")]


def load_wrapper(name: str) -> Any | None:
    """Return the wrapper of a name, a callable of an environment and keyword arguments; None for an unknown name."""
    if name not in WRAPPERS and name in entries("wrapper"):
        WRAPPERS[name] = load_entry(entries("wrapper")[name])
    return load_object(WRAPPERS[name]) if name in WRAPPERS else None
