"""Rounds of measurements, everyone in turn, and what they come to: medians, spreads, ratios."""

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
from cadenza.tools.bench.contestants import CADENZA, Contestant, Found, measure
from cadenza.tools.bench.tasks import Task

RATES = ("env_steps_per_s", "steady_env_steps_per_s")
FIGURES = (*RATES, "start_s", "peak_mb", "cpu_s", "process_s", "solved_s", "solved_env_steps")
COMPARED = (*RATES, "start_s", "peak_mb", "solved_s")
NEVER = ("solved_s", "solved_env_steps")  # without a value where it did not happen, which counts as for ever

Measurement = dict[str, Any]


def interleaved(contestants: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, who) in the order of measuring: A B C A B C, so that a busy hour strikes everyone."""
    for number in range(rounds):
        for name in contestants:
            yield number, name


def summarise(measurements: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """contestant -> figure -> {median, min, max} over its rounds; failed ones count as not measured."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(row["contestant"] for row in measurements):
        rows = [row for row in measurements if row["contestant"] == name and "error" not in row]
        if rows:
            found[name] = {figure: spread([row.get(figure) for row in rows], figure in NEVER) for figure in FIGURES}
    return found


def spread(values: Sequence[float | None], never: bool = False) -> dict[str, float | None] | None:
    """Nothing if nothing was measured; `never`: what has no value did not happen, and is later than all that did."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    counted = known + [math.inf] * (len(values) - len(known)) if never else known
    edges = {"median": statistics.median(counted), "min": min(counted), "max": max(counted)}
    return {name: value if math.isfinite(value) else None for name, value in edges.items()}


def ratios(summary: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """peer -> figure -> cadenza's median as a multiple of the peer's."""
    own = summary.get(CADENZA.name)
    if own is None:
        return {}
    return {
        name: {figure: quotient(own[figure], figures[figure]) for figure in COMPARED}
        for name, figures in summary.items()
        if name != CADENZA.name
    }


def quotient(own: Mapping[str, float | None] | None, other: Mapping[str, float | None] | None) -> float | None:
    if not own or not other or own["median"] is None or not other["median"]:
        return None
    return own["median"] / other["median"]


def differences(measurements: Sequence[Measurement]) -> list[str]:
    """Networks that are not the same size are not the same work."""
    sizes = {row["contestant"]: row["parameters"] for row in measurements if "parameters" in row}
    own = sizes.get(CADENZA.name)
    return [f"{name} has {size} parameters, cadenza {own}" for name, size in sizes.items() if own not in (None, size)]


class Bench:
    """The measurements so far; the result file is written anew after each, so that an interrupted bench keeps them."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        found: Sequence[Found],
        missing: Sequence[Contestant],
        rounds: int,
        out: Path | None,
    ) -> None:
        self.tasks, self.rounds, self.out = tasks, rounds, out
        self._found = {one.contestant.name: one for one in found}
        self._measurements: dict[str, list[Measurement]] = {name: [] for name in tasks}
        self._facts: dict[str, Any] = {
            "created": timestamp(),
            "git": git_state(),
            "machine": {key: value for key, value in machine().items() if key != "host"},
            "rounds": rounds,
            "missing": {peer.name: f"pip install {peer.distributions[0]}" for peer in missing},
        }

    def run(self, told: Callable[[str, int, str, Measurement], None]) -> None:
        """Measure everything; `told` hears of each measurement: task, round, who, what."""
        for name, task in self.tasks.items():
            for number, who in interleaved(self.taking_part(task), self.rounds):
                row = measure(self._found[who], replace(task, seed=task.seed + number))
                self._measurements[name].append({"contestant": who, "round": number, **row})
                if self.out:
                    atomic.write_json(self.out, self.result())
                told(name, number, who, row)

    def taking_part(self, task: Task) -> list[str]:
        """Those who do its algorithm."""
        return [name for name, one in self._found.items() if task.algorithm in one.contestant.notes]

    def result(self) -> dict[str, Any]:
        """What is kept: every measurement, and what they come to."""
        return self._facts | {"tasks": {name: self._outcome(name) for name in self.tasks if self._measurements[name]}}

    def _outcome(self, name: str) -> dict[str, Any]:
        rows = self._measurements[name]
        summary, task = summarise(rows), self.tasks[name]
        part = {who: self._found[who].contestant.notes[task.algorithm] for who in self.taking_part(task)}
        return {
            "task": task.order(),
            "left_out": [who for who in self._found if who not in part],
            "notes": {who: list(notes) for who, notes in part.items() if notes},
            "summary": summary,
            "ratios": ratios(summary),
            "differences": differences(rows),
            "measurements": rows,
        }
