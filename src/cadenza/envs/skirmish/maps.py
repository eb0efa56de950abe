"""The armies of a skirmish: the types of units, and maps by name or by composition."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cadenza.errors import NotFoundError, nearest

PREFIX = "skirmish/"
MOST = 32  # units on a side


@dataclass(frozen=True)
class UnitType:
    """A type of unit. Distances are in field units, times in steps; health, damage and healing are whole points."""

    letter: str
    name: str
    health: int
    armour: int  # subtracted from every hit, which costs at least 1
    sight: float
    reach: float  # of attacks, or of healing
    speed: float  # distance per step
    damage: int
    period: int  # steps from one attack to the next
    heals: int = 0  # points per healing, instead of attacking
    energy: int = 0  # the number of times it can heal
    braces: bool = False  # can brace itself, which halves hits
    agile: bool = False  # can move diagonally


TYPES = (
    UnitType("m", "marine", health=45, armour=0, sight=9, reach=6, speed=1.0, damage=9, period=2),
    UnitType("x", "bruiser", health=120, armour=3, sight=8, reach=2, speed=1.2, damage=18, period=2, braces=True),
    UnitType("h", "healer", health=40, armour=0, sight=9, reach=5, speed=1.0, damage=0, period=1, heals=7, energy=20),
    UnitType("s", "scout", health=35, armour=0, sight=14, reach=4, speed=1.8, damage=5, period=1, agile=True),
    UnitType("g", "guard", health=160, armour=4, sight=9, reach=6, speed=1.0, damage=4, period=2),
)
BY_LETTER = {kind.letter: kind for kind in TYPES}

MAPS = ("3m", "8m", "5m_vs_6m", "2m1x1h", "3m1x1h1s", "4m1x_vs_8m", "4m1g_vs_8m")
GROUP = re.compile(r"(\d+)([a-z])")
GRAMMAR = "COUNT TYPE… [_vs_ COUNT TYPE…], e.g. 2m1x1h or 5m_vs_6m"


@dataclass(frozen=True)
class Armies:
    """The units of both sides in the order of their numbers."""

    allies: tuple[UnitType, ...]
    enemies: tuple[UnitType, ...]

    @property
    def types(self) -> tuple[UnitType, ...]:
        """The types in either army, in the order of `TYPES`."""
        return tuple(kind for kind in TYPES if kind in self.allies + self.enemies)

    def members(self) -> dict[str, list[int]]:
        """Return type name -> numbers of the allied units of that type."""
        kinds = [kind for kind in TYPES if kind in self.allies]
        return {kind.name: [i for i, unit in enumerate(self.allies) if unit is kind] for kind in kinds}


def parse(id: str) -> Armies:
    """Return the armies of `skirmish/<map>`; without `_vs_` both are the same. Refuse what is no composition."""
    name = id.removeprefix(PREFIX)
    sides = name.split("_vs_")
    if len(sides) > 2:
        raise _unknown(name, f"a map is {GRAMMAR}")
    armies = [_side(name, side) for side in sides]
    return Armies(armies[0], armies[-1])


def _side(name: str, text: str) -> tuple[UnitType, ...]:
    if not re.fullmatch(rf"(?:{GROUP.pattern})+", text):
        raise _unknown(name, f"a map is {GRAMMAR}")
    units: list[UnitType] = []
    for count, letter in GROUP.findall(text):
        if letter not in BY_LETTER:
            raise _unknown(name, f"'{letter}' is no type (types: {', '.join(f'{k.letter} {k.name}' for k in TYPES)})")
        if not 1 <= int(count) <= MOST:
            raise _unknown(name, f"a side has 1 to {MOST} units")
        units += [BY_LETTER[letter]] * int(count)
    if len(units) > MOST:
        raise _unknown(name, f"a side has 1 to {MOST} units")
    if not any(unit.damage for unit in units):
        raise _unknown(name, "a side needs someone who can attack")
    return tuple(units)


def _unknown(name: str, reason: str) -> NotFoundError:
    return NotFoundError(f"unknown skirmish map '{name}': {reason}{nearest(name, MAPS)}")
