"""Scripted policies for skirmish: each scores all actions of a unit, and the best allowed one is taken."""

from __future__ import annotations

import numpy as np

from cadenza.envs.skirmish.rules import ATTACK, BRACE, MOVE, Battles

BEST = 1e6


def obeyed(fights: Battles, scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return the best allowed actions by group for scores [N, units, actions]."""
    actions = {}
    for name, squad in fights.squads.items():
        preferences = np.stack([scores[:, unit, squad.actions[k]] for k, unit in enumerate(squad.units)], axis=1)
        allowed = np.stack([fights._allowed[:, unit, squad.actions[k]] for k, unit in enumerate(squad.units)], axis=1)
        actions[name] = np.where(allowed, preferences, -np.inf).argmax(2)
    return actions


def focus_fire(fights: Battles) -> dict[str, np.ndarray]:
    """Attack the weakest enemy in reach, heal the most damaged ally, and move closer when the enemy is near."""
    return obeyed(fights, _focus(fights))


def _focus(fights: Battles) -> np.ndarray:
    n = fights.allies
    scores = np.zeros((fights.num, n, ATTACK + fights.units))
    scores[:, :, MOVE : BRACE + 1] = -1
    scores[:, :, ATTACK + n :] = BEST - fights.health[:, None, n:]
    scores[:, :, ATTACK : ATTACK + n] = BEST - fights.health[:, None, :n] / fights.full_health[:n]
    gaps = np.stack([_gaps(fights, unit).min(1) for unit in range(n)], axis=1)
    here = np.where(fights.health[:, :n] > 0, gaps, np.inf).min(1) <= 7
    for unit in range(n):
        useless = here & (gaps[:, unit] > fights.armies.allies[unit].reach)
        scores[:, unit] += useless[:, None] * _towards(fights, unit)
    return scores


def charge(fights: Battles, who: str | None = None) -> dict[str, np.ndarray]:
    """Run to the nearest enemy, then attack the weakest in reach; all units, or one type."""
    scores = _focus(fights)
    for unit in range(fights.allies):
        if who in (None, fights.armies.allies[unit].name):
            scores[:, unit] += np.where(_gaps(fights, unit).min(1) > 2, 2 * BEST, 1)[:, None] * _towards(fights, unit)
    return obeyed(fights, scores)


def guards_ahead(fights: Battles) -> dict[str, np.ndarray]:
    """Send guards to the enemy to draw its fire; the others attack from a distance."""
    return charge(fights, "guard")


def line(fights: Battles) -> dict[str, np.ndarray]:
    """Attack from a distance of up to six."""
    scores = _focus(fights)
    for unit in range(fights.allies):
        near = _gaps(fights, unit).min(1) <= 6
        scores[:, unit, MOVE:BRACE] = np.where(near[:, None], -1, scores[:, unit, MOVE:BRACE])
    return obeyed(fights, scores)


def _gaps(fights: Battles, unit: int) -> np.ndarray:
    n = fights.allies
    dx, dy = fights.x[:, n:] - fights.x[:, [unit]], fights.y[:, n:] - fights.y[:, [unit]]
    return np.where(fights.health[:, n:] > 0, np.hypot(dx, dy), np.inf)


def _towards(fights: Battles, unit: int) -> np.ndarray:
    """Return for each action [N, actions] how far a move leads to the nearest enemy, from -2 to 2; else 0."""
    n, gaps = fights.allies, _gaps(fights, unit)
    nearest = n + gaps.argmin(1)
    rows = np.arange(fights.num)
    way = np.stack([fights.x[rows, nearest] - fights.x[:, unit], fights.y[rows, nearest] - fights.y[:, unit]])
    way = way / np.maximum(np.hypot(*way), 1e-6)
    scores = np.zeros((fights.num, ATTACK + fights.units))
    steps = fights._steps[:, unit, MOVE:BRACE]
    scores[:, MOVE:BRACE] = 2 * (way.T @ (steps / np.maximum(np.hypot(*steps), 1e-6)))
    return scores
