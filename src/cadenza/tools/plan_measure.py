"""Run a few seconds of a run, and measure its cycles, a checkpoint, a row of metrics and an evaluation."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace

from cadenza.base import resource_usage
from cadenza.config.schema import Phase
from cadenza.engine.clock import Clock
from cadenza.engine.orchestrator import Orchestrator
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.engine.signals import STOP
from cadenza.errors import ConfigError
from cadenza.records.metrics import read
from cadenza.tools import object_memory
from cadenza.tools.plan_forecast import Mark
from cadenza.types import PhaseInfo, Store

PATIENCE = 4  # a first cycle that takes so many times the seconds to measure is left unfinished
SAMPLE = 5  # cycles of an offline phase that are measured, at most, where other phases follow


@dataclass(frozen=True)
class Measured:
    """The results of the measurement."""

    marks: list[Mark]  # the beginning, and the end of each cycle that was finished in time
    stopped: Mark  # where it ended, perhaps within a cycle
    episodes: int  # finished episodes
    checkpoint: dict[str, int]  # file -> bytes, at the end of a cycle, or the very first
    row: float  # bytes of metrics.jsonl per row
    evaluation: float | None  # seconds of one evaluation; None: none of its episodes ended in time
    evaluation_steps: int  # env_steps of its finished episodes
    finished: int  # how many of its episodes ended
    process: int | None  # resident bytes of the process besides its stores; None: unknown on this system

    @property
    def cycles(self) -> int:
        return len(self.marks) - 1


def measure(run: Orchestrator, seconds: float) -> Measured:
    """Run some cycles, for about `seconds`, then one evaluation of the policy."""
    run.scheduler = PhaseScheduler(tuple(map(without_evaluations, run.scheduler.phases)))
    main = max((number for number, phase in enumerate(run.scheduler.phases) if phase.type != "eval_only"), default=0)
    marks: list[Mark] = []
    resident: list[int | None] = []  # before the last checkpoint, which seals all rows at once, and after it
    run.save(insist=True)
    checkpoint = checkpoint_files(run)
    start = time.monotonic()

    def mark() -> Mark:
        return Mark(time.monotonic() - start, run.clock.env_steps, run.clock.updates, run.scheduler.index)

    def enough(clock: Clock) -> bool:
        while can_skip(run.scheduler, main):
            run.scheduler.skip()
        marks.append(mark())
        reached = len(marks) > 1 and marks[-2].phase == main  # the phase that is most of the run
        is_enough = reached and marks[-1].seconds >= seconds
        if is_enough:
            resident.append(resident_beside(run.stores))
        return is_enough

    def stop() -> None:
        resident.append(resident_beside(run.stores))
        run.signals.stop()

    timeout = threading.Timer(PATIENCE * seconds, stop)
    timeout.start()
    try:
        signal = run.run(enough)
    finally:
        timeout.cancel()
    if signal not in (None, STOP):
        raise KeyboardInterrupt
    stopped = mark()
    resident.append(resident_beside(run.stores))
    if not run.clock.updates:
        update_once(run)
    if run.scores.logged_at != run.clock.position:  # perhaps no row was due yet
        run.write_row(None)
    rows = read(run.folder.metrics)
    start = time.monotonic()
    phase = PhaseInfo(run.clock.phase, "eval_only", run.now, run.decisions["training.horizon"])
    evaluation = run.evaluator(0, phase, lambda: time.monotonic() - start >= seconds)
    finished = len(evaluation.episodes)  # perhaps fewer than requested
    process = resident_beside(run.stores)
    if process is not None and resident[0] is not None and resident[-1] is not None:
        process += resident[0] - resident[-1]  # a run seals its rows a few at a time
    return Measured(
        marks=marks,
        stopped=stopped,
        episodes=run.clock.episodes,
        checkpoint=checkpoint_files(run) if len(marks) > 1 else checkpoint,
        row=run.folder.metrics.stat().st_size / len(rows) if rows else 0.0,
        evaluation=(time.monotonic() - start) * evaluation.requested / finished if finished else None,
        evaluation_steps=sum(episode.length for episode in evaluation.episodes),
        finished=finished,
        process=process,
    )


def without_evaluations(phase: Phase) -> Phase:
    """Return the phase without its evaluations, which are measured apart; an `eval_only` phase stays as it is."""
    hooks = tuple(hook for hook in phase.hooks if hook.name != "evaluate")
    return replace(phase, hooks=hooks or phase.hooks)


def can_skip(scheduler: PhaseScheduler, main: int) -> bool:
    """Return whether the rest of the current phase can be skipped, so that the phases behind it are measured, too."""
    if scheduler.over:
        return False
    kind = scheduler.phases[scheduler.index].type
    return kind == "eval_only" or (kind == "offline" and scheduler.index < main and scheduler.cycles >= SAMPLE)


def update_once(run: Orchestrator) -> None:
    """Call every update that was not reached in time, behind a long warm-up say: the run will need its memory, too."""
    for phase in run.scheduler.phases:
        info = PhaseInfo(phase.name, phase.type, run.now, run.decisions["training.horizon"])
        for hook in phase.hooks:
            store = run.stores[hook.buffer or phase.buffer]
            if hook.name in run.workflow.hooks and store.ready():
                with contextlib.suppress(ConfigError):  # the store is too short for one of its sequences
                    getattr(run.workflow, hook.name)(store, info)


def resident_beside(stores: dict[str, Store]) -> int | None:
    """Return the resident bytes of this process without its stores: libraries, environments, networks, updates."""
    now, pieces = resource_usage.resident_memory(), object_memory.blocks(stores) | object_memory.mapped(stores)
    return None if now is None else now - object_memory.touched(pieces)


def checkpoint_files(run: Orchestrator) -> dict[str, int]:
    """Return the bytes of each file of the last checkpoint."""
    folder = run.checkpoints.folder / run.checkpoints.resolve("last")
    return {file.name: file.stat().st_size for file in folder.glob("*")}
