"""Measure contestants in interleaved rounds; summarise medians, spreads and ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cadenza.base import atomic
from cadenza.records.folder import timestamp
from cadenza.records.manifest import git_state, machine
from cadenza.tools.bench.contestants import CADENZA, Contestant, Installed, measure
from cadenza.tools.bench.tasks import BenchTask

RATES = ("env_steps_per_s", "steady_env_steps_per_s")
FIGURES = (*RATES, "start_s", "peak_mb", "cpu_s", "process_s", "solved_s", "solved_env_steps")
COMPARED = (*RATES, "start_s", "peak_mb", "solved_s")
# without a value if it did not happen, which counts as later than all that did
NEVER = ("solved_s", "solved_env_steps")

Measurement = dict[str, Any]


def interleaved(contestants: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield (round, name) in the order A B C A B C, so that a busy machine slows all down alike."""
    for number in range(rounds):
        for name in contestants:
            yield number, name


def summarise(measurements: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """Return {contestant: {figure: {median, min, max}}} over the rounds that did not fail."""
    summary: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(row["contestant"] for row in measurements):
        rows = [row for row in measurements if row["contestant"] == name and "error" not in row]
        if rows:
            summary[name] = {figure: spread([row.get(figure) for row in rows], figure in NEVER) for figure in FIGURES}
    return summary


def spread(values: Sequence[float | None], never: bool = False) -> dict[str, float | None] | None:
    """Return median, min and max, or None without values; with `never`, a missing value counts as infinite."""
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    counted = measured + [math.inf] * (len(values) - len(measured)) if never else measured
    edges = {"median": statistics.median(counted), "min": min(counted), "max": max(counted)}
    return {name: value if math.isfinite(value) else None for name, value in edges.items()}


def ratios(summary: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return {peer: {figure: cadenza's median as a multiple of the peer's}}."""
    ours = summary.get(CADENZA.name)
    if ours is None:
        return {}
    return {
        name: {figure: quotient(ours[figure], figures[figure]) for figure in COMPARED}
        for name, figures in summary.items()
        if name != CADENZA.name
    }


def quotient(ours: Mapping[str, float | None] | None, theirs: Mapping[str, float | None] | None) -> float | None:
    """Return the ratio of two medians, or None if one is missing."""
    if not ours or not theirs or ours["median"] is None or not theirs["median"]:
        return None
    return ours["median"] / theirs["median"]


def differences(measurements: Sequence[Measurement]) -> list[str]:
    """Return a line for each contestant whose networks differ in size from cadenza's."""
    sizes = {row["contestant"]: row["parameters"] for row in measurements if "parameters" in row}
    ours = sizes.get(CADENZA.name)
    return [f"{name} has {size} parameters, cadenza {ours}" for name, size in sizes.items() if ours not in (None, size)]


class Bench:
    """The measurements so far; the result file is rewritten after each, so that an interrupted bench has them."""

    def __init__(
        self,
        tasks: Mapping[str, BenchTask],
        installed: Sequence[Installed],
        missing: Sequence[Contestant],
        rounds: int,
        out: Path | None,
    ) -> None:
        self.tasks, self.rounds, self.out = tasks, rounds, out
        self._installed = {one.contestant.name: one for one in installed}
        self._measurements: dict[str, list[Measurement]] = {name: [] for name in tasks}
        self._facts: dict[str, Any] = {
            "created": timestamp(),
            "git": git_state(),
            "machine": {key: value for key, value in machine().items() if key != "host"},
            "rounds": rounds,
            "missing": {peer.name: f"pip install {peer.distributions[0]}" for peer in missing},
        }

    def run(self, report: Callable[[str, int, str, Measurement], None]) -> None:
        """Measure everything; call `report` with task, round, contestant and measurement after each."""
        for name, task in self.tasks.items():
            for number, contestant in interleaved(self.participants(task), self.rounds):
                row = measure(self._installed[contestant], replace(task, seed=task.seed + number))
                self._measurements[name].append({"contestant": contestant, "round": number, **row})
                if self.out:
                    atomic.write_json(self.out, self.result())
                report(name, number, contestant, row)

    def participants(self, task: BenchTask) -> list[str]:
        """Return the contestants that have the task's algorithm."""
        return [name for name, one in self._installed.items() if task.algorithm in one.contestant.notes]

    def result(self) -> dict[str, Any]:
        """Return every measurement with its summary."""
        return self._facts | {"tasks": {name: self._outcome(name) for name in self.tasks if self._measurements[name]}}

    def _outcome(self, name: str) -> dict[str, Any]:
        rows = self._measurements[name]
        summary, task = summarise(rows), self.tasks[name]
        notes = {peer: self._installed[peer].contestant.notes[task.algorithm] for peer in self.participants(task)}
        return {
            "task": task.order(),
            "left_out": [peer for peer in self._installed if peer not in notes],
            "notes": {peer: list(texts) for peer, texts in notes.items() if texts},
            "summary": summary,
            "ratios": ratios(summary),
            "differences": differences(rows),
            "measurements": rows,
        }
