"""What a sweep may choose from: lists and ranges by dotted key; every combination of them, or random draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from cadenza.base.json_text import canonical
from cadenza.config.convert import EXPONENT, build
from cadenza.config.setting import setting
from cadenza.errors import ConfigError

Params = dict[str, Any]
DIGITS = 6  # of drawn numbers: enough for any setting, and short enough to be read
EXACT = 15  # of numbers that lie on a step: 0.15 instead of 0.15000000000000002, and no step too fine
MOST = 10_000  # combinations of a grid: each is made and checked before anything runs
OWN = {"seed": "seeds", "name": "name", "tags": "name", "schema_version": "base"}  # keys that the sweep itself sets


@dataclass(frozen=True)
class Choices:
    """One of a few values, each as likely as the others."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]

    @property
    def corners(self) -> tuple[Any, ...]:
        return self.values


@dataclass(frozen=True)
class Range:
    """A number between two, both included."""

    min: float = setting(math.nan, "smallest value")
    max: float = setting(math.nan, "largest value")
    log: bool = setting(False, "as many draws from 0.001 to 0.01 as from 0.01 to 0.1")
    step: float | None = setting(None, "distance between the values that may be drawn; null: any")
    whole: bool = setting(False, "whole numbers only")

    def __post_init__(self) -> None:
        if not self.min < self.max:
            raise ConfigError(f"min={self.min:g} and max={self.max:g}: both are needed, max above min")
        if self.log and (self.min <= 0 or self.step is not None):
            raise ConfigError("log: needs a min above 0 and no step")
        if self.step is not None and not 0 < self.step <= self.max - self.min:
            raise ConfigError(f"step={self.step:g}: must be above 0 and fit between min and max")

    def draw(self, rng: np.random.Generator) -> float | int:
        if self.step is not None:
            return self.at(int(rng.integers(self.steps + 1)))
        if self.whole and not self.log:
            return int(rng.integers(int(self.min), int(self.max) + 1))
        if self.log:
            return self.rounded(math.exp(rng.uniform(math.log(self.min), math.log(self.max))))
        return self.rounded(float(rng.uniform(self.min, self.max)))

    @property
    def steps(self) -> int:
        assert self.step is not None
        return int((self.max - self.min) / self.step + 1e-9)

    def at(self, place: int) -> float | int:
        """The value so many steps above the smallest."""
        assert self.step is not None
        return self.rounded(self.min + self.step * place)

    def place(self, value: float) -> int:
        """How many steps a value is above the smallest."""
        assert self.step is not None
        return round((value - self.min) / self.step)

    def rounded(self, value: float) -> float | int:
        if self.whole:
            return round(value)
        digits = DIGITS if self.step is None else EXACT
        return min(max(float(f"{value:.{digits}g}"), self.min), self.max)

    @property
    def corners(self) -> tuple[float | int, ...]:
        return self.rounded(self.min), self.rounded(self.max) if self.step is None else self.at(self.steps)


Dimension = Choices | Range


@dataclass(frozen=True)
class Space:
    """What varies, and beside it what is set to one value for all trials."""

    dimensions: Mapping[str, Dimension]
    fixed: Params

    def grid(self) -> Iterator[Params]:
        """Every combination; the last key changes quickest."""
        values = []
        for key, dimension in self.dimensions.items():
            if isinstance(dimension, Range):
                raise ConfigError(f"sweep.{key}: a grid needs a list of values; a range goes with method=random or tpe")
            values.append(dimension.values)
        count = math.prod(map(len, values))
        if count > MOST:
            raise ConfigError(
                f"sweep: a grid of {count:,} combinations, at most {MOST:,}; method=random or tpe tries some of them"
            )
        for combination in product(*values):
            yield dict(zip(self.dimensions, combination, strict=True))

    def draw(self, seed: int, number: int) -> Params:
        """The trial of this number: always the same, however many there are."""
        rng = np.random.default_rng([seed, number])
        return {key: dimension.draw(rng) for key, dimension in self.dimensions.items()}

    def corners(self) -> Iterator[Params]:
        """Each value of a list and both ends of a range, one at a time."""
        for key, dimension in self.dimensions.items():
            for value in dimension.corners:
                yield {key: value}


def parse(sweep: Mapping[str, Any], kinds: Mapping[str, tuple[bool, bool]]) -> Space:
    """The `sweep` of a file; `kinds` says of each setting whether it takes whole numbers and whether others too."""
    dimensions: dict[str, Dimension] = {}
    fixed = {}
    for key, value in sweep.items():
        if key in OWN:
            raise ConfigError(f"sweep.{key}: set by the sweep itself (see `{OWN[key]}`)")
        if isinstance(value, list):
            dimensions[key] = _choices(key, value)
        elif isinstance(value, dict):
            dimensions[key] = _range(key, value, *kinds.get(key, (False, True)))
        else:
            fixed[key] = _number(value)
    if not dimensions:
        raise ConfigError("sweep: no key has more than one value, so there is nothing to compare")
    return Space(dimensions, fixed)


def _choices(key: str, values: list[Any]) -> Choices:
    found = tuple(map(_number, values))
    if not found or len({canonical(value) for value in found}) < len(found):
        raise ConfigError(f"sweep.{key}: must be a list of values that differ")
    return Choices(found)


def _range(key: str, value: dict[str, Any], whole: bool, real: bool) -> Range:
    if not {"min", "max", "log", "step"} & set(value):
        example = next(iter(value), "")
        raise ConfigError(
            f"sweep.{key}: must be a list of values or a range {{min, max, log, step}}; "
            f"keys are dotted: '{key}.{example}', and a mapping to be tried stands in a list"
        )
    given = [_number(value.get(name)) for name in ("min", "max", "step")]
    integral = all(number is None or isinstance(number, int) for number in given)
    if not real and not integral:
        raise ConfigError(f"sweep.{key}: takes whole numbers, so min, max and step must be whole")
    return build(Range, {"whole": whole and integral, **value}, f"sweep.{key}")


def _number(value: Any) -> Any:
    """YAML reads 1e-4 as text."""
    if isinstance(value, str) and EXPONENT.fullmatch(value):
        number = float(value)
        return int(number) if number == int(number) and "-" not in value else number
    return [_number(item) for item in value] if isinstance(value, list) else value
