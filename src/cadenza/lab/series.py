"""Runs put in series: the seeds of one config together, each series named by what tells it from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.base.json_text import dumps
from cadenza.config.schema import variant
from cadenza.errors import CheckpointError, ConfigError, NotFoundError, nearest
from cadenza.records import metrics
from cadenza.records.folder import HUB, RunFolder, find, run_ids
from cadenza.records.index import rows as indexed
from cadenza.records.query import Filters
from cadenza.trees import leaves

# Settings under which the same thing is measured: two runs that differ in these alone are seeds of one config.
ASIDE = (
    "seed", "name", "tags", "schema_version", "experiment", "device", "logging.", "checkpoint.", "runtime.", "debug.",
    "evaluation.video", "environment.id", "environment.vectorize", "environment.workers", "environment.timeout_seconds",
)  # fmt: skip
PACE = ("device", "runtime.", "debug.", "environment.vectorize", "environment.workers")  # of these, what costs time
LABEL_KEYS = 3  # settings that a label names, at most

Array = np.ndarray
Flat = dict[str, Any]


@dataclass(frozen=True)
class Member:
    """One run of a comparison."""

    folder: RunFolder
    settings: Flat
    rows: list[dict[str, Any]] = field(repr=False)
    status: str
    created: tuple[str, int]  # a second may see several
    pace: Flat  # what its wall time depends on, besides what is compared

    @classmethod
    def read(cls, folder: RunFolder, rows: bool = True) -> Member:
        """All there is; `rows` of metrics may be many, and left for somebody else to choose from."""
        manifest, settings = folder.read_manifest(), dict(leaves(folder.settings()))
        created = (str(manifest.get("created") or ""), folder.manifest.stat().st_mtime_ns)
        machine = manifest.get("machine") or {}
        pace = {key: value for key, value in settings.items() if key.startswith(PACE)}
        pace |= {f"machine.{key}": machine.get(key) for key in ("cpu", "cores")}
        with suppress(CheckpointError, KeyError):
            pace["device"] = folder.read_decisions()["device"]  # what `auto` came to
        found = metrics.read(folder.metrics) if rows else []
        return cls(folder, settings, found, folder.state(), created, pace)

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
        return {key: value for key, value in self.settings.items() if not key.startswith(ASIDE)}

    @property
    def steps(self) -> int:
        return int(self.rows[-1]["env_steps"]) if self.rows else 0

    def curve(self, metric: str, axis: str) -> tuple[Array, Array]:
        x, y = metrics.series(self.rows, metric, axis)
        return np.array(x, float), np.array(y, float)


@dataclass(frozen=True)
class Series:
    """Runs of one config in one environment, which differ by their seeds."""

    environment: str
    label: str
    members: tuple[Member, ...]


def chosen(root: Path, refs: Sequence[str], filters: Filters = ()) -> list[RunFolder]:
    """The runs that names, wildcards, specs and filters mean, each once, in this order."""
    found: dict[Path, RunFolder] = {}
    for ref in refs:
        for folder in _meant(root, ref):
            found.setdefault(folder.path.resolve(), folder)
    if filters:
        for row in sorted(indexed(root, filters), key=lambda row: str(row["created"])):
            found.setdefault((root / row["run"]).resolve(), RunFolder(root / row["run"]))
    if not found:
        raise NotFoundError(f"no run in {root} matches" if filters else "name the runs, or give a --filter KEY=VALUE")
    return list(found.values())


def _meant(root: Path, ref: str) -> list[RunFolder]:
    if any(sign in ref for sign in "*?"):
        found = [RunFolder(root / run) for run in run_ids(root) if fnmatchcase(run, ref)]
        if not found:
            raise NotFoundError(f"no run in {root} matches '{ref}' (`cadenza list` shows all)")
        return found
    if ":" in ref and not ref.startswith(("@", HUB)) and not Path(ref).exists():
        of_spec = [RunFolder(root / row["run"]) for row in indexed(root) if row["spec"] == ref]
        if not of_spec:
            specs = sorted({row["spec"] for row in indexed(root)})
            raise NotFoundError(f"no run of '{ref}' in {root}{nearest(ref, specs)}")
        return of_spec[::-1]
    return [find(root, ref)]


def in_series(members: list[Member], by: Sequence[str], notes: list[str]) -> list[Series]:
    keys = [_known_key(key, members) for key in by] if by else telling_keys(members)
    groups: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        identity = {key: member.settings.get(key) for key in keys} if by else member.compared
        groups.setdefault((member.environment, dumps([member.variant, identity])), []).append(member)
    labels = _labels(list(groups.values()), keys)
    found = [
        Series(group[0].environment, label, tuple(_without_repeats(group, label, notes)))
        for group, label in zip(groups.values(), labels, strict=True)
    ]
    places = [list(dict.fromkeys(key)) for key in zip(*((one.environment, one.label) for one in found), strict=True)]
    return sorted(found, key=lambda one: (places[0].index(one.environment), places[1].index(one.label)))


def _known_key(key: str, members: Sequence[Member]) -> str:
    known = {name for member in members for name in member.settings}
    if key not in known:
        raise ConfigError(f"--by {key}: unknown config key{nearest(key, known)}")
    return key


def telling_keys(members: Sequence[Member]) -> list[str]:
    """Settings that differ between runs of one variant in one environment."""
    alike: dict[tuple[str, str], list[Flat]] = {}
    for member in members:
        alike.setdefault((member.environment, member.variant), []).append(member.compared)
    found: dict[str, None] = {}
    for group in alike.values():
        found |= dict.fromkeys(unlike(group))
    return list(found)


def unlike(settings: Sequence[Flat]) -> list[str]:
    """Keys whose values are not the same everywhere."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({dumps(one.get(key)) for one in settings}) > 1]


def _labels(groups: Sequence[list[Member]], keys: Sequence[str]) -> list[str]:
    """A name that all its runs were given and no other's; else the variant and the settings that tell it apart."""
    several = len({group[0].variant for group in groups}) > 1
    short = {key: key.rpartition(".")[2] for key in keys}
    names = list(short.values())
    short = {key: name if names.count(name) == 1 else key for key, name in short.items()}
    given = [{str(member.settings.get("name") or "") for member in group} for group in groups]
    labels = []
    for index, group in enumerate(groups):
        head = group[0]
        others = [name for other, name in zip(groups, given, strict=True) if other[0].environment == head.environment]
        if len(given[index]) == 1 and (name := next(iter(given[index]))) and others.count({name}) == 1:
            labels.append(name)
            continue
        told = [f"{short[key]}={_brief(head.settings[key])}" for key in keys if key in head.settings]
        extra = ["…"] if len(told) > LABEL_KEYS else []
        parts = ([head.variant] if several or not told else []) + told[:LABEL_KEYS] + extra
        labels.append(" ".join(parts))
    return _unique(labels, [group[0] for group in groups], keys)


def _unique(labels: list[str], heads: Sequence[Member], keys: Sequence[str]) -> list[str]:
    """Numbered where an environment has one twice: by what they are, so that a number means the same everywhere."""
    often = Counter((head.environment, label) for head, label in zip(heads, labels, strict=True))
    repeated = {label for (_, label), count in often.items() if count > 1}
    numbers: dict[str, dict[str, int]] = {}
    found = []
    for label, head in zip(labels, heads, strict=True):
        known = numbers.setdefault(label, {})
        identity = dumps([head.variant, {key: head.settings.get(key) for key in keys}])
        number = known.setdefault(identity, len(known) + 1) if label in repeated else 1
        found.append(label if number == 1 else f"{label} ({number})")
    return found


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _without_repeats(group: Sequence[Member], label: str, notes: list[str]) -> list[Member]:
    """A run of the same settings and seed is no second sample: of such, the newest that finished, else the longest."""
    alike: dict[tuple[Any, str], list[Member]] = {}
    for member in group:
        alike.setdefault((member.seed, dumps(member.compared)), []).append(member)
    counting = [max(members, key=_worth) for members in alike.values()]
    for members, member in zip(alike.values(), counting, strict=True):
        if len(members) > 1:
            notes.append(f"{label}: seed {member.seed} is there more than once, {member.folder.id} counts")
    return sorted(counting, key=lambda member: member.seed if isinstance(member.seed, int) else 0)


def _worth(member: Member) -> tuple[bool, int, tuple[str, int]]:
    finished = member.status == "finished" and bool(member.rows)
    return finished, 0 if finished else member.steps, member.created
