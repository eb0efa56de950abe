"""A few seconds of a run, to learn from: when its cycles end, and what a checkpoint, a row and an evaluation cost."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace

from cadenza.base import system_memory
from cadenza.config.schema import Phase
from cadenza.engine.clock import Clock
from cadenza.engine.orchestrator import Orchestrator
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.engine.signals import STOP
from cadenza.errors import ConfigError
from cadenza.records.metrics import read
from cadenza.tools.plan_forecast import Mark
from cadenza.types import PhaseInfo, Store

PATIENCE = 4  # a first cycle that takes so many times the seconds to measure is left unfinished
GLIMPSE = 5  # cycles of an offline phase that are measured, at most, where others follow


@dataclass(frozen=True)
class Measured:
    """What a stretch of the run showed."""

    marks: list[Mark]  # the beginning and the end of each cycle; only the first if not one was finished in time
    stopped: Mark  # where it was left, perhaps within a cycle
    episodes: int  # that ended
    checkpoint: dict[str, int]  # file -> bytes, at the end of a cycle, or the very first
    row: float  # bytes of metrics.jsonl per row
    evaluation: float | None  # seconds of one evaluation; None: not one of its episodes came to an end
    evaluation_steps: int  # env_steps of its finished episodes
    finished: int  # how many those were
    beside: int | None  # bytes of the process beside its stores; None: nobody tells

    @property
    def cycles(self) -> int:
        return len(self.marks) - 1


def measure(run: Orchestrator, seconds: float) -> Measured:
    """Some cycles of the run, for about so long, and one evaluation of what came of them."""
    run.scheduler = PhaseScheduler(tuple(map(without_evaluations, run.scheduler.phases)))
    settled = max((number for number, phase in enumerate(run.scheduler.phases) if phase.type != "eval_only"), default=0)
    marks: list[Mark] = []
    held: list[int | None] = []  # before the last checkpoint, which seals all rows at once, and after it
    run.save(insist=True)
    checkpoint = checkpoint_files(run)
    began = time.monotonic()

    def mark() -> Mark:
        return Mark(time.monotonic() - began, run.clock.env_steps, run.clock.updates, run.scheduler.index)

    def seen_enough(clock: Clock) -> bool:
        while seen_of_phase(run.scheduler, settled):
            run.scheduler.skip()
        marks.append(mark())
        reached = len(marks) > 1 and marks[-2].phase == settled  # what a run mostly does
        enough = reached and marks[-1].seconds >= seconds
        if enough:
            held.append(resident_beside(run.stores))
        return enough

    def stop() -> None:
        held.append(resident_beside(run.stores))
        run.signals.stop()

    hurry = threading.Timer(PATIENCE * seconds, stop)
    hurry.start()
    try:
        ended_by = run.run(seen_enough)
    finally:
        hurry.cancel()
    if ended_by not in (None, STOP):
        raise KeyboardInterrupt
    stopped = mark()
    held.append(resident_beside(run.stores))
    if not run.clock.updates:
        update_once(run)
    if run.standing.logged_at != run.clock.position:  # perhaps none was due yet
        run.write_row(None)
    rows = read(run.folder.metrics)
    started = time.monotonic()
    phase = PhaseInfo(run.clock.phase, "eval_only", run.now, run.decisions["training.horizon"])
    evaluation = run.evaluator(0, phase, lambda: time.monotonic() - started >= seconds)
    finished = len(evaluation.episodes)  # perhaps not all that were asked for
    beside = resident_beside(run.stores)
    if beside is not None and held[0] is not None and held[-1] is not None:
        beside += held[0] - held[-1]  # a run seals its rows a few at a time
    return Measured(
        marks=marks,
        stopped=stopped,
        episodes=run.clock.episodes,
        checkpoint=checkpoint_files(run) if len(marks) > 1 else checkpoint,
        row=run.folder.metrics.stat().st_size / len(rows) if rows else 0.0,
        evaluation=(time.monotonic() - started) * evaluation.requested / finished if finished else None,
        evaluation_steps=sum(episode.length for episode in evaluation.episodes),
        finished=finished,
        beside=beside,
    )


def without_evaluations(phase: Phase) -> Phase:
    """They are measured apart. An `eval_only` phase stays what it is, to be passed over."""
    hooks = tuple(hook for hook in phase.hooks if hook.name != "evaluate")
    return replace(phase, hooks=hooks or phase.hooks)


def seen_of_phase(scheduler: PhaseScheduler, settled: int) -> bool:
    """Whether a measurement can pass over the rest of the phase in hand: others follow that should be seen, too."""
    if scheduler.over:
        return False
    kind = scheduler.phases[scheduler.index].type
    return kind == "eval_only" or (kind == "offline" and scheduler.index < settled and scheduler.cycles >= GLIMPSE)


def update_once(run: Orchestrator) -> None:
    """Every update that was not reached in time, behind a long warm-up say: what it needs, the run will need, too."""
    for phase in run.scheduler.phases:
        info = PhaseInfo(phase.name, phase.type, run.now, run.decisions["training.horizon"])
        for hook in phase.hooks:
            store = run.stores[hook.buffer or phase.buffer]
            if hook.name in run.workflow.hooks and store.ready():
                with contextlib.suppress(ConfigError):  # too little was collected for one of its sequences
                    getattr(run.workflow, hook.name)(store, info)


def resident_beside(stores: dict[str, Store]) -> int | None:
    """What this process holds beside its stores: interpreter, libraries, environments, networks, what updates need."""
    now, pieces = system_memory.resident(), system_memory.blocks(stores) | system_memory.mapped(stores)
    return None if now is None else now - system_memory.touched(pieces)


def checkpoint_files(run: Orchestrator) -> dict[str, int]:
    folder = run.checkpoints.folder / run.checkpoints.resolve("last")
    return {file.name: file.stat().st_size for file in folder.glob("*")}
