"""The comparison of series of runs: aligned curves, scores with intervals, probabilities of improvement, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cadenza.base.json_text import dumps
from cadenza.errors import ConfigError, NotFoundError
from cadenza.lab import statistics
from cadenza.lab.series import Array, Member, Series, differing_keys, group_runs
from cadenza.records import metrics
from cadenza.records.folder import RunFolder

T = TypeVar("T")

RETURN = "eval/return_mean"
DEFAULTS = (RETURN, "collect/return_mean")  # the metric that is compared if none is named
PAGES = (".html", ".htm")
AXES = {"env_steps": "env_steps", "time": "time/seconds", "updates": "updates"}
POINTS = 200  # largest number of points of an aggregated curve
SHORT = 0.95  # a run shorter than this fraction of the longest one is worth a note
THRESHOLDS = 101  # of a performance profile
MARGIN = 0.02  # of the thresholds beyond the lowest and the highest score, as a fraction of their distance


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """The interquartile mean of aligned curves, its interval, and the curve (x, y) of each seed."""

    x: Array
    middle: Array
    low: Array
    high: Array
    seeds: tuple[tuple[Array, Array], ...]


@dataclass(frozen=True)
class Comparison:
    """Series by environment and label, and the metrics they are compared by.

    Everything that is drawn, printed or exported about a comparison is computed here.
    """

    series: tuple[Series, ...]
    metrics: tuple[str, ...]
    score: str = "final"  # or best, or a number of env_steps
    notes: list[str] = field(default_factory=list)
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def _cached(self, compute: Callable[[], T], *key: Any) -> T:
        """Compute a value once: tables, plots and pages ask for the same numbers many times."""
        if key not in self._cache:
            self._cache[key] = compute()
        value: T = self._cache[key]
        return value

    @property
    def environments(self) -> list[str]:
        return list(dict.fromkeys(series.environment for series in self.series))

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(series.label for series in self.series))

    @property
    def has_overall(self) -> bool:
        """Whether there are several environments with every label in each, so that labels compare across them."""
        return len(self.environments) > 1 and len(self.series) == len(self.environments) * len(self.labels)

    def values(self, series: Series, metric: str) -> list[float | None]:
        """Return the score of each run of a series; None for a run without the metric."""
        key = ("values", series.environment, series.label, metric)
        return self._cached(lambda: [_score(member, metric, self.score) for member in series.members], *key)

    def scores(self, series: Series, metric: str) -> Array:
        """Return the scores of the runs that have the metric."""
        return np.array([value for value in self.values(series, metric) if value is not None])

    def estimate(self, series: Series, metric: str) -> Estimate | None:
        """Return the interquartile mean of the scores of a series; None if no run has the metric."""
        scores = self.scores(series, metric)
        if not len(scores):
            return None
        return self._cached(lambda: _iqm([scores]), "estimate", series.environment, series.label, metric)

    def curve(self, series: Series, metric: str, axis: str) -> Curve | None:
        """Return the aggregated curve of a metric over an axis (a key of AXES); None if no run has any points."""

        def compute() -> Curve | None:
            curves = [member.curve(metric, AXES[axis]) for member in series.members]
            curves = [(x, y) for x, y in curves if len(x)]
            return align(curves) if curves else None

        return self._cached(compute, "curve", series.environment, series.label, metric, axis)

    def scaled(self, label: str, metric: str) -> list[Array]:
        """Return the scores of a label, an array per environment.

        With several environments, scores are scaled: in each, 0 is the lowest score of any run there, 1 the highest.
        """
        return self._cached(lambda: self._scaled(label, metric), "scaled", label, metric)

    def _scaled(self, label: str, metric: str) -> list[Array]:
        tasks = []
        for environment in self.environments:
            by_label = {s.label: self.scores(s, metric) for s in self.series if s.environment == environment}
            scores, everyone = by_label.get(label, np.zeros(0)), np.concatenate(list(by_label.values()))
            if len(self.environments) > 1 and len(everyone):
                low, high = everyone.min(), everyone.max()
                scores = (scores - low) / (high - low if high > low else 1.0)
            if len(scores):
                tasks.append(scores)
        return tasks

    def overall(self, label: str, metric: str) -> Estimate | None:
        """Return the interquartile mean of a label's scaled scores in all environments; None without scores."""
        tasks = self.scaled(label, metric)
        return self._cached(lambda: _iqm(tasks), "overall", label, metric) if tasks else None

    def improvement(self, label: str, over: str, metric: str, environment: str | None = None) -> Estimate | None:
        """Return the probability that a run of `label` scores higher than one of `over`.

        It is that in one environment, or the mean over all. None if the labels have no scores in the same ones.
        """

        def compute() -> Estimate | None:
            ours, theirs = (self._tasks(name, metric, environment) for name in (label, over))
            if not ours or ours.keys() != theirs.keys():
                return None
            pairs = (list(ours.values()), [theirs[task] for task in ours])
            value = float(statistics.probability_of_improvement(*pairs))
            return Estimate(value, *statistics.improvement_interval(*pairs))

        return self._cached(compute, "improvement", label, over, metric, environment)

    def _tasks(self, label: str, metric: str, environment: str | None) -> dict[str, Array]:
        """Return the scores of a label by environment, without those where it has none."""
        environments = [environment] if environment else self.environments
        matches = [series for series in self.series if series.label == label and series.environment in environments]
        return {series.environment: scores for series in matches if len(scores := self.scores(series, metric))}

    def thresholds(self, metric: str) -> Array:
        """Return the thresholds of a performance profile: equally spaced, from below all scores to above them."""
        scores = [task for label in self.labels for task in self.scaled(label, metric)]
        everyone = np.concatenate(scores) if scores else np.zeros(1)
        margin = MARGIN * (np.ptp(everyone) or 1.0)
        return np.linspace(everyone.min() - margin, everyone.max() + margin, THRESHOLDS)

    def differences(self) -> dict[str, dict[str, Any]]:
        """Return the settings that differ between series: by key, the value in each; None for a missing setting.

        Settings that differ inside a series have no value there and are left out. The values are by label if they are
        the same in every environment, else by environment and label.
        """
        varying = {key for one in self.series for key in differing_keys([member.compared for member in one.members])}
        several = len(self.environments) > 1
        titles = {f"{one.environment} {one.label}" if several else one.label: one for one in self.series}
        settings = {title: series.members[0].compared for title, series in titles.items()}
        keys = [key for key in differing_keys(list(settings.values())) if key not in varying]
        by_title = {key: {title: flat.get(key) for title, flat in settings.items()} for key in keys}
        by_label: dict[str, dict[str, Any]] = {key: {} for key in keys}
        for key, values in by_title.items():
            for title, value in values.items():
                if dumps(by_label[key].setdefault(titles[title].label, value)) != dumps(value):
                    return by_title
        return by_label

    def notes_along(self, axis: str) -> list[str]:
        """Return the notes on the numbers; for wall time, also the machines and settings that differ."""
        paces = [member.pace for series in self.series for member in series.members]
        differing = differing_keys(paces) if axis == "time" else []
        warning = [f"wall time is not of one kind, the runs differ in {', '.join(differing)}"] if differing else []
        return [*self.notes, *warning]

    def plot(self, path: Path | str, axis: str = "env_steps") -> None:
        """Write the curves as a .png, .svg or .pdf, or as an interactive .html page."""
        from cadenza.lab import comparison_page, plots

        path = Path(path)
        if path.suffix.lower() in PAGES:
            comparison_page.write_page(self, path, axis)
        elif path.suffix.lower() in plots.FORMATS:
            plots.draw(self, path, axis)
        else:
            raise ConfigError(f"{path}: must end in {', '.join((*plots.FORMATS, '.html'))}")

    def plain(self, axis: str = "env_steps") -> dict[str, Any]:
        """Return what `cadenza compare --json` prints."""
        result = {
            "metrics": list(self.metrics),
            "score": self.score,
            "x": axis,
            "series": [self._plain_series(series, axis) for series in self.series],
            "differences": self.differences(),
            "notes": self.notes_along(axis),
        }
        if self.has_overall:
            result["overall"] = [self._plain_overall(label) for label in self.labels]
        return result

    def _plain_series(self, series: Series, axis: str) -> dict[str, Any]:
        scores, curves = {}, {}
        for metric in self.metrics:
            estimate, curve = self.estimate(series, metric), self.curve(series, metric, axis)
            if estimate is None or curve is None:
                continue
            values = self.scores(series, metric)
            scores[metric] = self._plain_score(estimate, series.label, metric, series.environment) | {
                "mean": values.mean(),
                "min": values.min(),
                "max": values.max(),
                "values": self.values(series, metric),
            }
            curves[metric] = {"x": curve.x, "iqm": curve.middle, "low": curve.low, "high": curve.high}
        return {
            "environment": series.environment,
            "label": series.label,
            "seeds": [member.seed for member in series.members],
            "runs": [member.folder.id for member in series.members],
            "env_steps": [member.steps for member in series.members],
            "scores": scores,
            "curves": curves,
        }

    def _plain_overall(self, label: str) -> dict[str, Any]:
        estimates = {metric: self.overall(label, metric) for metric in self.metrics}
        return {
            "label": label,
            "scores": {
                metric: self._plain_score(estimate, label, metric)
                for metric, estimate in estimates.items()
                if estimate is not None
            },
        }

    def _plain_score(
        self, estimate: Estimate, label: str, metric: str, environment: str | None = None
    ) -> dict[str, Any]:
        """Return a score as plain data, with the probability that it beats the first label."""
        first = self.labels[0]
        better = self.improvement(label, first, metric, environment) if label != first else None
        improvement = {"over": first, **_plain_estimate("value", better)} if better is not None else None
        return {**_plain_estimate("iqm", estimate), "improvement": improvement}


def compare(
    folders: Iterable[RunFolder], names: Sequence[str] = (), score: str = "final", by: Sequence[str] = ()
) -> Comparison:
    """Compare runs by the metrics `names`, by default their return; see `compare_members`."""
    runs, settings = list(folders), (names, score, by)
    only = {candidate for name in names or DEFAULTS for candidate in metrics.candidates(name)}
    try:
        return compare_members([Member.read(folder, only=only) for folder in runs], *settings)
    except NotFoundError:  # its message names the metrics that there are
        return compare_members([Member.read(folder) for folder in runs], *settings)


def compare_members(
    members: list[Member], names: Sequence[str] = (), score: str = "final", by: Sequence[str] = ()
) -> Comparison:
    """Compare runs that have been read.

    They are grouped by their settings, or by the values of the keys in `by` alone. `score` says which value of a run
    counts: `final`, `best`, or the one at a number of env_steps.
    """
    measured = {name for member in members for name in metrics.numeric(member.rows)}
    if not measured:
        raise NotFoundError("none of these runs has a row of metrics yet")
    resolved = dict.fromkeys(metrics.resolve(name, measured) for name in names or (_default_metric(measured),))
    notes: list[str] = []
    result = Comparison(tuple(group_runs(members, by, notes)), tuple(resolved), score, notes)
    _note_gaps(result)
    return result


def _default_metric(measured: set[str]) -> str:
    return next((name for name in DEFAULTS if name in measured), RETURN)


def _note_gaps(result: Comparison) -> None:
    """Add notes on unfinished runs, missing metrics and unequal lengths."""
    for environment in result.environments:
        members = [m for series in result.series if series.environment == environment for m in series.members]
        for member in members:
            if member.status != "finished":
                result.notes.append(f"{member.folder.id} is {member.status}, at {member.steps} env_steps")
            lacking = [metric for metric in result.metrics if not len(member.curve(metric, "env_steps")[0])]
            if lacking:
                result.notes.append(f"{member.folder.id} has no {', '.join(lacking)}")
        steps = [member.steps for member in members]
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


def _plain_estimate(name: str, estimate: Estimate) -> dict[str, Any]:
    return {name: estimate.value, "interval": [estimate.low, estimate.high]}


def align(curves: Sequence[tuple[Array, Array]]) -> Curve:
    """Interpolate curves (x, y) at common points of the range that all of them cover, and aggregate them there."""
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if start > end:  # they do not overlap: nothing can be averaged
        empty = np.zeros(0)
        return Curve(empty, empty, empty, empty, tuple(curves))
    x = np.unique(np.concatenate([x for x, _ in curves]))
    x = x[(x >= start) & (x <= end)]
    if len(x) > POINTS:
        x = np.linspace(start, end, POINTS)
    values = np.stack([np.interp(x, *curve) for curve in curves])
    return Curve(x, *statistics.curve_interval(values), tuple(curves))


def profiles(result: Comparison, metric: str) -> Mapping[str, tuple[Array, Array, Array]]:
    """Return by label the share of runs above each threshold, and the ends of its interval."""
    thresholds = result.thresholds(metric)
    tasks = {label: result.scaled(label, metric) for label in result.labels}
    return {
        label: (
            statistics.performance_profile(scores, thresholds),
            *statistics.profile_interval(scores, thresholds),
        )
        for label, scores in tasks.items()
        if scores
    }
