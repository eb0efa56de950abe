"""Series of runs beside each other: curves aligned, scores with intervals, who beats whom, settings that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from cadenza.base.json_text import dumps
from cadenza.errors import ConfigError, NotFoundError
from cadenza.lab import statistics
from cadenza.lab.series import Array, Member, Series, in_series, unlike
from cadenza.records import metrics
from cadenza.records.folder import RunFolder

T = TypeVar("T")

RETURN = "eval/return_mean"
AXES = {"env_steps": "env_steps", "time": "time/seconds", "updates": "updates"}
POINTS = 200  # of an aggregated curve, at most
SHORT = 0.95  # of the longest run: one that is shorter is worth a note
THRESHOLDS = 101  # of a performance profile


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95 % interval."""

    value: float
    low: float
    high: float

    def plain(self) -> dict[str, Any]:
        return {"value": self.value, "interval": [self.low, self.high]}


@dataclass(frozen=True)
class Curve:
    """The interquartile mean of aligned curves, its interval, and the curve of each seed."""

    x: Array
    middle: Array
    low: Array
    high: Array
    seeds: tuple[tuple[Array, Array], ...]


@dataclass(frozen=True)
class Comparison:
    """Series by environment and label, measured by metrics; everything drawn, printed or exported comes from here."""

    series: tuple[Series, ...]
    metrics: tuple[str, ...]
    score: str = "final"  # or best, or a number of env_steps
    notes: list[str] = field(default_factory=list)
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # what was worked out

    def _once(self, work: Callable[[], T], *key: Any) -> T:
        """Tables, pictures and pages ask for the same numbers, many times over."""
        if key not in self._known:
            self._known[key] = work()
        found: T = self._known[key]
        return found

    @property
    def environments(self) -> list[str]:
        return list(dict.fromkeys(one.environment for one in self.series))

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(one.label for one in self.series))

    def values(self, one: Series, metric: str) -> list[float | None]:
        """The score of each run; None where it lacks the metric."""

        def work() -> list[float | None]:
            return [_score(member, metric, self.score) for member in one.members]

        return self._once(work, "values", one.environment, one.label, metric)

    def scores(self, one: Series, metric: str) -> Array:
        """One number per run that has the metric."""
        return np.array([value for value in self.values(one, metric) if value is not None])

    def estimate(self, one: Series, metric: str) -> Estimate | None:
        scores = self.scores(one, metric)
        if not len(scores):
            return None
        return self._once(lambda: _iqm([scores]), "estimate", one.environment, one.label, metric)

    def curve(self, one: Series, metric: str, axis: str) -> Curve | None:
        def work() -> Curve | None:
            curves = [curve for member in one.members if len((curve := member.curve(metric, AXES[axis]))[0])]
            return aligned(curves) if curves else None

        return self._once(work, "curve", one.environment, one.label, metric, axis)

    @property
    def whole(self) -> bool:
        """Whether every label was tried in every environment, so that labels can be compared across them."""
        return len(self.series) == len(self.environments) * len(self.labels)

    def scaled(self, label: str, metric: str) -> list[Array]:
        """Scores by environment; with several environments from 0, the lowest of any run there, to 1, the highest."""
        return self._once(lambda: self._scaled(label, metric), "scaled", label, metric)

    def _scaled(self, label: str, metric: str) -> list[Array]:
        tasks = []
        for environment in self.environments:
            everyone = np.concatenate(
                [self.scores(one, metric) for one in self.series if one.environment == environment]
            )
            mine = [one for one in self.series if (one.environment, one.label) == (environment, label)]
            scores = np.concatenate([self.scores(one, metric) for one in mine]) if mine else np.zeros(0)
            if len(self.environments) > 1 and len(everyone):
                low, high = everyone.min(), everyone.max()
                scores = (scores - low) / (high - low if high > low else 1.0)
            if len(scores):
                tasks.append(scores)
        return tasks

    def overall(self, label: str, metric: str) -> Estimate | None:
        tasks = self.scaled(label, metric)
        return self._once(lambda: _iqm(tasks), "overall", label, metric) if tasks else None

    def improvement(self, label: str, over: str, metric: str, environment: str | None = None) -> Estimate | None:
        """How likely a run of one label scores higher than one of another, in one environment or on average."""

        def work() -> Estimate | None:
            ours, theirs = (self._tasks(name, metric, environment) for name in (label, over))
            if not ours or ours.keys() != theirs.keys():
                return None
            pairs = (list(ours.values()), [theirs[task] for task in ours])
            value = float(statistics.probability_of_improvement(*pairs))
            return Estimate(value, *statistics.improvement_interval(*pairs))

        return self._once(work, "improvement", label, over, metric, environment)

    def _tasks(self, label: str, metric: str, environment: str | None) -> dict[str, Array]:
        """Scores by environment, of those where there are any."""
        wanted = [environment] if environment else self.environments
        mine = [one for one in self.series if one.label == label and one.environment in wanted]
        return {one.environment: scores for one in mine if len(scores := self.scores(one, metric))}

    def thresholds(self, metric: str) -> Array:
        scores = [task for label in self.labels for task in self.scaled(label, metric)]
        everyone = np.concatenate(scores) if scores else np.zeros(1)
        margin = 0.02 * (np.ptp(everyone) or 1.0)
        return np.linspace(everyone.min() - margin, everyone.max() + margin, THRESHOLDS)

    def differences(self) -> dict[str, dict[str, Any]]:
        """Settings that are not the same in all series: by key, the value in each (`None`: it has no such setting).

        One that differs inside a series has no value there, and is left out.
        """
        inside = {key for one in self.series for key in unlike([member.compared for member in one.members])}
        several = len(self.environments) > 1
        heads = {f"{one.environment} {one.label}" if several else one.label: one for one in self.series}
        compared = {title: one.members[0].compared for title, one in heads.items()}
        keys = [key for key in unlike(list(compared.values())) if key not in inside]
        found = {key: {title: settings.get(key) for title, settings in compared.items()} for key in keys}
        by_label = {(heads[title].label, key): set[str]() for key, values in found.items() for title in values}
        for key, values in found.items():
            for title, value in values.items():
                by_label[heads[title].label, key].add(dumps(value))
        if all(len(values) == 1 for values in by_label.values()):  # the same in every environment
            return {key: {heads[title].label: value for title, value in found[key].items()} for key in found}
        return found

    def notes_along(self, axis: str) -> list[str]:
        """What to know about the numbers; wall time is that of the machines and settings the runs had."""
        differing = unlike([member.pace for one in self.series for member in one.members]) if axis == "time" else []
        told = [f"wall time is not of one kind, the runs differ in {', '.join(differing)}"] if differing else []
        return [*self.notes, *told]

    def plain(self, axis: str = "env_steps") -> dict[str, Any]:
        """What `cadenza compare --json` prints."""
        first = self.labels[0]
        result = {
            "metrics": list(self.metrics),
            "score": self.score,
            "x": axis,
            "series": [self._plain_series(one, axis, first) for one in self.series],
            "differences": self.differences(),
            "notes": self.notes_along(axis),
        }
        if len(self.environments) > 1 and self.whole:
            result["overall"] = [self._plain_overall(label, first) for label in self.labels]
        return result

    def _plain_series(self, one: Series, axis: str, first: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "environment": one.environment,
            "label": one.label,
            "seeds": [member.seed for member in one.members],
            "runs": [member.folder.id for member in one.members],
            "env_steps": [member.steps for member in one.members],
            "scores": {},
            "curves": {},
        }
        for metric in self.metrics:
            estimate, curve = self.estimate(one, metric), self.curve(one, metric, axis)
            if estimate is None or curve is None:
                continue
            values = self.scores(one, metric)
            better = self.improvement(one.label, first, metric, one.environment) if one.label != first else None
            found["scores"][metric] = {
                "iqm": estimate.value,
                "interval": [estimate.low, estimate.high],
                "mean": values.mean(),
                "min": values.min(),
                "max": values.max(),
                "values": self.values(one, metric),
                "improvement": {"over": first, **better.plain()} if better else None,
            }
            found["curves"][metric] = {"x": curve.x, "iqm": curve.middle, "low": curve.low, "high": curve.high}
        return found

    def _plain_overall(self, label: str, first: str) -> dict[str, Any]:
        found: dict[str, Any] = {"label": label, "scores": {}}
        for metric in self.metrics:
            estimate = self.overall(label, metric)
            better = self.improvement(label, first, metric) if label != first else None
            if estimate is not None:
                found["scores"][metric] = {
                    "iqm": estimate.value,
                    "interval": [estimate.low, estimate.high],
                    "improvement": {"over": first, **better.plain()} if better else None,
                }
        return found


def compare(
    folders: Iterable[RunFolder], names: Sequence[str] = (), score: str = "final", by: Sequence[str] = ()
) -> Comparison:
    """Put runs in series, by their settings or by the values of the keys in `by`, and name what is measured."""
    return among([Member.read(folder) for folder in folders], names, score, by)


def among(members: list[Member], names: Sequence[str] = (), score: str = "final", by: Sequence[str] = ()) -> Comparison:
    """The same of runs that have been read."""
    known = {name for member in members for name in metrics.numeric(member.rows)}
    if not known:
        raise NotFoundError("none of these runs has a row of metrics yet")
    wanted = tuple(dict.fromkeys(metrics.resolve(name, known) for name in names or (_default(known),)))
    notes: list[str] = []
    result = Comparison(tuple(in_series(members, by, notes)), wanted, score, notes)
    _note_gaps(result)
    return result


def _default(known: set[str]) -> str:
    return next((name for name in (RETURN, "collect/return_mean") if name in known), RETURN)


def _note_gaps(result: Comparison) -> None:
    """What a reader of the numbers should know about the runs behind them."""
    for one in result.series:
        for member in one.members:
            if member.status != "finished":
                result.notes.append(f"{member.folder.id} is {member.status}, at {member.steps} env_steps")
            lacking = [metric for metric in result.metrics if not len(member.curve(metric, "env_steps")[0])]
            if lacking:
                result.notes.append(f"{member.folder.id} has no {', '.join(lacking)}")
    for environment in result.environments:
        steps = [m.steps for one in result.series if one.environment == environment for m in one.members]
        if min(steps) < SHORT * max(steps) and not result.score.isdigit():
            span = f"{min(steps)} to {max(steps)} env_steps"
            result.notes.append(f"runs of unequal length in {environment}: {span}; --at N scores all at one point")


def _score(member: Member, metric: str, score: str) -> float | None:
    x, y = member.curve(metric, "env_steps")
    if not len(x):
        return None
    if score == "best":
        return float(y.max())
    if score == "final":
        return float(y[-1])
    at = int(score)
    if not x[0] <= at <= x[-1]:
        reach = f"from {x[0]:.0f} to {x[-1]:.0f}"
        raise ConfigError(f"--at {at}: {member.folder.id} has {metric} {reach} env_steps")
    return float(np.interp(at, x, y))


def _iqm(tasks: Sequence[Array]) -> Estimate:
    return Estimate(float(statistics.pooled_iqm(tasks)), *statistics.interval(tasks))


def aligned(curves: Sequence[tuple[Array, Array]]) -> Curve:
    """Curves on common points, as far as all of them go, and their interquartile mean there."""
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if start > end:  # they do not overlap: nothing can be averaged
        nothing = np.zeros(0)
        return Curve(nothing, nothing, nothing, nothing, tuple(curves))
    x = np.unique(np.concatenate([x for x, _ in curves]))
    x = x[(x >= start) & (x <= end)]
    if len(x) > POINTS:
        x = np.linspace(start, end, POINTS)
    values = np.stack([np.interp(x, *curve) for curve in curves])
    return Curve(x, *statistics.curve_interval(values), tuple(curves))


def profiles(result: Comparison, metric: str) -> Mapping[str, tuple[Array, Array, Array]]:
    """By label, the share of runs above each threshold, and the ends of its interval."""
    taus = result.thresholds(metric)
    found = {}
    for label in result.labels:
        tasks = result.scaled(label, metric)
        if tasks:
            found[label] = (statistics.performance_profile(tasks, taus), *statistics.profile_interval(tasks, taus))
    return found
