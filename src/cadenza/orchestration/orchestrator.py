"""The training loop. It knows phases, stores and the run folder, and no algorithm by name.

    while the run is not over:
        do what the scheduler says (collect, evaluate, or one of the workflow's update hooks)
        at the end of a cycle: evaluate, write a row, save, each if it is due
"""

from __future__ import annotations

import errno
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from cadenza.config.schema import Phase, RunConfig
from cadenza.errors import CheckpointError, ConfigError, DivergenceError, StorageError
from cadenza.monitor.console import Console
from cadenza.orchestration.checkpoint import Checkpoints
from cadenza.orchestration.clock import Clock, Every
from cadenza.orchestration.collector import Collector
from cadenza.orchestration.evaluator import Evaluation
from cadenza.orchestration.scheduler import PhaseScheduler, Task
from cadenza.orchestration.seeding import Streams
from cadenza.orchestration.signals import Signals
from cadenza.records.episodes import EpisodeLog
from cadenza.records.failpoints import failpoint
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import MetricBuffer, MetricsFile
from cadenza.trees import leaves
from cadenza.types import Mode, PhaseInfo, Stateful, Store, Updated, Workflow

SAVE_ATTEMPTS = 3  # failures in a row before a full or failing disk ends the run


@dataclass
class Standing:
    """How good the policy is: the best evaluation so far, the latest one, and whether that was good enough to stop."""

    best: float | None = None
    latest: float | None = None
    stopped_early: bool = False

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


@dataclass
class Orchestrator:
    """Everything a run is made of, put together by `build.py`, and the loop over it."""

    config: RunConfig
    horizon: int  # the budget the run first started with; schedules stretch over it
    threshold: float | None  # "solved", for early stopping
    folder: RunFolder
    streams: Streams
    workflow: Workflow
    stores: dict[str, Store]
    scheduler: PhaseScheduler
    collector: Collector | None  # None: no phase collects
    evaluate: Callable[[int], Evaluation]  # the number of the evaluation -> its result
    checkpoints: Checkpoints
    metrics: MetricsFile
    episodes: EpisodeLog
    console: Console
    clock: Clock = field(default_factory=Clock)
    buffer: MetricBuffer = field(default_factory=MetricBuffer)
    standing: Standing = field(default_factory=Standing)
    signals: Signals = field(default_factory=Signals)  # heeded once entered; whoever starts the run enters them
    failed_saves: int = 0

    def __post_init__(self) -> None:
        evaluation = self.config.evaluation
        self.triggers = {
            "evaluate": Every(evaluation.every_steps, after=evaluation.warmup_steps),
            "log": Every(self.config.logging.every_steps),
            "save": Every(self.config.checkpoint.every_steps),
        }
        self._started = time.monotonic() - self.clock.seconds

    # the loop

    def run(self, until: int | None = None) -> str | None:
        """Train until the budget, the last phase, early stopping or a signal; the signal's name if one ended it.

        `until` leaves at the first cycle at or after so many env_steps, as if interrupted there.
        """
        self._started = time.monotonic() - self.clock.seconds
        while not self.finished and not self.signals.requested:
            if until is not None and self.clock.env_steps >= until and self.scheduler.at_boundary:
                break
            task = self.scheduler.next()
            assert task is not None
            self._do(task)
            failpoint(f"run:{task.hook.name}")
            if self.scheduler.at_boundary:
                self._end_cycle(task.phase)
        if not self.finished:
            self.save()
        return None if self.finished else self.signals.requested

    @property
    def finished(self) -> bool:
        training, clock = self.config.training, self.clock
        spent = (training.max_timesteps is not None and clock.env_steps >= training.max_timesteps) or (
            training.max_updates is not None and clock.updates >= training.max_updates
        )
        over = (spent or self.standing.stopped_early) and self.scheduler.at_boundary
        return over or self.scheduler.next() is None

    @property
    def now(self) -> int:
        """How far the run has come, in the unit of its budget."""
        return self.clock.env_steps if self.config.training.max_timesteps is not None else self.clock.updates

    def _do(self, task: Task) -> None:
        if task.hook.name == "collect":
            self._collect(task)
        elif task.hook.name == "evaluate":
            self._write_row(task.phase, self._evaluate())
            self.scheduler.advance(1)
        else:
            self._update(task)

    def _collect(self, task: Task) -> None:
        assert self.collector is not None
        mode: Mode = "random" if task.phase.actions == "random" else "explore"
        store = self.stores[task.phase.buffer]
        done = self.collector.collect(store, task.amount, mode, lambda: self.signals.requested is not None)
        self.clock.env_steps += done.env_steps
        self.clock.vec_steps += done.vec_steps
        self.clock.episodes += len(done.episodes)
        for episode in done.episodes:
            self.buffer.add({"collect/return_mean": episode.total, "collect/length_mean": episode.length})
        self.episodes.add(done.episodes)
        self.scheduler.advance(done.env_steps, env_steps=done.env_steps)

    def _update(self, task: Task) -> None:
        store = self.stores[task.phase.buffer]
        if not store.ready():
            raise ConfigError(
                f"phase {task.phase.name}: hook {task.hook.name} finds too little in buffer '{task.phase.buffer}'; "
                "collect more before it"
            )
        info = PhaseInfo(task.phase.name, task.phase.type, self.now, self.horizon)
        result: Updated = getattr(self.workflow, task.hook.name)(store.batch(), info)
        self.buffer.add(result.metrics)
        self.clock.updates += result.updates
        self.scheduler.advance(1, updates=result.updates)

    # the end of a cycle

    def _end_cycle(self, phase: Phase) -> None:
        now = self.clock.env_steps
        self.clock.cycles += 1
        self.clock.seconds = time.monotonic() - self._started
        best_before, evaluation = self.standing.best, None
        due = self.triggers["evaluate"].due(now)
        if due or (self.finished and self.config.evaluation.at_end):
            evaluation = self._evaluate()
        if self.triggers["log"].due(now) or evaluation is not None or self.finished:
            self._write_row(phase, evaluation)
        self.console.update(self.now, None)
        if self.standing.stopped_early and evaluation is None and self.config.evaluation.at_end:
            self._write_row(phase, self._evaluate())  # a training metric ended the run
        improved = self.standing.best != best_before
        if self.triggers["save"].due(now) or improved or self.finished:
            self.save(best=improved)

    def _evaluate(self) -> Evaluation:
        evaluation = self.evaluate(self.clock.evaluations)
        self.clock.evaluations += 1
        if len(evaluation.episodes) < evaluation.asked:
            finished = f"{len(evaluation.episodes)} of {evaluation.asked} episodes"
            self.console.note(f"evaluation timed out with {finished} finished", warning=True)
        if evaluation.episodes:
            standing, score = self.standing, evaluation.metrics()["eval/return_mean"]
            standing.latest = score
            standing.best = score if standing.best is None else max(score, standing.best)
        return evaluation

    def _write_row(self, phase: Phase, evaluation: Evaluation | None) -> None:
        clock = self.clock
        row: dict[str, Any] = {
            "env_steps": clock.env_steps,
            "updates": clock.updates,
            "episodes": clock.episodes,
            "cycles": clock.cycles,
            "phase": phase.name,
            **self.buffer.means(),
            **(evaluation.metrics() if evaluation else {}),
            "digest/weights": digest(self.workflow.state_dict()),
            "time/seconds": clock.seconds,
        }
        if self.collector is not None:
            row["digest/experience"] = f"{self.collector.checksum:08x}"
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise DivergenceError(
                    f"{name} became {value} by step {clock.env_steps} (update {clock.updates}); "
                    f"the last good checkpoint is kept. Try a smaller algorithm.learning_rate"
                )
        if not self.metrics.append(row):
            self.console.note(f"disk full: {self.metrics.pending} rows of metrics wait in memory", warning=True)
        self.console.update(self.now, row)
        stop = self.config.training.early_stop
        if stop is not None and stop.metric in row:
            goal = self.threshold if stop.at_least == "solved" else stop.at_least
            self.standing.stopped_early |= goal is not None and row[stop.metric] >= goal

    # state

    def parts(self) -> dict[str, Stateful]:
        """Everything that changes, by name. A checkpoint is this list."""
        parts: dict[str, Stateful] = {
            "streams": self.streams,
            "clock": self.clock,
            "scheduler": self.scheduler,
            "workflow": self.workflow,
            "metrics": self.metrics,
            "buffer": self.buffer,
            "standing": self.standing,
            **{f"store.{name}": store for name, store in self.stores.items()},
            **{f"trigger.{name}": trigger for name, trigger in self.triggers.items()},
        }
        if self.collector is not None:
            parts |= {"environment": self.collector.env, "collector": self.collector}
        return parts

    def load_state(self, state: dict[str, Any]) -> None:
        for name, part in self.parts().items():
            try:
                absent = part.state_dict().keys() - state[name].keys()  # else a part would keep its first state unseen
                if absent:
                    raise KeyError(min(absent))
                part.load_state_dict(state[name])
            except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as problem:
                reason = f"{type(problem).__name__}: {problem}"
                raise CheckpointError(f"the checkpoint's '{name}' does not fit this run ({reason})") from problem
        self.episodes.drop_after(self.clock.env_steps)

    def save(self, best: bool = False) -> None:
        """A checkpoint now. A failing disk is survived twice in a row with the previous checkpoint intact."""
        self.clock.seconds = time.monotonic() - self._started
        bad = first_not_finite(self.workflow.state_dict())
        if bad:
            raise DivergenceError(
                f"{bad} is not finite at step {self.clock.env_steps} (update {self.clock.updates}); "
                f"not saved, the last good checkpoint is kept. Try a smaller algorithm.learning_rate"
            )
        try:
            self.episodes.seal(self.clock.env_steps)
            state = {name: part.state_dict() for name, part in self.parts().items()}
            if self.finished and self.metrics.pending:  # rows may wait in a checkpoint, but not in the last one
                raise OSError(errno.ENOSPC, "no room for metrics.jsonl")
            self.checkpoints.save(state, self.clock.env_steps, self.clock.updates, best)
            self.write_status("finished" if self.finished else "running")
            self.failed_saves = 0
        except OSError as problem:
            self.failed_saves += 1
            text = f"cannot save in {self.folder.path}: {problem.strerror or problem}; the last good checkpoint is kept"
            if self.failed_saves >= SAVE_ATTEMPTS:
                raise StorageError(text) from problem
            self.console.note(text, warning=True)
            if self.finished:  # there will be no later one
                self.save(best)

    def write_status(self, status: str, message: str = "") -> None:
        clock = self.clock
        self.folder.update_status(
            status=status,
            message=message,
            env_steps=clock.env_steps,
            updates=clock.updates,
            episodes=clock.episodes,
            seconds=round(clock.seconds, 3),
            best_return=self.standing.best,
            return_threshold=self.threshold,
            **{"eval/return_mean": self.standing.latest},
        )


def digest(state: dict[str, Any]) -> str:
    """A short fingerprint of every tensor in a state."""
    total = hashlib.sha256()
    for _, leaf in leaves(state):
        if isinstance(leaf, torch.Tensor):
            total.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]


def first_not_finite(state: dict[str, Any]) -> str | None:
    """The path of the first tensor that holds a NaN or an infinity."""
    for path, leaf in leaves(state):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not leaf.isfinite().all():
            return path
    return None
