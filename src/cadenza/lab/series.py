"""Series of runs: the seeds of one config together, under a label that names the settings in which it differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.base.json_text import dumps
from cadenza.config.schedules import with_short_schedules
from cadenza.config.schema import variant
from cadenza.errors import CheckpointError, ConfigError, NotFoundError, nearest
from cadenza.records import metrics
from cadenza.records.folder import HUB, RunFolder, find, run_ids
from cadenza.records.index import rows as indexed
from cadenza.records.query import Filters
from cadenza.trees import leaves

# Settings that do not change what is measured: two runs that differ in these alone are seeds of one config.
IGNORED = (
    "seed", "name", "tags", "schema_version", "experiment", "device", "logging.", "checkpoint.", "runtime.", "debug.",
    "evaluation.video", "environment.id", "environment.vectorize", "environment.workers", "environment.timeout_seconds",
)  # fmt: skip
PACE = ("device", "runtime.", "debug.", "environment.vectorize", "environment.workers")  # those that affect the speed
LABEL_KEYS = 3  # largest number of settings in a label

Array = np.ndarray
Flat = dict[str, Any]


@dataclass(frozen=True)
class Member:
    """One run of a comparison."""

    folder: RunFolder
    settings: Flat
    rows: list[dict[str, Any]] = field(repr=False)
    status: str
    created: tuple[str, int]  # the second, then the nanosecond of the file: a second may see several runs
    pace: Flat  # what the wall time depends on besides the compared settings
    _curves: dict[tuple[str, str], tuple[Array, Array]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, folder: RunFolder, rows: bool = True, only: Collection[str] | None = None) -> Member:
        """Read a run; without `rows`, leave out its metrics, which may be many; `only` is that of `metrics.read`."""
        manifest, settings = folder.read_manifest(), dict(leaves(folder.settings()))
        created = (str(manifest.get("created") or ""), folder.manifest.stat().st_mtime_ns)
        machine = manifest.get("machine") or {}
        pace = {key: value for key, value in settings.items() if key.startswith(PACE)}
        pace |= {f"machine.{key}": machine.get(key) for key in ("cpu", "cores")}
        with suppress(CheckpointError, KeyError):
            pace["device"] = folder.read_decisions()["device"]  # the choice that `auto` made
        measured = metrics.read(folder.metrics, only) if rows else []
        return cls(folder, settings, measured, folder.state(), created, pace)

    @property
    def environment(self) -> str:
        return str(self.settings.get("environment.id"))

    @property
    def variant(self) -> str:
        return variant(self.environment, str(self.settings.get("algorithm.name")), self.settings.get("experiment"))

    @property
    def seed(self) -> Any:
        return self.settings.get("seed")

    @cached_property
    def compared(self) -> Flat:
        """The settings that distinguish one config from another, by dotted key; a schedule is one, in short."""
        return {key: value for key, value in with_short_schedules(self.settings).items() if not key.startswith(IGNORED)}

    def has(self, key: str) -> bool:
        """Return whether there is such a setting; `algorithm.learning_rate` is one even if it is a schedule."""
        return key in self.compared or key in self.settings

    def value(self, key: str) -> Any:
        """Return the value of a setting, a schedule in short; None without it."""
        return self.compared.get(key, self.settings.get(key))

    @property
    def steps(self) -> int:
        return int(self.rows[-1]["env_steps"]) if self.rows else 0

    def curve(self, metric: str, axis: str) -> tuple[Array, Array]:
        """Return the points (x, y) of a metric over an axis; both are empty if there are none."""
        if (metric, axis) not in self._curves:
            x, y = metrics.series(self.rows, metric, axis)
            self._curves[metric, axis] = np.array(x, float), np.array(y, float)
        return self._curves[metric, axis]


@dataclass(frozen=True)
class Series:
    """The runs of one config in one environment, one per seed."""

    environment: str
    label: str
    members: tuple[Member, ...]


def select_runs(root: Path, refs: Sequence[str], filters: Filters = ()) -> list[RunFolder]:
    """Return the runs that names, wildcards and specs select, each once; filters narrow them, or select alone."""
    if not refs and not filters:
        raise NotFoundError("name the runs, or give a --filter KEY=VALUE")
    folders = {folder.path.resolve(): folder for ref in refs for folder in _matches(root, ref)}
    if filters:
        rows = sorted(indexed(root, filters), key=lambda row: str(row["created"]))
        matching = {(root / row["run"]).resolve(): RunFolder(root / row["run"]) for row in rows}
        elsewhere = [folder.id for path, folder in folders.items() if path.parent != root.resolve()]
        if elsewhere:
            raise ConfigError(f"--filter selects among the runs in {root}, and {elsewhere[0]} is not one of them")
        folders = {path: folder for path, folder in folders.items() if path in matching} if refs else matching
    if not folders:
        named = f" of {', '.join(refs)}" if refs else ""
        raise NotFoundError(f"no run{named} in {root} matches --filter {' '.join(map(str, filters))}")
    return list(folders.values())


def _matches(root: Path, ref: str) -> list[RunFolder]:
    """Return the runs that a wildcard, a spec (oldest first) or the name of a run selects."""
    if any(sign in ref for sign in "*?"):
        folders = [RunFolder(root / run) for run in run_ids(root) if fnmatchcase(run, ref)]
        if not folders:
            raise NotFoundError(f"no run in {root} matches '{ref}' (`cadenza list` shows all)")
        return folders
    if ":" in ref and not ref.startswith(("@", HUB)) and not Path(ref).exists():
        rows = indexed(root)
        folders = [RunFolder(root / row["run"]) for row in rows if row["spec"] == ref]
        if not folders:
            raise NotFoundError(f"no run of '{ref}' in {root}{nearest(ref, sorted({row['spec'] for row in rows}))}")
        return folders[::-1]
    return [find(root, ref)]


def group_runs(members: list[Member], by: Sequence[str], notes: list[str]) -> list[Series]:
    """Group runs by environment and settings, or by the values of the keys in `by` alone.

    Add a line to `notes` for each seed of a series that occurs more than once.
    """
    keys = [_check_key(key, members) for key in by] if by else distinguishing_keys(members)
    groups: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        identity = {key: member.value(key) for key in keys} if by else member.compared
        groups.setdefault((member.environment, dumps([member.variant, identity])), []).append(member)
    labels = _labels(list(groups.values()), keys)
    all_series = [
        Series(group[0].environment, label, tuple(_without_repeats(group, label, notes)))
        for group, label in zip(groups.values(), labels, strict=True)
    ]
    environments = list(dict.fromkeys(series.environment for series in all_series))
    order = list(dict.fromkeys(series.label for series in all_series))
    return sorted(all_series, key=lambda series: (environments.index(series.environment), order.index(series.label)))


def _check_key(key: str, members: Sequence[Member]) -> str:
    keys = {name for member in members for name in (*member.settings, *member.compared)}
    if key not in keys:
        raise ConfigError(f"--by {key}: unknown config key{nearest(key, keys)}")
    return key


def distinguishing_keys(members: Sequence[Member]) -> list[str]:
    """Return the settings that differ between runs of one variant in one environment."""
    groups: dict[tuple[str, str], list[Flat]] = {}
    for member in members:
        groups.setdefault((member.environment, member.variant), []).append(member.compared)
    return list(dict.fromkeys(key for group in groups.values() for key in differing_keys(group)))


def differing_keys(settings: Sequence[Flat]) -> list[str]:
    """Return the keys whose values are not the same in all of `settings`."""
    keys = dict.fromkeys(key for flat in settings for key in flat)
    return [key for key in keys if len({dumps(flat.get(key)) for flat in settings}) > 1]


def _labels(groups: Sequence[list[Member]], keys: Sequence[str]) -> list[str]:
    """Return a label per group: the name its runs share and no other group has, else variant and settings."""
    several_variants = len({group[0].variant for group in groups}) > 1
    last_parts = [key.rpartition(".")[2] for key in keys]
    short = {key: part if last_parts.count(part) == 1 else key for key, part in zip(keys, last_parts, strict=True)}
    names = [_shared_name(group) for group in groups]
    heads = [group[0] for group in groups]
    selected = _label_keys(heads, keys)
    labels = []
    for name, head in zip(names, heads, strict=True):
        rivals = [rival for rival, other in zip(names, heads, strict=True) if other.environment == head.environment]
        if name and rivals.count(name) == 1:
            labels.append(name)
            continue
        if several_variants and _number_of([other for other in heads if other.variant == head.variant], keys) == 1:
            labels.append(head.variant)
            continue
        settings = [f"{short[key]}={_brief(head.value(key))}" for key in keys if key in selected and head.has(key)]
        parts = [head.variant] if several_variants or not settings else []
        labels.append(" ".join([*parts, *settings, *(["…"] if len(selected) < len(keys) else [])]))
    return _unique(labels, heads, keys)


def _shared_name(group: Sequence[Member]) -> str:
    """Return the name that a person gave to all runs of a group, or nothing; a sweep only numbers its trials."""
    names = {str(member.settings.get("name") or "") for member in group}
    swept = any(str(tag).startswith("sweep:") for member in group for tag in member.settings.get("tags") or ())
    return names.pop() if len(names) == 1 and not swept else ""


def _label_keys(heads: Sequence[Member], keys: Sequence[str]) -> list[str]:
    """Return the settings that labels show: all if there are few, else as few as tell the groups apart."""
    if len(keys) <= LABEL_KEYS:
        return list(keys)
    selected: list[str] = []
    while _number_of(heads, selected) < _number_of(heads, keys):
        rest = [key for key in keys if key not in selected]
        selected.append(max(rest, key=lambda key: _number_of(heads, [*selected, key])))
    return selected


def _number_of(heads: Sequence[Member], keys: Sequence[str]) -> int:
    """Return how many groups these settings tell apart."""
    return len({(head.variant, dumps([head.value(key) for key in keys])) for head in heads})


def _unique(labels: list[str], heads: Sequence[Member], keys: Sequence[str]) -> list[str]:
    """Add a number to labels that occur twice in an environment, the same for the same settings everywhere."""
    counts = Counter((head.environment, label) for head, label in zip(heads, labels, strict=True))
    repeated = {label for (_, label), count in counts.items() if count > 1}
    numbers: dict[str, dict[str, int]] = {}
    unique = []
    for label, head in zip(labels, heads, strict=True):
        identities = numbers.setdefault(label, {})
        identity = dumps([head.variant, {key: head.value(key) for key in keys}])
        number = identities.setdefault(identity, len(identities) + 1) if label in repeated else 1
        unique.append(label if number == 1 else f"{label} ({number})")
    return unique


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else dumps(value)
    return min(text, f"{value:.4g}", key=len) if isinstance(value, float) else text


def _without_repeats(group: Sequence[Member], label: str, notes: list[str]) -> list[Member]:
    """Return one run per seed and settings, by seed: the newest finished one, else the longest.

    A second run of the same settings and seed is no second sample.
    """
    repeats: dict[tuple[Any, str], list[Member]] = {}
    for member in group:
        repeats.setdefault((member.seed, dumps(member.compared)), []).append(member)
    selected = []
    for members in repeats.values():
        best = max(members, key=_preference)
        selected.append(best)
        if len(members) > 1:
            notes.append(f"{label}: seed {best.seed} is there more than once, {best.folder.id} counts")
    return sorted(selected, key=lambda member: member.seed if isinstance(member.seed, int) else 0)


def _preference(member: Member) -> tuple[bool, int, tuple[str, int]]:
    finished = member.status == "finished" and bool(member.rows)
    return finished, 0 if finished else member.steps, member.created
