"""A skirmish as a picture, drawn with NumPy alone: discs by side, marks by type, bars for health."""

from __future__ import annotations

from functools import cache

import numpy as np

from cadenza.envs.layout import Array
from cadenza.envs.skirmish.rules import SIZE, Battles

SCALE, MARGIN = 16, 16  # pixels of a field unit, and around the field
GROUND, LINES = (236, 231, 219), (222, 215, 200)
ALLY, ENEMY, DEAD, MARK = (45, 108, 190), (196, 62, 52), (196, 188, 172), (255, 255, 255)
FULL, EMPTY, SHADOW = (74, 160, 76), (90, 82, 74), (150, 142, 128)
RADIUS = {"marine": 7, "bruiser": 10, "healer": 7, "scout": 6, "guard": 10}  # pixels


def draw(fights: Battles, battle: int = 0) -> Array:
    """Draw a battle as bytes [height, width, 3]; fallen units stay as grey discs."""
    picture = background().copy()
    health, names = fights.health[battle], [unit.name for unit in (*fights.armies.allies, *fights.armies.enemies)]
    columns = MARGIN + np.rint(fights.x[battle] * SCALE).astype(int)
    rows = MARGIN + np.rint((SIZE - fights.y[battle]) * SCALE).astype(int)
    for unit in np.argsort(health > 0, kind="stable"):  # the living over the dead
        name, row, column = names[unit], rows[unit], columns[unit]
        radius, alive = RADIUS[name], health[unit] > 0
        side = ALLY if unit < fights.allies else ENEMY
        paint(picture, row, column, disc(radius + 1), SHADOW if alive else LINES)
        paint(picture, row, column, disc(radius), side if alive else DEAD)
        paint(picture, row, column, mark(name), MARK if alive else GROUND)
        if alive:
            share = health[unit] / fights.full_health[unit]
            bar(picture, row - radius - 5, column, 2 * radius + 3, share)
    return picture


@cache
def background() -> Array:
    side = int(SIZE * SCALE) + 2 * MARGIN
    picture = np.empty((side, side, 3), np.uint8)
    picture[:] = GROUND
    for place in range(MARGIN, side - MARGIN + 1, 4 * SCALE):
        picture[place, MARGIN:-MARGIN] = picture[MARGIN:-MARGIN, place] = LINES
    return picture


@cache
def disc(radius: int) -> Array:
    """Return a disc as a square stencil with sides of 2 radius + 1."""
    across = np.arange(-radius, radius + 1)
    return np.asarray(across[:, None] ** 2 + across**2 <= (radius + 0.3) ** 2)


@cache
def mark(name: str) -> Array:
    """Return the stencil of a unit type: marine dot, bruiser square, healer cross, scout bar, guard ring."""
    across = np.abs(np.arange(-4, 5))
    high, wide = across[:, None], across[None]
    shapes = {
        "marine": high**2 + wide**2 <= 5,
        "bruiser": np.maximum(high, wide) <= 3,
        "healer": (np.minimum(high, wide) <= 1) & (np.maximum(high, wide) <= 4),
        "scout": (high <= 1) & (wide <= 3),
        "guard": (high**2 + wide**2 <= 18) & (high**2 + wide**2 >= 5),
    }
    return np.asarray(shapes[name])


def paint(picture: Array, row: int, column: int, stencil: Array, colour: tuple[int, int, int]) -> None:
    """Paint a stencil centred on a pixel; it must not reach over the picture's edge."""
    half = len(stencil) // 2
    picture[row - half : row + half + 1, column - half : column + half + 1][stencil] = colour


def bar(picture: Array, row: int, column: int, width: int, share: float) -> None:
    """Paint a health bar, filled up to `share`."""
    left = column - width // 2
    picture[row - 1 : row + 2, left : left + width] = EMPTY
    picture[row - 1 : row + 2, left : left + max(1, round(width * share))] = FULL
