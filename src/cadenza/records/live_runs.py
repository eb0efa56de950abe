"""The runs of a folder that are training now, with their progress from the last rows of metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.base.eta import Count, ahead, speed
from cadenza.base.files import SafePath
from cadenza.records import alert_log, validity
from cadenza.records.folder import RunFolder, read_object, run_ids
from cadenza.records.lock import is_held
from cadenza.records.metric_rows import MetricRows, Row

TAIL = 1 << 16  # bytes of metrics.jsonl that are read: a run may have written millions
RECENT = 5  # rows that the speed is measured over


@dataclass(frozen=True)
class Running:
    """The progress of one run; None where it is not known yet."""

    run: str
    dir: str
    unit: str
    done: int
    budget: int | None
    speed: float | None  # per second, of whichever ends first: the run, or its phase
    speed_unit: str
    left: float | None  # seconds to that end, at that speed
    phase: str | None  # the phase that ends then; None: the run
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
    """Return the runs in progress, newest first."""
    folders = [RunFolder(root / run) for run in run_ids(root) if is_held(root / run)]
    return [describe(folder) for folder in sorted(folders, key=lambda one: one.config.stat().st_ctime, reverse=True)]


def describe(folder: RunFolder) -> Running:
    """Return the progress of a run."""
    status, rows, alerts = folder.read_status(), tail(folder.metrics), alert_log.read(folder.alerts)
    training = folder.settings().get("training", {})
    decisions = validity.lenient(lambda: read_object(folder.decisions))
    unit = decisions.get("training.unit")
    if unit not in ("env_steps", "updates"):
        unit = "env_steps"
    budget = training.get("max_timesteps" if unit == "env_steps" else "max_updates")
    last = rows[-1] if rows else {}
    progress = _number(last.get(unit, status.get(unit))) or 0
    # an older version writes no phase
    phase = status.get("phase") or {"name": last.get("phase"), "last": True, "unit": unit, "end": None}
    name, phase_unit = phase["name"], phase["unit"] or unit
    recent = [row for row in rows[-RECENT:] if row.get("phase") == last.get("phase") == name]
    run_count = Count("", unit, progress, budget, rate(recent, unit))
    phase_progress = _number(last.get(phase_unit)) or 0
    phase_count = Count(str(name), phase_unit, phase_progress, phase["end"], rate(recent, phase_unit))
    count, seconds = ahead(run_count, phase_count, phase["last"])
    curve = [values for name in ("eval", "collect") if (values := column(rows, f"{name}/return_mean"))]
    evaluations, best = column(rows, "eval/return_mean"), _number(status.get("best_return"))
    return Running(
        run=folder.id,
        dir=str(folder.path.absolute()),
        unit=unit,
        done=progress,
        budget=budget,
        speed=count.speed,
        speed_unit=count.unit,
        left=seconds,
        phase=count.phase if count.phase and not phase["last"] else None,
        latest_return=curve[0][-1] if curve else None,
        best_return=max([*evaluations, *([best] if best is not None else [])], default=None),
        curve=curve[0] if curve else [],
        cpu_percent=latest(rows, "system/cpu_percent"),
        memory_gb=latest(rows, "system/memory_gb"),
        gpu_percent=latest(rows, "system/gpu_percent"),
        alerts=len(alerts),
        alert=alerts[-1] if alerts else None,
        parts={key: value for key, value in last.items() if key.startswith("time/") and _number(value) is not None},
    )


def tail(path: SafePath) -> list[Row]:
    """Return the last rows of metrics.jsonl, without anything that is no row of metrics."""
    try:
        with MetricRows(path) as rows:
            return [row for row in rows.within(TAIL) if validity.row_fault(row) is None]
    except OSError:
        return []


def column(rows: list[Row], key: str) -> list[float]:
    """Return the numbers that the rows have under a key."""
    return [number for row in rows if (number := _number(row.get(key))) is not None]


def latest(rows: list[Row], key: str) -> float | None:
    """Return the last number under a key."""
    return next(iter(column(rows[::-1], key)), None)


def rate(rows: list[Row], unit: str) -> float | None:
    """Return the speed between the first and the last of the rows; pauses between resumptions do not count."""
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    amount, seconds = ((_number(last.get(key)) or 0) - (_number(first.get(key)) or 0) for key in (unit, "time/seconds"))
    return speed(amount, seconds)


def _number(value: Any) -> Any:
    """Return the value if it is a number, else None: a row of unknown origin may hold anything."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
