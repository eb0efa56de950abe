"""The families of PettingZoo and MPE2: their ids, their teams, and how each environment is made."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments
from cadenza.envs.display import prepare_pygame
from cadenza.envs.families.mpe import Simultaneous
from cadenza.envs.families.pettingzoo import Parallel, Turns, adapted

# family -> (the first part of its ids, the package of its modules, their names)
FAMILIES = {
    "mpe": (
        "mpe",
        "mpe2",
        "collect_treasure_v1 simple_v3 simple_adversary_v3 simple_crypto_v3 simple_formation_v1 simple_line_v1 "
        "simple_push_v3 simple_reference_v3 simple_speaker_listener_v4 simple_spread_v3 simple_tag_v3 "
        "simple_world_comm_v3",
    ),
    "sisl": ("sisl", "pettingzoo.sisl", "multiwalker_v9 pursuit_v5"),
    "butterfly": ("butterfly", "pettingzoo.butterfly", "cooperative_pong_v6 knights_archers_zombies_v11 pistonball_v6"),
    "games": (
        "classic",
        "pettingzoo.classic",
        "chess_v6 connect_four_v3 go_v5 leduc_holdem_v4 rps_v2 texas_holdem_v4 texas_holdem_no_limit_v6 tictactoe_v3",
    ),
}

# Prefixes of the agents that play against the rest.
ADVERSARIES = {
    "simple_adversary_v3": ("adversary_",),
    "simple_crypto_v3": ("eve_",),
    "simple_push_v3": ("adversary_",),
    "simple_tag_v3": ("adversary_",),
    "simple_world_comm_v3": ("adversary_", "leadadversary_"),
}
STATELESS = ("multiwalker_v9",)  # its state() fails once a walker has fallen
# Resets of what an environment would keep from one episode to the next: the time since the last zombie.
PREPARE: dict[str, Callable[[Any], object]] = {
    "knights_archers_zombies_v11": lambda env: env.unwrapped.zombie_spawn_interval.reset()
}
# For environments whose raw_env passes its arguments on: the class in its module that takes them, and how many
# positional arguments that class gets besides.
CREATORS = {"cooperative_pong_v6": ("CooperativePong", 1), "multiwalker_v9": ("_env", 0), "pursuit_v5": ("_env", 0)}


def ids(family: str) -> list[str]:
    prefix, _, names = FAMILIES[family]
    return [f"{prefix}/{name}" for name in names.split()]


def make(config: EnvironmentConfig, render: bool = False) -> Parallel | Turns:
    """Make an environment: with simultaneous actions where PettingZoo publishes it so, else turn by turn."""
    prefix, _, name = config.id.partition("/")
    package = next(package for first, package, _ in FAMILIES.values() if first == prefix)
    prepare_pygame()
    module: Any = _without_warnings(lambda: importlib.import_module(f"{package}.{name}"))
    class_name, positional = CREATORS.get(name, ("raw_env", 0))
    creator = getattr(inspect.getmodule(module.raw_env), class_name)
    check_arguments(creator, config.kwargs, config.id, positional=positional)
    takes = inspect.signature(creator).parameters
    kwargs = {**config.kwargs, **({"render_mode": "rgb_array"} if render else {})}
    if "max_cycles" in takes and config.max_episode_steps:
        kwargs.setdefault("max_cycles", config.max_episode_steps)
    own_limit = kwargs.get("max_cycles", takes["max_cycles"].default if "max_cycles" in takes else None)

    if prefix == "mpe":
        env: Any = Simultaneous(module.raw_env(**kwargs))
    else:
        env = _without_warnings(lambda: getattr(module, "parallel_env", module.env)(**kwargs))
    return adapted(
        env,
        config,
        team=_team_of(prefix, name),
        max_episode_steps=own_limit,
        state=name not in STATELESS,
        prepare=PREPARE.get(name, lambda env: None),
    )


def _without_warnings(action: Callable[[], Any]) -> Any:
    """Run `action` without PettingZoo's warnings about its own packaging and spaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


def _team_of(prefix: str, name: str) -> Callable[[str], str]:
    """Return the function from an agent to its team; every player of a classic game is a team of its own."""
    if prefix == "classic":
        return lambda agent: agent
    if name in ADVERSARIES:
        return lambda agent: "adversaries" if agent.startswith(ADVERSARIES[name]) else "good"
    return lambda agent: "team"
