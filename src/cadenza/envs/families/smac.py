"""SMAC and SMACv2 (Samvelyan et al. 2019, Ellis et al. 2023): StarCraft II's battles, where the game is installed.

Ids are `smac/MAP` and `smacv2/RACE_N_vs_M`. There is a group for each type of unit, known from the map. SMACv2 draws
the types of an army anew for each battle, so a group has an agent for each unit that may be of its type, and those
without a unit wait. The game takes its seed once, when it is launched, so a running battle cannot be restored: a
resumed run begins new ones (`restart`). `starcraft_dummy.py` has a game to take its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments, refuse_reserved
from cadenza.envs.layout import Array
from cadenza.types import EnvSpec, Frame, GroupSpec


class Map(NamedTuple):
    """A map of SMAC: its time limit, and the armies as `{type: count}` in the order of the game's units."""

    limit: int
    allies: dict[str, int]
    enemies: dict[str, int]


def _map(limit: int, allies: str, enemies: str = "") -> Map:
    armies = [army.split() for army in (allies, enemies or allies)]
    return Map(limit, *(dict(zip(army[1::2], map(int, army[::2]), strict=True)) for army in armies))


MAPS = {
    "3m": _map(60, "3 marine"),
    "8m": _map(120, "8 marine"),
    "25m": _map(150, "25 marine"),
    "5m_vs_6m": _map(70, "5 marine", "6 marine"),
    "8m_vs_9m": _map(120, "8 marine", "9 marine"),
    "10m_vs_11m": _map(150, "10 marine", "11 marine"),
    "27m_vs_30m": _map(180, "27 marine", "30 marine"),
    "MMM": _map(150, "2 marauder 7 marine 1 medivac"),
    "MMM2": _map(180, "2 marauder 7 marine 1 medivac", "3 marauder 8 marine 1 medivac"),
    "2s3z": _map(120, "2 stalker 3 zealot"),
    "3s5z": _map(150, "3 stalker 5 zealot"),
    "3s5z_vs_3s6z": _map(170, "3 stalker 5 zealot", "3 stalker 6 zealot"),
    "3s_vs_3z": _map(150, "3 stalker", "3 zealot"),
    "3s_vs_4z": _map(200, "3 stalker", "4 zealot"),
    "3s_vs_5z": _map(250, "3 stalker", "5 zealot"),
    "1c3s5z": _map(180, "1 colossus 3 stalker 5 zealot"),
    "2m_vs_1z": _map(150, "2 marine", "1 zealot"),
    "corridor": _map(400, "6 zealot", "24 zergling"),
    "6h_vs_8z": _map(150, "6 hydralisk", "8 zealot"),
    "2s_vs_1sc": _map(300, "2 stalker", "1 spine_crawler"),
    "so_many_baneling": _map(100, "7 zealot", "32 baneling"),
    "bane_vs_bane": _map(200, "4 baneling 20 zergling"),
    "2c_vs_64zg": _map(400, "2 colossus", "64 zergling"),
}
SIZES = ("5_vs_5", "10_vs_10", "10_vs_11", "20_vs_20", "20_vs_23")
# race -> its units, their probabilities, and the units that cannot form an army alone
RACES: dict[str, tuple[tuple[str, ...], tuple[float, ...], tuple[str, ...]]] = {
    "terran": (("marine", "marauder", "medivac"), (0.45, 0.45, 0.1), ("medivac",)),
    "protoss": (("stalker", "zealot", "colossus"), (0.45, 0.45, 0.1), ()),
    "zerg": (("zergling", "baneling", "hydralisk"), (0.45, 0.1, 0.45), ("baneling",)),
}
COMPOSED = re.compile(rf"({'|'.join(RACES)})_([1-9]\d*)_vs_([1-9]\d*)")
RESERVED = ("map_name", "seed", "continuing_episode", "capability_config")
ANY_TYPE = "agent"  # the group of SMACv2's units where agents are not grouped by type
HEALER = "medivac"  # its targets are allies
ORDERS = ("nothing", "stop", "north", "south", "east", "west")  # followed by the targets to attack or heal
Launch = Callable[[EnvironmentConfig, int | None], Any]  # config and seed to a published environment


def ids(family: str) -> list[str]:
    if family == "smac":
        return [f"smac/{name}" for name in MAPS]
    return [f"smacv2/{race}_{size}" for race in RACES for size in SIZES]


def composed(id: str) -> bool:
    """Return whether the id names armies of a size that is not listed."""
    return id.startswith("smacv2/") and COMPOSED.fullmatch(id.removeprefix("smacv2/")) is not None


def make(config: EnvironmentConfig, render: bool = False) -> StarCraft:
    return StarCraft(config, launchable)


def game_arguments(config: EnvironmentConfig, seed: int | None) -> dict[str, Any]:
    """Return the arguments of the published environment; refuse those that the id sets."""
    refuse_reserved(config.kwargs, RESERVED, f"is set by the id {config.id}")
    name = config.id.partition("/")[2]
    # Under continuing_episode the game's info tells a truncated battle from one decided in its last step.
    kwargs = {**config.kwargs, "seed": seed, "continuing_episode": True}
    match = COMPOSED.fullmatch(name)
    if match is None:
        return {"map_name": name, **kwargs}
    paper = {"conic_fov": False, "obs_own_pos": True, "use_unit_ranges": True, "min_attack_range": 2}
    armies = capabilities(match[1], int(match[2]), int(match[3]))
    fixed = {"capability_config": armies, "map_name": f"10gen_{match[1]}"}
    return {**fixed, **paper, "num_fov_actions": 12, **kwargs}


def launchable(config: EnvironmentConfig, seed: int | None) -> Any:
    """Make the environment; the game itself starts at its first reset."""
    arguments = game_arguments(config, seed)
    if "capability_config" not in arguments:
        from smac.env import StarCraft2Env

        check_arguments(StarCraft2Env, config.kwargs, config.id)
        return StarCraft2Env(**arguments)
    from smacv2.env import StarCraft2Env as Game
    from smacv2.env import StarCraftCapabilityEnvWrapper

    check_arguments(Game, config.kwargs, config.id)
    return StarCraftCapabilityEnvWrapper(**arguments)


def capabilities(race: str, units: int, enemies: int) -> dict[str, Any]:
    """Return SMACv2's settings for drawing and placing armies, as in the paper."""
    types, weights, never_alone = RACES[race]
    team: dict[str, Any] = {
        "dist_type": "weighted_teams",
        "unit_types": list(types),
        "weights": list(weights),
        "observe": True,
    }
    if never_alone:
        team["exception_unit_types"] = list(never_alone)
    places = {"dist_type": "surrounded_and_reflect", "p": 0.5, "map_x": 32, "map_y": 32}
    return {"n_units": units, "n_enemies": enemies, "team_gen": team, "start_positions": places}


class StarCraft:
    """One battle. Dead units can only take action 0 (nothing), which living units cannot take.

    With `repeats` the game is launched again for each episode's seed, so that a seed decides its episode.
    """

    metadata: Mapping[str, Any] = {"render_fps": 8}

    def __init__(self, config: EnvironmentConfig, launch: Launch, repeats: bool = False) -> None:
        self._config, self._launch, self._repeats, self._launched = config, launch, repeats, False
        self._game = launch(config, None)
        facts = self._game.get_env_info()
        self._count = facts["n_agents"]
        self._limit = min(facts["episode_limit"], config.max_episode_steps or facts["episode_limit"])
        match = COMPOSED.fullmatch(config.id.partition("/")[2])
        self._is_drawn = match is not None and config.groups in ("auto", "type")
        if self._is_drawn and match is not None:
            most = {kind: self._count - (kind in RACES[match[1]][2]) for kind in RACES[match[1]][0]}
            members = {kind: count for kind, count in most.items() if count}
        else:
            members = {ANY_TYPE: self._count} if match else MAPS[config.id.partition("/")[2]].allies
        self.spec = EnvSpec(
            config.id,
            {name: self._group(name, count, facts) for name, count in members.items()},
            state=_numbers(facts["state_shape"]),
            max_episode_steps=self._limit,
            restore="replay" if repeats else "restart",
        )
        self._widths = {name: int(group.action.n) for name, group in self.spec.groups.items()}  # type: ignore[attr-defined]
        ends = np.cumsum(list(members.values())).tolist()
        # group -> the units [A] of its agents, -1 where an agent has none in this battle
        self._units = {name: np.arange(end - members[name], end) for name, end in zip(members, ends, strict=True)}
        self._living: Array = np.ones(self._count + 1, bool)  # and a last row for agents without a unit
        self._steps = 0

    def _group(self, name: str, count: int, facts: Mapping[str, Any]) -> GroupSpec:
        """Return a group of `count` agents; types of units have the targets that they can have."""
        orders, width, verb = self._game.n_actions_no_attack, facts["n_actions"], "target"
        if name == HEALER:
            width, verb = orders + self._count - (1 if self._is_drawn else count), "heal"
        elif name != ANY_TYPE:
            width, verb = orders + self._game.n_enemies, "attack"
        turns = (f"look {index}" for index in range(orders - len(ORDERS)))  # with a limited field of view
        return GroupSpec(
            agents=tuple(f"{name}_{index}" for index in range(count)),
            observation=_numbers(facts["obs_shape"]),
            action=Discrete(width),
            action_names=(*ORDERS, *turns, *(f"{verb} {index}" for index in range(width - orders))),
        )

    def reset(self, seed: int) -> Frame:
        if self._repeats or not self._launched:
            self._game = self._launch(self._config, seed % 2**31)
            self._launched = True
        self._game.reset()
        self._steps = 0
        if self._is_drawn:
            names = {number: name for name, number in self._game.ally_unit_map.items()}
            kinds = np.array([names[self._game.agents[unit].unit_type] for unit in range(self._count)])
            for name, units in self._units.items():
                present = np.flatnonzero(kinds == name)
                units[:] = -1
                units[: len(present)] = present
        return self._frame(0.0)

    def step(self, action: dict[str, Array]) -> Frame:
        orders = np.zeros(self._count + 1, np.int64)
        for name, units in self._units.items():
            orders[units] = action[name]
        reward, ended, info = self._game.step(np.where(self._living, orders, 0)[:-1].tolist())
        self._steps += 1
        before = self._living
        frame = self._frame(reward)
        decided = ended and "battle_won" in info and not info.get("episode_limit", False)
        frame.terminated = bool(decided)
        frame.truncated = not decided and (bool(ended) or self._steps >= self._limit)  # also when the game crashed
        frame.won = bool(decided and info["battle_won"])
        died = before & ~self._living
        died[-1] = self._is_drawn and self._steps == 1  # agents without a unit, in the language of stores
        if not frame.terminated and not frame.truncated and died.any():
            frame.died = self._by_group(died)
        return frame

    def render(self) -> Array | None:
        picture = self._game.render(mode="rgb_array")
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        if self._launched:
            self._game.close()

    def _by_group(self, rows: Array) -> dict[str, Array]:
        """Return the rows [units + 1, …] of each group's agents."""
        return {name: rows[units] for name, units in self._units.items()}

    def _frame(self, reward: float) -> Frame:
        obs, allowed = self._game.get_obs(), self._game.get_avail_actions()
        only_nothing = [1] + [0] * (len(allowed[0]) - 1)
        masks = self._by_group(np.array([*allowed, only_nothing], bool))
        self._living = np.array([not actions[0] for actions in allowed] + [False])
        # every unit, alive or not, gets an equal part, so that the sum is the team's reward
        share = np.array([reward / self._count] * self._count + [0], np.float32)
        return Frame(
            obs=self._by_group(np.array([*obs, np.zeros_like(obs[0])], np.float32)),
            reward=self._by_group(share),
            active=self._by_group(self._living),
            mask={name: mask[:, : self._widths[name]] for name, mask in masks.items()},
            state=np.array(self._game.get_state(), np.float32),
            won=False,
        )


def _numbers(size: int) -> Box:
    return Box(-np.inf, np.inf, (size,), np.float32)
