"""The rules of a skirmish as array operations over all battles: action masks, steps and observations.

Letters in shapes: N battles, n allied units, E enemies, U = n + E; allies come first.
Health, damage and time are whole numbers and distances are never added up, so that a battle does not depend on which
other battles are computed with it, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cadenza.envs.layout import Array
from cadenza.envs.simulation import EVERYONE, Rows
from cadenza.envs.skirmish.maps import Armies, UnitType
from cadenza.types import Step

SIZE = 24.0  # side of the square field
DIAGONAL = 0.5**0.5
MOVES = {  # name -> direction
    "north": (0.0, 1.0),
    "south": (0.0, -1.0),
    "east": (1.0, 0.0),
    "west": (-1.0, 0.0),
    "northeast": (DIAGONAL, DIAGONAL),
    "northwest": (-DIAGONAL, DIAGONAL),
    "southeast": (DIAGONAL, -DIAGONAL),
    "southwest": (-DIAGONAL, -DIAGONAL),
}
STRAIGHT = 4  # the number of moves that every type has, the first ones
# All actions in one row: hold, moves, brace, then one per unit: heal this ally or attack this enemy. A type has some.
HOLD, MOVE, BRACE, ATTACK = 0, 1, 1 + len(MOVES), 2 + len(MOVES)
KILL_POINTS, WIN_POINTS, PERFECT = 10, 200, 20.0  # besides a point per health; a perfect battle is scaled to PERFECT
SELF_COLUMNS = ("health", "x", "y", "cooldown", "energy", "threat")
OTHER_COLUMNS = ("dx", "dy", "distance", "health", "cooldown")  # then one per type, or one where types are hidden

Opponent = Literal["nearest", "weakest"]


@dataclass(frozen=True)
class Squad:
    """Allied units whose observations and actions have the same columns: a group of agents."""

    units: Array  # [A] the units' numbers
    features: Array  # [A, D] indices into a battle's flat table of observations
    actions: Array  # [A, k] the actions, as columns of the row of all actions
    allowed: Array  # [A, k] indices into a battle's flat table of allowed actions


class Battles:
    """N battles between the same armies. The scripted enemy advances on the nearest ally and attacks what it reaches.

    `types`: observations show the units' types. `padded`: all allied units have the same columns and actions.
    """

    def __init__(
        self,
        armies: Armies,
        num: int,
        limit: int,
        groups: Mapping[str, Sequence[int]],
        opponent: Opponent = "nearest",
        strength: float = 0.8,
        types: bool = True,
        padded: bool = False,
    ) -> None:
        units = (*armies.allies, *armies.enemies)
        self.armies, self.num, self.limit = armies, num, limit
        self.opponent, self.padded = opponent, padded
        self._looks = [f"is_{kind.name}" for kind in armies.types] if types else ["is_seen"]
        self.allies, self.units = len(armies.allies), len(units)
        self._set_constants(units, strength)
        self.x, self.y = (np.zeros((num, self.units), np.float32) for _ in range(2))
        self.health, self.cooldown, self.energy = (np.zeros((num, self.units), np.int32) for _ in range(3))
        self.time = np.zeros(num, np.int32)
        self._distances = np.zeros((num, self.allies, self.units), np.float32)  # from each ally
        self._allowed = np.zeros((num, self.allies, ATTACK + self.units), bool)
        self.squads = {name: self._squad(members) for name, members in groups.items()}

    def _set_constants(self, units: Sequence[UnitType], strength: float) -> None:
        n = self.allies

        def each(field: str, dtype: Any = np.int32) -> Array:
            return np.array([getattr(unit, field) for unit in units], dtype)

        self.full_health, self._period, self._full_energy = each("health"), each("period"), each("energy")
        self._sight, self._reach = each("sight", np.float32), each("reach", np.float32)
        self._speed, self._heals = each("speed", np.float32), each("heals")
        self._braces, self._agile = each("braces", bool), each("agile", bool)
        damage = each("damage")
        self._fights = damage > 0
        damage[n:] = np.floor(damage[n:] * strength)
        hits = np.where(self._fights[:, None], np.maximum(damage[:, None] - each("armour"), 1), 0)  # [from, to]
        self._hit_enemy, self._hit_ally = hits[:n, n:], hits[n:, :n]
        self._steps = np.zeros((2, n, ATTACK + self.units), np.float32)  # the displacement of each action, x and y
        self._steps[:, :, MOVE:BRACE] = np.array(list(MOVES.values()), np.float32).T[:, None] * self._speed[:n, None]
        self._can_move = np.ones((n, len(MOVES)), bool)
        self._can_move[:, STRAIGHT:] = self._agile[:n, None]
        looks = [[look in (f"is_{unit.name}", "is_seen") for unit in units] for look in self._looks]
        self._look = np.array(looks, np.float32)  # [K, U]
        self._healers = np.flatnonzero(self._heals[n:])  # of the enemy
        self._numbers, self._columns = np.arange(n), ATTACK + np.arange(self.units)
        enemies = self.armies.enemies
        perfect = sum(unit.health + KILL_POINTS for unit in enemies) + WIN_POINTS
        self._point = PERFECT / perfect
        self._start = formation(n, 7.0, -1.5), formation(self.units - n, SIZE - 7.0, 1.5)
        self._width = len(SELF_COLUMNS) + (len(OTHER_COLUMNS) + len(self._looks)) * self.units

    # observations and actions of a unit, by name and column

    def features(self, unit: int) -> dict[str, int]:
        """Return name -> column of what an allied unit observes; without padding it depends on the type."""
        kind, names = self.armies.allies[unit], self.unit_names()
        shows = {"cooldown": kind.period > 1, "energy": kind.heals > 0, "threat": kind.braces}
        columns = {f"self.{name}": k for k, name in enumerate(SELF_COLUMNS) if self.padded or shows.get(name, True)}
        for other, name in enumerate(names):
            if other == unit:
                continue
            enemy = other >= self.allies
            hidden = {"cooldown": not (enemy and kind.agile), "health": enemy and kind.heals > 0}
            labels = [*OTHER_COLUMNS, *self._looks]
            columns |= {
                f"{name}.{label}": len(SELF_COLUMNS) + place * self.units + other
                for place, label in enumerate(labels)
                if self.padded or not hidden.get(label)
            }
        return columns

    def actions(self, unit: int) -> dict[str, int]:
        """Return name -> column of the actions of an allied unit; with padding, of every type's actions."""
        kind, names = self.armies.allies[unit], self.unit_names()
        columns = {"hold": HOLD}
        columns |= {name: MOVE + k for k, name in enumerate(MOVES) if self.padded or kind.agile or k < STRAIGHT}
        columns |= {"brace": BRACE} if self.padded or kind.braces else {}
        if self.padded or not kind.heals:
            columns |= {f"attack {names[k]}": ATTACK + k for k in range(self.allies, self.units)}
        if self.padded or kind.heals:
            columns |= {f"heal {names[k]}": ATTACK + k for k in range(self.allies) if k != unit}
        return columns

    def action_names(self, squad: Squad) -> tuple[str, ...]:
        """Return the names of a squad's actions, without the target where it differs between its units."""
        every = zip(*(self.actions(unit) for unit in squad.units), strict=True)
        return tuple(names[0] if len(set(names)) == 1 else names[0].partition(" ")[0] for names in every)

    def unit_names(self) -> list[str]:
        """Return the names of all units: `marine_0`, … for allies, `enemy_marine_0`, … for enemies."""
        names = []
        for prefix, side in (("", self.armies.allies), ("enemy_", self.armies.enemies)):
            names += [f"{prefix}{unit.name}_{side[:k].count(unit)}" for k, unit in enumerate(side)]
        return names

    def _squad(self, members: Sequence[int]) -> Squad:
        units = np.array(members)
        features = np.array([list(self.features(unit).values()) for unit in members])
        actions = np.array([list(self.actions(unit).values()) for unit in members])
        row = units[:, None]
        return Squad(units, row * self._width + features, actions, row * self._allowed.shape[2] + actions)

    # the start of a battle

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the battles `rows`, each to its seed: it decides each unit's place in the formation, with noise."""
        for row, seed in zip(rows, seeds, strict=True):
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
            places = np.concatenate([random.permutation(side) for side in self._start])
            self.x[row], self.y[row] = (places + random.uniform(-1, 1, places.shape)).T
        self.health[rows], self.energy[rows] = self.full_health, self._full_energy
        self.cooldown[rows], self.time[rows] = 0, 0

    # a step

    def advance(self, action: Mapping[str, Array], step: Step) -> None:
        """Step all battles; write rewards, deaths and ends into `step`. `show` writes the observations."""
        n = self.allies
        alive = self.health > 0
        choices = self._choices(action)
        x, y = (axis[self._numbers, choices] for axis in self._steps)
        lost = np.empty_like(self.health)
        attacks = choices[:, :, None] == self._columns[n:]  # [N, n, E]
        lost[:, n:] = (attacks * self._hit_enemy).sum(1)
        healed = np.zeros_like(self.health)
        if self._heals[:n].any():
            healed[:, :n] = ((choices[:, :, None] == self._columns[:n]) * self._heals[:n, None]).sum(1)
        targets, fires, enemy_x, enemy_y = self._fighters(alive)
        hits = (targets[:, :, None] == self._numbers) & fires[:, :, None]  # [N, E, n]
        lost[:, :n] = (hits * self._hit_ally).sum(1)
        lost[:, :n] >>= choices == BRACE
        acted = np.concatenate([choices >= ATTACK, fires], axis=1)
        if len(self._healers):
            self._heal_enemies(alive, acted, healed, enemy_x, enemy_y)

        self.x += np.concatenate([x, enemy_x], axis=1)
        self.y += np.concatenate([y, enemy_y], axis=1)
        before = self.health.copy()
        np.clip(self.health - lost + healed, 0, self.full_health, out=self.health)
        self.energy -= acted & (self._heals > 0)
        self.cooldown[...] = np.where(acted, self._period - 1, np.maximum(self.cooldown - 1, 0))
        self.time += 1
        self._judge(before, step)

    def _choices(self, action: Mapping[str, Array]) -> Array:
        """Return the column of each ally's action [N, n]; an action that is not allowed becomes hold."""
        choices = np.zeros((self.num, self.allies), np.intp)
        for name, squad in self.squads.items():
            choices[:, squad.units] = squad.actions[np.arange(len(squad.units)), action[name]]
        choices *= np.take_along_axis(self._allowed, choices[:, :, None], 2)[:, :, 0]
        return choices

    def _fighters(self, alive: Array) -> tuple[Array, Array, Array, Array]:
        """Return the enemy attackers' targets, whether they fire, and their displacement in x and y, [N, E] each."""
        n = self.allies
        distances = np.where(alive[:, :n, None], self._distances[:, :, n:], np.float32(np.inf))
        nearest = distances.argmin(1)
        gap = np.take_along_axis(distances, nearest[:, None], 1)[:, 0]
        reached = gap <= self._reach[n:]
        able = alive[:, n:] & self._fights[n:]
        target = nearest
        if self.opponent == "weakest":
            weak = np.where(distances <= self._reach[n:], self.health[:, :n, None], np.iinfo(np.int32).max).argmin(1)
            target = np.where(reached, weak, nearest)
        fires = able & reached & (self.cooldown[:, n:] == 0)
        # an ally out of reach is more than a step away
        stride = np.where(able & ~reached, self._speed[n:] / np.maximum(gap, np.float32(1)), np.float32(0))
        x, y = (np.take_along_axis(axis[:, :n], nearest, 1) - axis[:, n:] for axis in (self.x, self.y))
        return target, fires, x * stride, y * stride

    def _heal_enemies(self, alive: Array, acted: Array, healed: Array, enemy_x: Array, enemy_y: Array) -> None:
        """Move the enemy's healers to the worst hurt unit and heal it; the last four arguments are changed in place."""
        n, healers = self.allies, self._healers
        x, y = (axis[:, None, n:] - axis[:, n + healers, None] for axis in (self.x, self.y))  # [N, healers, E]
        fraction = (self.health[:, n:] / self.full_health[n:].astype(np.float32)).astype(np.float32)
        others = alive[:, None, n:] & (healers[:, None] != np.arange(self.units - n))
        need = np.where(others, fraction[:, None], np.float32(np.inf))
        target = need.argmin(2)[:, :, None]
        worst, x, y = (np.take_along_axis(array, target, 2)[:, :, 0] for array in (need, x, y))
        gap = np.sqrt(x * x + y * y)
        able = alive[:, n + healers] & np.isfinite(worst)
        reached = gap <= self._reach[n + healers]
        heals = able & reached & (worst < 1) & (self.energy[:, n + healers] > 0)
        stride = np.where(able & ~reached, self._speed[n + healers] / np.maximum(gap, np.float32(1)), np.float32(0))
        enemy_x[:, healers], enemy_y[:, healers] = x * stride, y * stride
        acted[:, n + healers] = heals
        patients = (target == np.arange(self.units - n)) & heals[:, :, None]
        healed[:, n:] += (patients * self._heals[n + healers, None]).sum(1)

    def _judge(self, before: Array, step: Step) -> None:
        n, alive = self.allies, self.health > 0
        allies, enemies = alive[:, :n].any(1), alive[:, n:].any(1)
        won = allies & ~enemies
        step.terminated[...] = ~(allies & enemies)
        step.truncated[...] = ~step.terminated & (self.time >= self.limit)
        np.logical_or(step.terminated, step.truncated, out=step.is_first)
        assert step.won is not None
        step.won[...] = won
        fell = (before > 0) & ~alive
        points = (before[:, n:] - self.health[:, n:]).sum(1) + KILL_POINTS * fell[:, n:].sum(1) + WIN_POINTS * won
        share = (points * self._point / n).astype(np.float32)[:, None]
        fell &= ~step.is_first[:, None]
        for name, squad in self.squads.items():
            step.reward[name][...] = share
            step.died[name][...] = fell[:, squad.units]

    # observations

    def show(self, step: Step, rows: Rows = EVERYONE) -> None:
        """Write observations, masks, activity and central state of the battles `rows` into `step`."""
        n = self.allies
        x, y, health = self.x[rows], self.y[rows], self.health[rows]
        alive = health > 0
        dx, dy = x[:, None] - x[:, :n, None], y[:, None] - y[:, :n, None]  # [N, n, U]
        distances = np.sqrt(dx * dx + dy * dy)
        self._distances[rows] = distances
        table = self._observations(rows, alive, dx, dy, distances).reshape(len(x), -1)
        allowed = self._possible(rows, alive, distances)
        self._allowed[rows] = allowed
        allowed = allowed.reshape(len(x), -1)
        for name, squad in self.squads.items():
            step.obs[name][rows] = table.take(squad.features, axis=1)
            step.mask[name][rows] = allowed.take(squad.allowed, axis=1)
            step.active[name][rows] = alive[:, squad.units]
        assert step.state is not None
        step.state[rows] = self._central_state(rows)

    def _observations(self, rows: Rows, alive: Array, dx: Array, dy: Array, distances: Array) -> Array:
        """Return the columns of every type [N, n, width], with zeros beyond sight and for the dead."""
        n, sight = self.allies, self._sight[: self.allies, None]
        first, last = len(SELF_COLUMNS), len(SELF_COLUMNS) + len(OTHER_COLUMNS) * self.units
        table = np.zeros((len(alive), n, self._width), np.float32)
        states = self._states(rows)
        table[:, :, : len(states)] = np.stack([state[:, :n] for state in states], axis=2)
        if self._braces[:n].any():
            near = (distances[:, :, n:] <= self._reach[n:]) & alive[:, None, n:]
            table[:, :, SELF_COLUMNS.index("threat")] = near.sum(2) / np.float32(self.units - n) * alive[:, :n]
        visible = (distances <= sight) & alive[:, None] & alive[:, :n, None]
        health, cooldown = states[0][:, None], states[3][:, None]
        columns = table[:, :, first:last].reshape(len(alive), n, len(OTHER_COLUMNS), self.units)
        for place, column in enumerate((dx / sight, dy / sight, distances / sight, health, cooldown)):
            np.multiply(column, visible, out=columns[:, :, place])
        kinds = table[:, :, last:].reshape(len(alive), n, len(self._look), self.units)
        np.multiply(self._look, visible[:, :, None], out=kinds)
        return table

    def _possible(self, rows: Rows, alive: Array, distances: Array) -> Array:
        """Return which actions each ally could take [N, n, all]: in the field, in reach, alive, ready, with energy."""
        n = self.allies
        allowed = np.zeros((len(alive), n, ATTACK + self.units), bool)
        allowed[:, :, HOLD] = True
        inside = self._can_move & alive[:, :n, None]
        for axis, steps in zip((self.x[rows], self.y[rows]), self._steps, strict=True):
            place = axis[:, :n, None] + steps[:, MOVE:BRACE]
            inside &= (place >= 0) & (place <= SIZE)
        allowed[:, :, MOVE:BRACE] = inside
        allowed[:, :, BRACE] = alive[:, :n] & self._braces[:n]
        reached = (distances <= self._reach[:n, None]) & alive[:, None]
        ready = alive[:, :n] & (self.cooldown[rows, :n] == 0) & self._fights[:n]
        allowed[:, :, ATTACK + n :] = reached[:, :, n:] & ready[:, :, None]
        if self._heals[:n].any():
            able = alive[:, :n] & (self.energy[rows, :n] > 0)  # fighters have none
            hurt = self.health[rows, :n] < self.full_health[:n]
            allowed[:, :, ATTACK : ATTACK + n] = reached[:, :, :n] & able[:, :, None] & hurt[:, None]
        return allowed

    def _states(self, rows: Rows) -> list[Array]:
        """Return health, x, y, cooldown and energy of every unit, scaled, [N, U] each; zero for the dead."""
        alive = self.health[rows] > 0
        return [
            (self.health[rows] / self.full_health).astype(np.float32),
            (self.x[rows] * np.float32(2 / SIZE) - 1) * alive,
            (self.y[rows] * np.float32(2 / SIZE) - 1) * alive,
            (self.cooldown[rows] / self._period).astype(np.float32) * alive,
            (self.energy[rows] / np.maximum(self._full_energy, 1)).astype(np.float32) * alive,
        ]

    def _central_state(self, rows: Rows) -> Array:
        """Return the state of every unit and the share of the time limit that has passed, [N, 5 U + 1]."""
        states = np.concatenate(self._states(rows), axis=1)
        return np.concatenate([states, (self.time[rows] / self.limit).astype(np.float32)[:, None]], axis=1)

    # saving and restoring

    def snapshot(self) -> dict[str, Array]:
        return {name: getattr(self, name).copy() for name in ("x", "y", "health", "cooldown", "energy", "time")}

    def restore(self, state: Mapping[str, Array]) -> None:
        for name, array in state.items():
            getattr(self, name)[...] = array


def formation(count: int, x: float, behind: float) -> Array:
    """Return positions [count, 2] in columns of eight across the field, each column `behind` the one before."""
    place = np.zeros((count, 2))
    for first in range(0, count, 8):
        file = np.arange(min(8, count - first))
        place[first : first + 8, 0] = x + behind * (first // 8)
        place[first : first + 8, 1] = SIZE / 2 + 1.5 * (file - (len(file) - 1) / 2)
    return place
