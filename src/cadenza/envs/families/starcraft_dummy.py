"""A stand-in for StarCraft II, to develop and test without it: `smac_dummy/MAP`, `smacv2_dummy/RACE_N_vs_M`.

Its classes have the interface of the published environments. Armies, time limits, sizes of observations, states and
actions, masks and rewards are those of the published maps. The battle is simple: every unit hits what is within its
reach, medivacs heal, and the enemy's units go to the nearest of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import check_arguments
from cadenza.envs.families import smac
from cadenza.envs.layout import Array

MARK = "_dummy/"
SIDE, SIGHT, STRIDE = 32, 9, 2  # of the field; how far units see; how far they go in a step
WEAKENED = 0.7  # the enemy's damage, so that learning shows soon
NO_ATTACK = len(smac.ORDERS)
DIRECTIONS = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])


class UnitKind(NamedTuple):
    """A type of unit. `damage` is dealt per step, and healed by a medivac."""

    race: str
    health: int
    shield: int
    damage: int
    reach: int


KINDS = {  # in the order of the game's units
    "baneling": UnitKind("zerg", 30, 0, 16, 2),
    "colossus": UnitKind("protoss", 200, 150, 20, 7),
    "hydralisk": UnitKind("zerg", 80, 0, 12, 5),
    "marauder": UnitKind("terran", 125, 0, 10, 6),
    "marine": UnitKind("terran", 45, 0, 6, 5),
    "medivac": UnitKind("terran", 150, 0, 9, 4),
    "spine_crawler": UnitKind("zerg", 300, 0, 25, 7),
    "stalker": UnitKind("protoss", 80, 80, 10, 6),
    "zealot": UnitKind("protoss", 100, 50, 16, 2),
    "zergling": UnitKind("zerg", 35, 0, 5, 2),
}


def ids(family: str) -> list[str]:
    published = family.removesuffix("_dummy")
    return [id.replace("/", MARK) for id in smac.ids(published)]


def composed(id: str) -> bool:
    """Return whether the id names armies of a size that is not listed."""
    return MARK in id and smac.composed(id.replace(MARK, "/"))


def make(config: EnvironmentConfig, render: bool = False) -> smac.StarCraft:
    return smac.StarCraft(config, _launch, repeats=True)


def _launch(config: EnvironmentConfig, seed: int | None) -> Battle:
    arguments = smac.game_arguments(config, seed)
    check_arguments(Battle, config.kwargs, config.id, positional=4)
    return (
        StarCraftCapabilityEnvWrapper(**arguments) if "capability_config" in arguments else StarCraft2Env(**arguments)
    )


class Battle:
    """One game after another, as `StarCraft2Env` plays them.

    As there, actions that are not available are refused, a time limit is told apart only with `continuing_episode`, and
    a game that breaks down (in step `break_at`) ends the episode with a reward of 0 and an empty info.
    """

    launches = 0  # of the game, by all
    n_actions_no_attack = NO_ATTACK
    ally_unit_map: Mapping[str, int] = {name: number for number, name in enumerate(KINDS)}

    def __init__(
        self,
        counts: tuple[int, int],
        kinds: Sequence[str],
        races: tuple[str, str],
        limit: int,
        seed: int | None = None,
        continuing_episode: bool = False,
        reward_sparse: bool = False,
        reward_scale_rate: float = 20,
        break_at: int | None = None,
    ) -> None:
        self.n_agents, self.n_enemies = counts
        self.episode_limit, self.continuing_episode = limit, continuing_episode
        healers = smac.HEALER in kinds and self.n_agents > self.n_enemies
        self.n_actions = NO_ATTACK + (self.n_agents if healers else self.n_enemies)
        self.reward_sparse, self.reward_scale_rate, self._break_at = reward_sparse, reward_scale_rate, break_at
        self._kinds, self._seed = list(kinds) if len(kinds) > 1 else [], seed
        self._shields = [race == "protoss" for race in races]
        self._allies = np.arange(self.n_agents)
        self._enemies = np.arange(self.n_enemies) + self.n_agents
        self._episodes = self._steps = 0
        self._random = np.random.default_rng(seed)
        self._muster([kinds[0]] * sum(counts))

    def _names(self) -> list[str]:
        """Return the types of the units of the next battle, ours first."""
        raise NotImplementedError

    def _muster(self, names: list[str]) -> None:
        kinds = [KINDS[name] for name in names]
        self._types = np.eye(len(self._kinds))[[self._kinds.index(name) for name in names]] if self._kinds else None
        self._numbers = [self.ally_unit_map[name] for name in names]
        self._most = np.array([(kind.health, kind.shield) for kind in kinds], float)  # [units, health and shield]
        self._points = self._most.copy()
        self._damage = np.array([kind.damage for kind in kinds], float)
        self._damage[self._enemies] *= WEAKENED
        self._reach = np.array([max(2, kind.reach) for kind in kinds])
        self._heals = np.array([name == smac.HEALER for name in names])
        self._place = self._random.uniform(-3, 3, (len(names), 2)) + SIDE / 2
        self._place[self._allies, 0] -= 6
        self._place[self._enemies, 0] += 6
        self._last = np.zeros((self.n_agents, self.n_actions))

    @property
    def _alive(self) -> Array:
        alive: Array = self._points[:, 0] > 0
        return alive

    @property
    def agents(self) -> dict[int, SimpleNamespace]:
        return {
            unit: SimpleNamespace(unit_type=self._numbers[unit], health=self._points[unit, 0])
            for unit in range(self.n_agents)
        }

    def reset(self) -> Any:
        self._steps = 0
        if self._episodes == 0:
            type(self).launches += 1
        self._muster(self._names())
        return self.get_obs(), self.get_state()

    def step(self, actions: Sequence[int]) -> tuple[float, bool, dict[str, Any]]:
        for unit, action in enumerate(actions):
            assert self.get_avail_agent_actions(unit)[action] == 1, f"Agent {unit} cannot perform action {action}"
        self._steps += 1
        if self._steps == self._break_at:
            return 0, True, {}
        before, standing = self._points[self._enemies].sum(), self._alive[self._enemies].sum()
        self._last = np.eye(self.n_actions)[list(actions)]
        for unit, action in enumerate(actions):
            if action >= NO_ATTACK:
                target = action - NO_ATTACK + (0 if self._heals[unit] else self.n_agents)
                self._use(unit, target)
            elif action >= 2:
                self._place[unit] = np.clip(self._place[unit] + STRIDE * DIRECTIONS[action - 2], 0, SIDE)
        for unit in self._enemies[self._alive[self._enemies]]:
            self._follow_script(unit)
        alive = self._alive
        kills = standing - alive[self._enemies].sum()
        reward = max(0.0, before - self._points[self._enemies].sum()) + 10 * kills
        won, lost = (not (alive & ~self._heals)[side].any() for side in (self._enemies, self._allies))
        info: dict[str, Any] = {
            "battle_won": won,
            "dead_allies": int((~alive[self._allies]).sum()),
            "dead_enemies": int((~alive[self._enemies]).sum()),
        }
        over = won or lost
        if won:
            reward = 1 if self.reward_sparse else reward + 200
        if not over and self._steps >= self.episode_limit:
            over = True
            if self.continuing_episode:
                info["episode_limit"] = True
        self._episodes += over
        full = self._most[self._enemies].sum() + 10 * self.n_enemies + 200
        return float(reward / (full / self.reward_scale_rate)), over, info

    def _use(self, unit: int, target: int) -> None:
        """Hit the target, its shield first, or heal it. The dead stay dead."""
        if self._heals[unit]:
            if self._points[target, 0] > 0:
                self._points[target, 0] = min(self._most[target, 0], self._points[target, 0] + self._damage[unit])
            return
        shielded = min(self._points[target, 1], self._damage[unit])
        self._points[target, 1] -= shielded
        self._points[target, 0] = max(0.0, self._points[target, 0] - (self._damage[unit] - shielded))

    def _follow_script(self, unit: int) -> None:
        """Heal a hurt unit of the enemy's, hit the nearest of ours, or go there."""
        targets = np.flatnonzero(self._alive & ~self._heals) if self._heals[unit] else np.flatnonzero(self._alive)
        targets = targets[(targets >= self.n_agents) == self._heals[unit]]
        if not len(targets):
            return
        offsets = self._place[targets] - self._place[unit]
        distances = np.hypot(*offsets.T)
        nearest = distances.argmin()
        if distances[nearest] <= self._reach[unit]:
            self._use(unit, targets[nearest])
        else:
            self._place[unit] += offsets[nearest] / distances[nearest] * min(STRIDE, distances[nearest])

    def _within(self, unit: int, units: Array, distance: float) -> Array:
        close: Array = np.hypot(*(self._place[units] - self._place[unit]).T) <= distance
        return close & self._alive[units]

    def get_avail_agent_actions(self, unit: int) -> list[int]:
        if self._points[unit, 0] <= 0:
            return [1] + [0] * (self.n_actions - 1)
        ends = self._place[unit] + STRIDE * DIRECTIONS
        moves = ((ends >= 0) & (ends <= SIDE)).all(1)
        units = self._allies if self._heals[unit] else self._enemies
        targets = self._within(unit, units, self._reach[unit]) & ~(self._heals[units] & self._heals[unit])
        allowed = [0, 1, *moves.astype(int).tolist(), *targets.astype(int).tolist()]
        return (allowed + [0] * self.n_actions)[: self.n_actions]

    def get_avail_actions(self) -> list[list[int]]:
        return [self.get_avail_agent_actions(unit) for unit in range(self.n_agents)]

    def get_obs(self) -> list[Array]:
        return [self.get_obs_agent(unit) for unit in range(self.n_agents)]

    def get_obs_agent(self, unit: int) -> Array:
        """Return where the unit can go, the enemy's units and ours in sight, and itself; zeros if it is dead."""
        allowed = self.get_avail_agent_actions(unit)
        parts = [np.array(allowed[2:NO_ATTACK])]
        for side, units in ((1, self._enemies), (0, self._allies[self._allies != unit])):
            offsets = (self._place[units] - self._place[unit]) / SIGHT
            first = self._within(unit, units, self._reach[unit]) if side else np.ones(len(units))
            rows = np.column_stack([first, np.hypot(*offsets.T), offsets, self._condition(units, side)])
            parts.append(np.where(self._within(unit, units, SIGHT)[:, None], rows, 0).ravel())
        parts += [self._condition(self._allies[[unit]], 0).ravel(), self._own_place(unit)]
        return np.concatenate(parts).astype(np.float32) * float(self._alive[unit])

    def _own_place(self, unit: int) -> Array:
        return np.zeros(0)

    def _condition(self, units: Array, side: int) -> Array:
        """Return health, perhaps shield, and perhaps the type of units [units, …]."""
        shares = self._points[units] / np.maximum(1, self._most[units])
        columns = [shares if self._shields[side] else shares[:, :1]]
        return np.hstack(columns if self._types is None else [*columns, self._types[units]])

    def get_state(self) -> Array:
        places = self._place / SIDE
        waits = np.zeros(self.n_agents)  # between hits: nobody has to
        allies = np.column_stack([waits, places[self._allies], self._condition(self._allies, 0)])
        enemies = np.column_stack([places[self._enemies], self._condition(self._enemies, 1)])
        parts = [part * self._alive[units, None] for part, units in ((allies, self._allies), (enemies, self._enemies))]
        return np.concatenate([*(part.ravel() for part in parts), self._last.ravel()]).astype(np.float32)

    def get_env_info(self) -> dict[str, Any]:
        return {
            "state_shape": len(self.get_state()),
            "obs_shape": len(self.get_obs_agent(0)),
            "n_actions": self.n_actions,
            "n_agents": self.n_agents,
            "episode_limit": self.episode_limit,
        }

    def render(self, mode: str = "human") -> None:
        """Draw nothing."""

    def close(self) -> None:
        pass


class StarCraft2Env(Battle):
    """SMAC's: the armies of a map."""

    def __init__(self, map_name: str = "8m", **options: Any) -> None:
        chart = smac.MAPS[map_name]
        sides = [[name for name, count in army.items() for _ in range(count)] for army in chart[1:]]
        self._units = sides[0] + sides[1]
        counts, races = (len(sides[0]), len(sides[1])), (KINDS[sides[0][0]].race, KINDS[sides[1][0]].race)
        super().__init__(counts, list(chart.allies), races, chart.limit, **options)

    def _names(self) -> list[str]:
        return self._units


class StarCraftCapabilityEnvWrapper(Battle):
    """SMACv2's: armies that are drawn for each battle. Units observe their own position, too."""

    def __init__(
        self,
        capability_config: Mapping[str, Any],
        map_name: str,
        obs_own_pos: bool = False,
        conic_fov: bool = False,
        num_fov_actions: int = 12,
        use_unit_ranges: bool = True,
        min_attack_range: int = 2,
        **options: Any,
    ) -> None:
        self._team, self._shows_place = capability_config["team_gen"], obs_own_pos
        race = map_name.removeprefix("10gen_")
        counts = (capability_config["n_units"], capability_config["n_enemies"])
        super().__init__(counts, self._team["unit_types"], (race, race), 200, **options)

    def _names(self) -> list[str]:
        allies = self._draw(self.n_agents)
        extra = self.n_enemies - self.n_agents
        enemies = (allies + self._draw(extra) if extra > 0 else allies)[: self.n_enemies]
        return sorted(allies) + enemies

    def _draw(self, count: int) -> list[str]:
        """Return the types of an army that can fight."""
        while True:
            army: list[str] = self._random.choice(self._team["unit_types"], count, p=self._team["weights"]).tolist()
            if not set(army) <= set(self._team.get("exception_unit_types", ())):
                return army

    def _own_place(self, unit: int) -> Array:
        return self._place[unit] / SIDE if self._shows_place else np.zeros(0)
