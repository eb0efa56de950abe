"""The runs of a folder that are running now, and how each stands: from the last rows of its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.base.eta import Count, ahead, speed
from cadenza.base.files import SafePath
from cadenza.records import alert_log, validity
from cadenza.records.folder import RunFolder, read_object, run_ids
from cadenza.records.lock import is_held
from cadenza.records.metric_rows import Row, Rows

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
    speed: float | None  # per second, of what comes to its end first: the run, or its phase
    speed_unit: str
    left: float | None  # seconds to that end, at that speed
    phase: str | None  # that it is the end of; None: of the run
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
    status, rows, told = folder.read_status(), tail(folder.metrics), alert_log.read(folder.alerts)
    training = folder.settings().get("training")
    settings = training if isinstance(training, dict) else {}
    decisions = read_object(folder.decisions) if folder.decisions.exists() else {}
    unit = decisions.get("training.unit")
    if unit not in ("env_steps", "updates"):
        unit = "env_steps"
    budget = _number(settings.get("max_timesteps" if unit == "env_steps" else "max_updates"))
    last = rows[-1] if rows else {}
    done = _number(last.get(unit, status.get(unit))) or 0
    phase = status.get("phase")
    if not isinstance(phase, dict):  # of a run that an older version is training
        phase = {"name": last.get("phase"), "last": True}
    name, counted = phase.get("name"), str(phase.get("unit") or unit)
    here = [row for row in rows[-RECENT:] if row.get("phase") == last.get("phase") == name]
    whole = Count("", unit, done, budget, rate(here, unit))
    part = Count(str(name), counted, _number(last.get(counted)) or 0, _number(phase.get("end")), rate(here, counted))
    count, left = ahead(whole, part, bool(phase.get("last")))
    curve = [values for name in ("eval", "collect") if (values := column(rows, f"{name}/return_mean"))]
    evaluations, best = column(rows, "eval/return_mean"), _number(status.get("best_return"))
    return Running(
        run=folder.id,
        dir=str(folder.path.absolute()),
        unit=unit,
        done=done,
        budget=budget,
        speed=count.speed,
        speed_unit=count.unit,
        left=left,
        phase=count.phase if count.phase and not phase.get("last") else None,
        latest_return=curve[0][-1] if curve else None,
        best_return=max([*evaluations, *([best] if best is not None else [])], default=None),
        curve=curve[0] if curve else [],
        cpu_percent=latest(rows, "system/cpu_percent"),
        memory_gb=latest(rows, "system/memory_gb"),
        gpu_percent=latest(rows, "system/gpu_percent"),
        alerts=len(told),
        alert=told[-1] if told else None,
        parts={key: value for key, value in last.items() if key.startswith("time/") and _number(value) is not None},
    )


def tail(path: SafePath) -> list[Row]:
    """Return the last rows of metrics.jsonl; what is no row of metrics is left out."""
    try:
        with Rows(path) as rows:
            return [row for row in rows.within(TAIL) if validity.row_fault(row) is None]
    except OSError:
        return []


def column(rows: list[Row], key: str) -> list[float]:
    return [number for row in rows if (number := _number(row.get(key))) is not None]


def latest(rows: list[Row], key: str) -> float | None:
    return next(iter(column(rows[::-1], key)), None)


def rate(rows: list[Row], unit: str) -> float | None:
    """Between the first and the last of these rows; pauses between resumptions do not count."""
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    done, seconds = ((_number(last.get(key)) or 0) - (_number(first.get(key)) or 0) for key in (unit, "time/seconds"))
    return speed(done, seconds)


def _number(value: Any) -> Any:
    """The value if it is a number, else None: a stranger's row may hold anything."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
