"""The search space of a sweep: lists and ranges by dotted key; all combinations of them, or random draws."""

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
DIGITS = 6  # of drawn numbers: enough for any setting, and short enough to read
STEP_DIGITS = 15  # of numbers on a step: 0.15 instead of 0.15000000000000002
LARGEST_GRID = 10_000  # combinations: each is resolved and checked before anything runs
# keys that the sweep sets, with the key of the sweep file that determines them
RESERVED = {"seed": "seeds", "name": "name", "tags": "name", "schema_version": "base"}


@dataclass(frozen=True)
class Choices:
    """A list of values, each equally likely."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value."""
        return self.values[int(rng.integers(len(self.values)))]

    @property
    def corners(self) -> tuple[Any, ...]:
        """The values to check before a sweep begins: all of them."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A range of numbers, both ends included."""

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
        """Draw a number."""
        if self.step is not None:
            return self.value_at(int(rng.integers(self.steps + 1)))
        if self.whole and not self.log:
            return int(rng.integers(int(self.min), int(self.max) + 1))
        if self.log:
            return self.round(math.exp(rng.uniform(math.log(self.min), math.log(self.max))))
        return self.round(float(rng.uniform(self.min, self.max)))

    @property
    def steps(self) -> int:
        """The number of steps from the smallest value to the largest."""
        assert self.step is not None
        return int((self.max - self.min) / self.step + 1e-9)

    def value_at(self, index: int) -> float | int:
        """Return the value that is `index` steps above the smallest."""
        assert self.step is not None
        return self.round(self.min + self.step * index)

    def index_of(self, value: float) -> int:
        """Return how many steps a value is above the smallest."""
        assert self.step is not None
        return round((value - self.min) / self.step)

    def round(self, value: float) -> float | int:
        """Return the number without insignificant digits, inside the range."""
        if self.whole:
            return round(value)
        digits = DIGITS if self.step is None else STEP_DIGITS
        return min(max(float(f"{value:.{digits}g}"), self.min), self.max)

    @property
    def corners(self) -> tuple[float | int, ...]:
        """The values to check before a sweep begins: both ends."""
        return self.round(self.min), self.round(self.max) if self.step is None else self.value_at(self.steps)


Dimension = Choices | Range


@dataclass(frozen=True)
class Space:
    """The settings that vary, and those that have one value in all trials."""

    dimensions: Mapping[str, Dimension]
    fixed: Params

    def grid(self) -> Iterator[Params]:
        """Yield every combination of lists; the last key varies fastest."""
        lists = []
        for key, dimension in self.dimensions.items():
            if isinstance(dimension, Range):
                raise ConfigError(f"sweep.{key}: a grid needs a list of values; a range goes with method=random or tpe")
            lists.append(dimension.values)
        count = math.prod(map(len, lists))
        if count > LARGEST_GRID:
            raise ConfigError(
                f"sweep: a grid of {count:,} combinations, at most {LARGEST_GRID:,}; "
                "method=random or tpe tries some of them"
            )
        for combination in product(*lists):
            yield dict(zip(self.dimensions, combination, strict=True))

    def draw(self, seed: int, number: int) -> Params:
        """Return the values of a trial; they depend on the seed and the trial's number alone."""
        rng = np.random.default_rng([seed, number])
        return {key: dimension.draw(rng) for key, dimension in self.dimensions.items()}

    def corners(self) -> Iterator[Params]:
        """Yield each value of a list and both ends of a range, one setting at a time."""
        for key, dimension in self.dimensions.items():
            for value in dimension.corners:
                yield {key: value}


def parse(sweep: Mapping[str, Any], kinds: Mapping[str, tuple[bool, bool]]) -> Space:
    """Return the space that the mapping `sweep` of a file describes.

    `kinds` holds for each setting whether it takes whole numbers and whether it takes others.
    """
    dimensions: dict[str, Dimension] = {}
    fixed = {}
    for key, value in sweep.items():
        if key in RESERVED:
            raise ConfigError(f"sweep.{key}: set by the sweep itself (see `{RESERVED[key]}`)")
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
    choices = tuple(map(_number, values))
    if not choices or len({canonical(value) for value in choices}) < len(choices):
        raise ConfigError(f"sweep.{key}: must be a list of values that differ")
    return Choices(choices)


def _range(key: str, value: dict[str, Any], whole: bool, real: bool) -> Range:
    if not {"min", "max", "log", "step"} & set(value):
        example = next(iter(value), "")
        raise ConfigError(
            f"sweep.{key}: must be a list of values or a range {{min, max, log, step}}; "
            f"keys are dotted: '{key}.{example}', and a mapping that is a value must stand in a list"
        )
    bounds = [_number(value.get(name)) for name in ("min", "max", "step")]
    integral = all(number is None or isinstance(number, int) for number in bounds)
    if not real and not integral:
        raise ConfigError(f"sweep.{key}: takes whole numbers, so min, max and step must be whole")
    return build(Range, {"whole": whole and integral, **value}, f"sweep.{key}")


def _number(value: Any) -> Any:
    """Return the number that a text such as 1e-4 stands for, which YAML reads as text; other values as they are."""
    if isinstance(value, str) and EXPONENT.fullmatch(value):
        number = float(value)
        return int(number) if number == int(number) and "-" not in value else number
    return [_number(item) for item in value] if isinstance(value, list) else value
