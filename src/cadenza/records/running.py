"""The runs of a folder that are running now, and how each stands: from the last rows of its metrics."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.records import alerts
from cadenza.records.folder import RunFolder, read_object, run_ids
from cadenza.records.lock import is_held

TAIL = 1 << 16  # bytes of metrics.jsonl that are looked at: a run may have written millions
RECENT = 5  # rows that the speed is taken of


@dataclass(frozen=True)
class Running:
    """One run; None where it has not told yet."""

    run: str
    dir: str
    unit: str
    done: int
    budget: int | None
    speed: float | None  # units per second
    left: float | None  # seconds, at that speed
    latest_return: float | None
    best_return: float | None
    curve: list[float]  # of returns: evaluations, or training episodes where there were none
    cpu_percent: float | None
    memory_gb: float | None
    gpu_percent: float | None
    alerts: int
    alert: dict[str, Any] | None  # the latest
    parts: dict[str, float]  # time/… of the latest row


def running(root: Path) -> list[Running]:
    """Newest first."""
    folders = [RunFolder(root / run) for run in run_ids(root) if is_held(root / run)]
    found = [(folder.config.stat().st_ctime, describe(folder)) for folder in folders]
    return [run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True)]


def describe(folder: RunFolder) -> Running:
    status, rows, told = folder.read_status(), tail(folder.metrics), alerts.read(folder.alerts)
    settings = folder.settings().get("training") or {}
    decisions = read_object(folder.decisions) if folder.decisions.exists() else {}
    unit = decisions.get("training.unit", "env_steps")
    budget = settings.get("max_timesteps" if unit == "env_steps" else "max_updates")
    last = rows[-1] if rows else {}
    done = last.get(unit, status.get(unit, 0))
    speed = rate([row for row in rows[-RECENT:] if row.get("phase") == last.get("phase")], unit)
    curve = [values for name in ("eval", "collect") if (values := column(rows, f"{name}/return_mean"))]
    evaluations, best = column(rows, "eval/return_mean"), status.get("best_return")
    return Running(
        run=folder.id,
        dir=str(folder.path.absolute()),
        unit=unit,
        done=done,
        budget=budget,
        speed=speed,
        left=max(0, budget - done) / speed if speed and budget else None,
        latest_return=curve[0][-1] if curve else None,
        best_return=max([*evaluations, *([best] if best is not None else [])], default=None),
        curve=curve[0] if curve else [],
        cpu_percent=latest(rows, "system/cpu_percent"),
        memory_gb=latest(rows, "system/memory_gb"),
        gpu_percent=latest(rows, "system/gpu_percent"),
        alerts=len(told),
        alert=told[-1] if told else None,
        parts={key: value for key, value in last.items() if key.startswith("time/")},
    )


def tail(path: Path) -> list[dict[str, Any]]:
    """The last rows; those cut off at either end are left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return []
    found = []
    for line in lines[1 if size > TAIL else 0 :]:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def column(rows: list[dict[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def latest(rows: list[dict[str, Any]], key: str) -> float | None:
    return next(iter(column(rows[::-1], key)), None)


def rate(rows: list[dict[str, Any]], unit: str) -> float | None:
    """Between the first and the last of these rows; pauses between resumptions do not count."""
    if len(rows) < 2:
        return None
    seconds = rows[-1].get("time/seconds", 0.0) - rows[0].get("time/seconds", 0.0)
    return (rows[-1][unit] - rows[0][unit]) / seconds if seconds > 0 else None
