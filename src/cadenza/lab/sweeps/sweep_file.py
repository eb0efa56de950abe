"""The sweep file: what is tried, how, with which seeds, and what counts. Typed, so that a mistake names its key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from cadenza.config.convert import build
from cadenza.config.load import load
from cadenza.config.schema import WATCHED
from cadenza.config.setting import setting
from cadenza.config.spec import CONF, read_file
from cadenza.errors import ConfigError, NotFoundError, nearest
from cadenza.records.metric_rows import Row

KINDS = ("eval/", "collect/", "train/", "time/", "system/")  # what metrics of a run begin with
TRIALS = 30  # of `tune`, where neither the command nor the file says how many


@dataclass(frozen=True)
class Objective:
    """What makes one trial better than another."""

    metric: str = setting("eval/return_mean", "metric of the runs")
    direction: Literal["maximize", "minimize"] = setting("maximize", "which way is better")
    value: Literal["last", "best"] = setting("last", "which of a run's values counts")
    seeds: Literal["mean", "median", "worst"] = setting("mean", "how the seeds of a trial are brought together")

    @classmethod
    def parse(cls, value: Any) -> Any:
        """The name of a metric is short for a mapping."""
        return {"metric": value} if isinstance(value, str) else value

    def __post_init__(self) -> None:
        known = self.metric.startswith(("eval/", "collect/")) and self.metric.count("/") == 1
        if known and self.metric not in WATCHED:
            listed = ", ".join(WATCHED)
            raise ConfigError(f"metric={self.metric}: unknown{nearest(self.metric, WATCHED)} (known: {listed})")
        if not self.metric.startswith(KINDS):
            hint = nearest(self.metric, WATCHED)
            raise ConfigError(f"metric={self.metric}: must begin with {', '.join(KINDS)}{hint}")

    @property
    def sign(self) -> int:
        return 1 if self.direction == "maximize" else -1

    def better(self, one: float, other: float) -> bool:
        return self.sign * one > self.sign * other

    def of_run(self, rows: list[Row], until: tuple[str, int] | None = None) -> float | None:
        """A run's value by its rows up to the first measurement at or after `until`: a unit and an amount of it."""
        values = []
        for row in rows:
            if row.get(self.metric) is not None:
                values.append(float(row[self.metric]))
                if until is not None and row[until[0]] >= until[1]:
                    break
        if not values:
            return None
        return values[-1] if self.value == "last" else max(values, key=lambda value: self.sign * value)

    def of_seeds(self, values: list[float]) -> float:
        if self.seeds == "worst":
            return min(values, key=lambda value: self.sign * value)
        return median(values) if self.seeds == "median" else fmean(values)


@dataclass(frozen=True)
class Pruning:
    """Ends trials that are worse than the median of earlier ones at the same point, all seeds taken together."""

    rungs: tuple[float, ...] = setting((0.25, 0.5), "where trials are looked at, as fractions of a run's budget")
    warmup_trials: int = setting(5, "trials that must have come to a point before any is ended there")

    @classmethod
    def parse(cls, value: Any) -> Any:
        """`true` is short for the defaults."""
        return {} if value is True else value

    def __post_init__(self) -> None:
        if (
            not self.rungs
            or list(self.rungs) != sorted(set(self.rungs))
            or not 0 < min(self.rungs) <= max(self.rungs) < 1
        ):
            raise ConfigError(f"rungs={list(self.rungs)}: must be fractions between 0 and 1, each above the last")
        if self.warmup_trials < 1:
            raise ConfigError(f"warmup_trials={self.warmup_trials}: must be at least 1")


@dataclass(frozen=True)
class SweepFile:
    """Everything that a sweep file may say."""

    base: str = setting("", "what every trial starts from: ENV:VARIANT, an experiment, or a YAML or JSON file")
    sweep: Mapping[str, Any] = setting(doc="dotted key: a list, {min, max, log, step}, or one value", factory=dict)
    method: Literal["grid", "random", "tpe"] = setting("grid", "every combination, random ones, or Optuna's choice")
    trials: int | None = setting(None, "how many, for random and tpe")
    seeds: tuple[int, ...] = setting((), "seeds of each trial, or how many (from 1); none: the base's own")
    parallel_jobs: int = setting(1, "runs that train at the same time")
    max_timesteps: int | None = setting(None, "budget of each run; null: the base's", "env_steps")
    objective: Objective = setting(doc="what counts", factory=Objective)
    pruning: Pruning | bool = setting(False, "whether trials that fall behind are ended early")
    sampler_seed: int = setting(0, "seed of what is drawn")
    name: str = setting("", "name of the sweep; empty: the file's")

    @classmethod
    def parse(cls, value: Any) -> Any:
        """A number of seeds is short for the first of them."""
        count = value.get("seeds") if isinstance(value, Mapping) else None
        if not isinstance(count, int) or isinstance(count, bool):
            return value
        if count < 1:
            raise ConfigError(f"seeds={count}: must be at least 1, or a list of seeds")
        return {**value, "seeds": list(range(1, count + 1))}

    def __post_init__(self) -> None:
        if not self.sweep:
            raise ConfigError("sweep is empty: say what to try, e.g. sweep: {algorithm.gamma: [0.98, 0.99]}")
        for key in ("trials", "parallel_jobs", "max_timesteps"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"{key}={value}: must be at least 1")
        if self.method == "grid" and self.trials is not None:
            raise ConfigError(
                "trials: a grid has every combination; method=random or method=tpe takes a number of trials"
            )
        if self.method != "grid" and self.trials is None:
            raise ConfigError(f"trials is missing: how many trials should method={self.method} make?")
        if self.method == "grid" and self.pruning:
            raise ConfigError("pruning: a grid is run whole; method=random or method=tpe can end trials early")
        if min(self.seeds, default=0) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={list(self.seeds)}: must differ and cannot be negative")


def read(path: Path, **given: Any) -> SweepFile:
    """The sweep in a file, or a shipped one by its name; what is given goes before what the file says."""
    place = find(path)
    data = _read(place)
    made = _made(path, {"name": place.stem, **data}, given)
    if not made.base:
        raise ConfigError(f"{path}: base is missing: ENV:VARIANT, an experiment, or a file that trials start from")
    beside = place.parent / made.base
    if not os.path.isfile(made.base) and os.path.isfile(beside):  # a file named as it is seen from the sweep's own
        return replace(made, base=str(beside))
    return made


def read_space(path: Path | None, spec: str, config_dir: Path | None, **given: Any) -> SweepFile:
    """The sweep that looks for good settings of a spec: a file says what to try, and may say all that a sweep can."""
    if path is None:
        path = Path(load(spec, (), config_dir).algorithm.name)
        if str(path) not in shipped():
            known = ", ".join(sorted(shipped()))
            raise NotFoundError(f"--space FILE is needed: no space is shipped for {path} (shipped: {known})")
    place = find(path)
    data = _read(place)
    data = data if "sweep" in data else {"sweep": data}
    base = data.get("base", spec)
    if base != spec and (place.parent / str(base)).resolve() != Path(spec).resolve():
        raise ConfigError(
            f"{path}: base={base} is not the {spec} that is tuned; leave it out, or: cadenza sweep {path}"
        )
    if data.get("method", "grid") == "grid":
        data["method"] = "tpe"
    data.setdefault("trials", TRIALS)
    return _made(path, {"name": place.stem, **data}, {**given, "base": spec})


def _read(place: Path) -> dict[str, Any]:
    data = read_file(place)
    if "base_config" in data and "base" not in data:
        data["base"] = data.pop("base_config")
    return data


def _made(path: Path, data: dict[str, Any], given: dict[str, Any]) -> SweepFile:
    try:
        return build(SweepFile, {**data, **{key: value for key, value in given.items() if value is not None}})
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None


def find(path: Path) -> Path:
    """A file, or the shipped sweep of that name."""
    if path.suffix or os.path.isfile(path):
        return path
    ours = shipped()
    if str(path) in ours:
        return ours[str(path)]
    raise NotFoundError(f"no file '{path}'{nearest(str(path), ours)} (shipped: {', '.join(sorted(ours))})")


def shipped() -> dict[str, Path]:
    """Sweep files by name."""
    return {Path(entry.name).stem: Path(str(entry)) for entry in files(CONF).joinpath("sweep").iterdir()}
