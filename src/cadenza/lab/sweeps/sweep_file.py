"""The sweep file: base config, search space, method, seeds and objective, typed so that an error names its key."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from cadenza.config.convert import build
from cadenza.config.load import combinations, load
from cadenza.config.schema import WATCHED
from cadenza.config.setting import setting
from cadenza.config.spec import CONF, read_file
from cadenza.errors import ConfigError, NotFoundError, nearest
from cadenza.records.metric_rows import Row
from cadenza.records.trust import require_trust_of_file

PREFIXES = ("eval/", "collect/", "train/", "time/", "system/")  # of the metrics of a run
TRIALS = 30  # of `tune`, unless the command or the file gives a number


@dataclass(frozen=True)
class Objective:
    """The objective: what makes one trial better than another."""

    metric: str = setting("eval/return_mean", "metric of the runs")
    direction: Literal["maximize", "minimize"] = setting("maximize", "which direction is better")
    value: Literal["last", "best"] = setting("last", "which of a run's values counts")
    seeds: Literal["mean", "median", "worst"] = setting("mean", "how the values of a trial's seeds are combined")

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Accept the name of a metric as short for a mapping."""
        return {"metric": value} if isinstance(value, str) else value

    def __post_init__(self) -> None:
        is_listed = self.metric.startswith(("eval/", "collect/")) and self.metric.count("/") == 1
        if is_listed and self.metric not in WATCHED:
            names = ", ".join(WATCHED)
            raise ConfigError(f"metric={self.metric}: unknown{nearest(self.metric, WATCHED)} (known: {names})")
        if not self.metric.startswith(PREFIXES):
            hint = nearest(self.metric, WATCHED)
            raise ConfigError(f"metric={self.metric}: must begin with {', '.join(PREFIXES)}{hint}")

    @property
    def sign(self) -> int:
        return 1 if self.direction == "maximize" else -1

    def better(self, one: float, other: float) -> bool:
        """Return whether one value is better than another."""
        return self.sign * one > self.sign * other

    def of_run(self, rows: list[Row], until: tuple[str, int] | None = None) -> float | None:
        """Return the value of a run from its rows; None if the metric was never measured.

        `until`, a unit and an amount, ends the rows at the first measurement at or after it.
        """
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
        """Return the value of a trial from the values of its seeds."""
        if self.seeds == "worst":
            return min(values, key=lambda value: self.sign * value)
        return median(values) if self.seeds == "median" else fmean(values)


@dataclass(frozen=True)
class Pruning:
    """Median pruning: end trials that are worse than the median of earlier ones at the same point."""

    rungs: tuple[float, ...] = setting((0.25, 0.5), "where trials are compared, as fractions of a run's budget")
    warmup_trials: int = setting(5, "trials that must have reached a point before any is ended there")

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Accept `true` as short for the defaults."""
        return {} if value is True else value

    def __post_init__(self) -> None:
        increasing = list(self.rungs) == sorted(set(self.rungs))
        if not self.rungs or not increasing or not all(0 < rung < 1 for rung in self.rungs):
            raise ConfigError(f"rungs={list(self.rungs)}: must be fractions between 0 and 1, each above the last")
        if self.warmup_trials < 1:
            raise ConfigError(f"warmup_trials={self.warmup_trials}: must be at least 1")


@dataclass(frozen=True)
class SweepFile:
    """The settings in a sweep file."""

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
        """Accept a number of seeds as short for a list of the first ones."""
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
            raise ConfigError(f"trials is missing: method={self.method} needs a number of trials")
        if self.method == "grid" and self.pruning:
            raise ConfigError("pruning: a grid is run completely; method=random or method=tpe can end trials early")
        if min(self.seeds, default=0) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={list(self.seeds)}: must differ and cannot be negative")


def read(path: Path, trust: bool = False, **options: Any) -> SweepFile:
    """Return the sweep in a file, or a shipped one by its name; `options` that are not None override the file.

    Without `trust`, a file that a stranger wrote must not name code.
    """
    require_trust_of_file(str(path), trust)
    file = find(path)
    sweep = _build(path, {"name": file.stem, **_load(file)}, options)
    if not sweep.base:
        raise ConfigError(f"{path}: base is missing: ENV:VARIANT, an experiment, or a file that trials start from")
    beside = file.parent / sweep.base
    if not os.path.isfile(sweep.base) and os.path.isfile(beside):  # a path relative to the sweep file
        return replace(sweep, base=str(beside))
    return sweep


def of_overrides(spec: str, overrides: Sequence[str], **options: Any) -> tuple[SweepFile, list[str]]:
    """Return the sweep over every combination of the overrides that give several values, and the other overrides."""
    grid, others = combinations(overrides)
    seeds = [options["seeds"], grid.pop("seed", ())]
    if all(seeds) or (seeds[0] and any(text.lstrip("+~").startswith("seed=") for text in others)):
        raise ConfigError("--seed and seed=… both give the seeds")
    if not grid:
        raise ConfigError("-m: no setting has several values, e.g. algorithm.gamma=0.9,0.99 (seeds alone: --seed 1,2)")
    return build(SweepFile, {**options, "base": spec, "sweep": grid, "seeds": list(seeds[0] or seeds[1])}), others


def read_space(path: Path | None, spec: str, config_dir: Path | None, trust: bool = False, **options: Any) -> SweepFile:
    """Return the sweep that tunes a spec.

    The file at `path`, by default the space that is shipped for the algorithm, holds a search space or a whole sweep.
    `options` that are not None override it. Without `trust`, files that a stranger wrote must not name code.
    """
    for source in (spec, *([] if path is None else [str(path)])):
        require_trust_of_file(source, trust)
    if path is None:
        path = Path(load(spec, (), config_dir).algorithm.name)
        if str(path) not in shipped():
            names = ", ".join(sorted(shipped()))
            raise NotFoundError(f"--space FILE is needed: no space is shipped for {path} (shipped: {names})")
    file = find(path)
    data = _load(file)
    data = data if "sweep" in data else {"sweep": data}
    base = data.get("base", spec)
    if base != spec and (file.parent / str(base)).resolve() != Path(spec).resolve():
        raise ConfigError(
            f"{path}: base={base} is not the {spec} that is tuned; leave it out, or: cadenza sweep {path}"
        )
    if data.get("method", "grid") == "grid":
        data["method"] = "tpe"
    data.setdefault("trials", TRIALS)
    return _build(path, {"name": file.stem, **data}, {**options, "base": spec})


def _load(file: Path) -> dict[str, Any]:
    data = read_file(file)
    if "base_config" in data and "base" not in data:
        data["base"] = data.pop("base_config")
    return data


def _build(path: Path, data: dict[str, Any], options: dict[str, Any]) -> SweepFile:
    try:
        return build(SweepFile, {**data, **{key: value for key, value in options.items() if value is not None}})
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None


def find(path: Path) -> Path:
    """Return the path of a sweep file, or of the shipped one of that name."""
    if path.suffix or os.path.isfile(path):
        return path
    files = shipped()
    if str(path) in files:
        return files[str(path)]
    raise NotFoundError(f"no file '{path}'{nearest(str(path), files)} (shipped: {', '.join(sorted(files))})")


def shipped() -> dict[str, Path]:
    """Return the shipped sweep files by name."""
    return {Path(entry.name).stem: Path(str(entry)) for entry in resources.files(CONF).joinpath("sweep").iterdir()}
