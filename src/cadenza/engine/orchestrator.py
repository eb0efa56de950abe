"""The training loop. It knows phases, stores and the run folder, and no algorithm by name.

while the run is not over:
    run the scheduler's next task (collect, evaluate, or one of the workflow's update hooks)
    at the end of a cycle: evaluate, write a row, save, each if it is due
"""

from __future__ import annotations

import contextlib
import errno
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from cadenza.base.failpoints import failpoint
from cadenza.base.garbage import collect_as_usual
from cadenza.base.resource_usage import Usage
from cadenza.base.streams import Streams
from cadenza.config.schedules import TimedSettings
from cadenza.config.schema import RunConfig
from cadenza.engine.clock import Clock, Every, Scores
from cadenza.engine.collector import Collected, Collector
from cadenza.engine.evaluator import Evaluation, Evaluator, returns_within
from cadenza.engine.events import Display, Evaluated, Event, Listener, Probe, Row, Saved, Update
from cadenza.engine.identity import identity_of
from cadenza.engine.scheduler import PhaseScheduler, Task
from cadenza.engine.signals import Signals
from cadenza.errors import ConfigError, DivergenceError, EnvironmentFault, StorageError
from cadenza.records.checkpoint import Checkpoints, fitting
from cadenza.records.codec import digest, first_not_finite
from cadenza.records.episodes import EpisodeLog
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import MetricBuffer, MetricsFile
from cadenza.types import EnvSpec, Mode, PhaseInfo, Sealing, Shortening, Stateful, Store, Updated, Workflow

SAVE_ATTEMPTS = 3  # failures in a row before a full or failing disk ends the run


@dataclass
class Orchestrator:
    """A run: its parts, put together by `build.py`, and the loop over them."""

    config: RunConfig
    decisions: dict[str, Any]
    spec: EnvSpec
    folder: RunFolder
    streams: Streams
    workflow: Workflow
    stores: dict[str, Store]
    scheduler: PhaseScheduler
    collector: Collector | None  # None: no phase collects
    evaluator: Evaluator
    checkpoints: Checkpoints
    metrics: MetricsFile
    episodes: EpisodeLog
    console: Display
    signals: Signals  # entered by the caller
    clock: Clock = field(default_factory=Clock)
    buffer: MetricBuffer = field(default_factory=MetricBuffer)
    scores: Scores = field(default_factory=Scores)
    failed_saves: int = 0
    listeners: list[Listener] = field(default_factory=list)  # no part of the run's state
    probe: Probe = field(default_factory=Probe)

    def __post_init__(self) -> None:
        self.triggers = triggers_of(self.config)
        self.schedules = TimedSettings(self.config.algorithm)
        self.usage = Usage(self.folder.path, self.decisions["device"])
        self.evaluator.report = self.console.note
        self._started = time.monotonic()
        self._saved_at = 0.0  # the clock's seconds

    def attach(self, probe: Probe) -> None:
        """Call the policy, the environments and every task through a probe from now on."""
        self.probe = probe
        self.evaluator.act = partial(probe.act, self.workflow.act)
        if self.collector is not None:
            self.collector.act = partial(probe.act, self.workflow.act)
            self.collector.step = partial(probe.step, self.collector.env.step)

    # the loop

    def run(self, until: Callable[[Clock], bool] = lambda clock: False) -> str | None:
        """Train until the budget, the last phase, early stopping or a signal; return the name of that signal.

        Where `until` returns true at the end of a cycle, save and leave, as if interrupted there.
        """
        return self.probe.run(partial(self._train, until))

    def _train(self, until: Callable[[Clock], bool]) -> str | None:
        collect_as_usual()
        self._started, self._saved_at = time.monotonic() - self.clock.seconds, self.clock.seconds
        self.usage.begin(self.clock.env_steps)
        try:
            return self._loop(until)
        except EnvironmentFault as problem:  # perhaps because it was given NaN as an action
            bad = first_not_finite(self.workflow.state_dict())
            if bad:
                raise self._divergence(f"{bad} is not finite") from problem
            raise

    def _loop(self, until: Callable[[Clock], bool]) -> str | None:
        if self.config.evaluation.at_start and not any(self.clock.position) and not self.clock.evaluations:
            self._evaluate_start()
        while not self._stop():
            if self.clock.cycle_ended:
                self._end_cycle()
            elif self.scheduler.at_boundary and until(self.clock):
                break
            elif self.finished:
                if self._conclude():
                    return None
            else:
                self._do_next()
                failpoint("run:task")
        self.save(insist=True)
        return self.signals.requested

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What every checkpoint of this process records about the run, computed at the first save."""
        return identity_of(self.config, self.scheduler.phases, self.decisions)

    @property
    def finished(self) -> bool:
        """Whether the budget is spent, the last phase over or the run stopped early, at the end of a cycle."""
        training, clock = self.config.training, self.clock
        spent = (training.max_timesteps is not None and clock.env_steps >= training.max_timesteps) or (
            training.max_updates is not None and clock.updates >= training.max_updates
        )
        return self.scheduler.over or ((spent or self.scores.stopped_early) and self.scheduler.at_boundary)

    @property
    def now(self) -> int:
        """The progress of the run in the unit of its budget."""
        return self.clock.env_steps if self.decisions["training.unit"] == "env_steps" else self.clock.updates

    def _stop(self) -> bool:
        return self.signals.requested is not None

    def _do_next(self) -> None:
        task = self.scheduler.next()
        assert task is not None
        if task.phase.name != self.clock.phase:
            self.clock.phase = task.phase.name
            with contextlib.suppress(OSError):  # only `cadenza top` needs it; a full disk is reported by the next save
                self.folder.update_status(phase=self._phase_facts())
        before = (self.scheduler.index, self.scheduler.cycles)
        if task.hook.name == "collect":
            self._collect(task)
        elif task.hook.name == "evaluate":
            evaluation = self._evaluate()
            if evaluation is None:
                return
            self.write_row(evaluation)
            self.scheduler.advance(1)
        else:
            self._update(task)
        if (self.scheduler.index, self.scheduler.cycles) != before:
            self.clock.cycles += 1
            self.clock.cycle_ended = True
        self._save_if_best()

    def _collect(self, task: Task) -> None:
        assert self.collector is not None
        mode = Mode(explore=True, phase=self._phase(task), streams=self.streams)
        requested, rest = task.amount, self._exact_rest()
        if rest == 0:  # an earlier hook of this cycle reached the budget
            self.scheduler.advance(requested)
            return
        if rest is not None:
            task = replace(task, amount=min(requested, rest))
        with self.usage.part("collect"):
            collect = partial(self.collector.collect, task, self.stores[task.buffer], mode, self._stop)
            collected: Collected = self.probe.task("collect", collect)
        self.clock.env_steps += collected.env_steps
        self.clock.vec_steps += collected.vec_steps
        self.clock.episodes += len(collected.episodes)
        for episode in collected.episodes:
            self.buffer.add({"collect/return_mean": episode.total, "collect/length_mean": episode.length})
            if episode.won is not None:
                self.buffer.add({"collect/win_rate": float(episode.won)})
            parts = returns_within(episode, self.collector.env.spec.groups)
            self.buffer.add({f"collect/{name}": value for name, value in parts.items()})
        self.episodes.add(collected.episodes)
        amount = len(collected.episodes) if task.hook.episodes else collected.env_steps
        if rest is not None and collected.env_steps >= rest:  # the budget ends here, and with it the hook
            amount = max(amount, requested)
        self.scheduler.advance(amount, env_steps=collected.env_steps)

    def _update(self, task: Task) -> None:
        store = self.stores[task.buffer]
        if not store.ready() and self._exact_rest() == 0 and isinstance(store, Shortening):
            store.shorten()
            if not store.ready():  # its steps would lie beyond the budget
                self.scheduler.advance(task.amount)
                return
        if not store.ready():
            where = f"phase {task.phase.name}: hook {task.hook.name}"
            raise ConfigError(f"{where} finds too little in buffer '{task.buffer}'; collect more before it")
        with self.usage.part("update"):
            phase = self._phase(task, due=task.amount)
            try:
                hook: Update = getattr(self.workflow, task.hook.name)
                result = self.probe.update(task.hook.name, hook, store, phase)
            except FloatingPointError as problem:
                raise self._divergence(str(problem)) from problem
        if not isinstance(result, Updated):
            where = f"{type(self.workflow).__name__}.{task.hook.name}"
            raise ConfigError(f"{where} must return Updated(updates, metrics), not {type(result).__name__}")
        self.buffer.add(result.metrics, result.calls)
        self.clock.updates += result.updates
        self.clock.offline_updates += result.updates if task.phase.type == "offline" else 0
        self.scheduler.advance(result.calls, updates=result.updates)

    def _exact_rest(self) -> int | None:
        """Return the env_steps up to the budget where `training.exact_budget` ends the run there, else None."""
        training = self.config.training
        if not training.exact_budget or training.max_timesteps is None:
            return None
        return max(0, training.max_timesteps - self.clock.env_steps)

    def _phase(self, task: Task | None, due: int = 1) -> PhaseInfo:
        """Return the progress when the task began: an interrupted one then continues under the same schedules."""
        scheduler, kind = self.scheduler, task.phase.type if task else "eval_only"
        counts = (scheduler.steps - scheduler.task_steps, scheduler.updates, scheduler.cycles)
        now = self.now - (scheduler.task_steps if self.decisions["training.unit"] == "env_steps" else 0)
        return PhaseInfo(self.clock.phase, kind, now, self.decisions["training.horizon"], *counts, due)

    # the end of a cycle, and of the run

    def _end_cycle(self) -> None:
        clock, triggers = self.clock, self.triggers
        clock.seconds = time.monotonic() - self._started
        evaluation = None
        if triggers["evaluate"].due(clock):
            if self.scores.evaluated_at != clock.position:
                evaluation = self._evaluate()
                if evaluation is None:
                    return  # a signal came: this cycle ends once more after a resume
            triggers["evaluate"].rearm(clock)
        clock.cycle_ended = False
        if triggers["log"].due(clock) or evaluation is not None:
            triggers["log"].rearm(clock)
            self.write_row(evaluation)
        self.console.update(self.now, self.scheduler.progress)
        if triggers["save"].due(clock) or self._long_unsaved():
            triggers["save"].rearm(clock)
            self.save()
        else:
            self._save_if_best()

    def _conclude(self) -> bool:
        """Make the last evaluation, row and checkpoint, unless this point has them; return False if interrupted."""
        evaluation = None
        if self.config.evaluation.at_end and self.scores.evaluated_at != self.clock.position:
            evaluation = self._evaluate()
            if evaluation is None:
                return False
        if evaluation is not None or self.scores.logged_at != self.clock.position:
            self.write_row(evaluation)
        self.save(insist=True)
        return True

    def _evaluate_start(self) -> None:
        """Evaluate before the first step, unless a signal interrupts it."""
        first = self.scheduler.next()
        self.clock.phase = first.phase.name if first else ""
        evaluation = self._evaluate()
        if evaluation is not None:
            self.write_row(evaluation)
            self._save_if_best()

    def _evaluate(self) -> Evaluation | None:
        """Evaluate the policy; return None if a signal interrupts it. A resumed run repeats the same evaluation."""
        with self.usage.part("evaluate"):
            phase = self._phase(self.scheduler.next())
            evaluate = partial(self.evaluator, self.clock.evaluations, phase, self._stop)
            evaluation: Evaluation = self.probe.task("evaluate", evaluate)
        if self._stop():
            return None
        self.clock.evaluations += 1
        for problem in evaluation.problems():
            self.console.note(f"evaluation: {problem}", warning=True)
        self.scores.latest = evaluation.metrics().get("eval/return_mean")
        self.scores.evaluated_at = self.clock.position
        lengths = tuple(episode.length for episode in evaluation.episodes)
        self.tell(Evaluated(self.clock.env_steps, tuple(evaluation.returns), lengths, self.clock.evaluations))
        return evaluation

    def write_row(self, evaluation: Evaluation | None) -> None:
        """Write a row of metrics; refuse one that holds NaN or infinity; stop early if the goal is reached."""
        clock = self.clock
        row: dict[str, Any] = {
            "env_steps": clock.env_steps,
            "updates": clock.updates,
            "episodes": clock.episodes,
            "cycles": clock.cycles,
            "phase": clock.phase,
            **self.buffer.means(),
            **(evaluation.metrics() if evaluation else {}),
            **self._scheduled_values(),
            "digest/weights": digest(self.workflow.state_dict()),
            "time/seconds": clock.seconds,
            **self.usage.take(clock.env_steps),
        }
        if self.collector is not None:
            row["digest/experience"] = f"{self.collector.checksum:08x}"
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise self._divergence(f"{name} became {value}")
        if not self.metrics.append(row):
            self.console.note(f"disk full: {self.metrics.pending} rows of metrics wait in memory", warning=True)
        self.scores.logged_at = clock.position
        self.console.update(self.now, self.scheduler.progress, row)
        stop = self.config.training.early_stop
        if stop is not None and stop.metric in row:
            goal = self.spec.return_threshold if stop.at_least == "solved" else stop.at_least
            self.scores.stopped_early |= goal is not None and row[stop.metric] >= goal
        self.tell(Row(MappingProxyType(row)))

    def _scheduled_values(self) -> dict[str, float]:
        """Return the present value of every number that is a schedule, by the name of its column."""
        values = self.schedules.values(self.now, self.decisions["training.horizon"])
        return {f"schedule/{key}": value for key, value in values.items()}

    def tell(self, event: Event) -> None:
        """Pass an event to every listener."""
        for listener in self.listeners:
            listener(event)

    def _divergence(self, what: str) -> DivergenceError:
        where = f"by step {self.clock.env_steps} (update {self.clock.updates})"
        next_step = f"`cadenza debug {self.folder.reference}` goes on from it and names the place"
        return DivergenceError(f"{what} {where}; the last good checkpoint is kept: {next_step}")

    # state

    def parts(self) -> dict[str, Stateful]:
        """Return every stateful part by its name in a checkpoint, which consists of their states."""
        parts: dict[str, Stateful] = {
            "clock": self.clock,
            "scheduler": self.scheduler,
            "workflow": self.workflow,
            "metrics": self.metrics,
            "buffer": self.buffer,
            "standing": self.scores,
            **{f"store.{name}": store for name, store in self.stores.items()},
            **{f"trigger.{name}": trigger for name, trigger in self.triggers.items()},
        }
        if self.collector is not None:
            parts |= {"environment": self.collector.env, "collector": self.collector}
        return parts | {"streams": self.streams}  # last, because restoring the others may draw random numbers

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore every part from a checkpoint's state; refuse a state that lacks any of it."""
        for name, part in self.parts().items():
            with fitting(name):
                missing = part.state_dict().keys() - state[name].keys()
                if missing:  # else the part would silently keep its initial state
                    raise KeyError(min(missing))
                part.load_state_dict(state[name])
        if self.collector is not None and self.collector.env.spec.restore == "restart":
            for store in self.stores.values():  # the environments start new episodes
                store.cut()
        self.episodes.drop_after(self.clock.env_steps)
        self._started = time.monotonic() - self.clock.seconds

    def save(self, insist: bool = False) -> None:
        """Save a checkpoint; it is `best` too if the evaluation at this point is the best so far.

        Two failures in a row of the disk are only noted, since the previous checkpoint is intact. With `insist`, where
        no later save follows, a failed one is repeated at once.
        """
        self.clock.seconds = self._saved_at = time.monotonic() - self._started
        bad = first_not_finite(self.workflow.state_dict())
        if bad:
            raise self._divergence(f"{bad} is not finite")
        while True:
            try:
                with self.usage.part("save"), self.folder.files.hold(), self.folder.checkpoints.hold():
                    saved: Saved = self.probe.task("save", self._write_checkpoint)
                self.failed_saves = 0
                break
            except OSError as problem:
                self.failed_saves += 1
                reason = f"cannot save in {self.folder.path}: {problem.strerror or problem}"
                reason += "; the last good checkpoint is kept" if self.folder.path.exists() else "; the folder is gone"
                if self.failed_saves >= SAVE_ATTEMPTS:
                    raise StorageError(reason) from problem
                self.console.note(f"{reason}, training goes on", warning=True)
                if not insist:
                    return
        self.tell(saved)

    def _long_unsaved(self) -> bool:
        """Return whether `checkpoint.every_minutes` have passed since the last save."""
        limit = 60 * self.config.checkpoint.every_minutes
        return 0 < limit <= self.clock.seconds - self._saved_at

    def _write_checkpoint(self) -> Saved:
        scores, improved = self.scores, self._improved()
        before = (scores.best, scores.best_at)
        try:
            if improved:
                scores.best, scores.best_at = scores.latest, self.clock.position
            self.episodes.seal(self.clock.env_steps)
            sealing = [store for store in self.stores.values() if isinstance(store, Sealing)]
            beside = {path: sha256 for store in sealing for path, sha256 in store.seal().items()}
            state = {name: part.state_dict() for name, part in self.parts().items()}
            if self.finished and self.metrics.pending:  # rows may wait in a checkpoint, but not in the last one
                raise OSError(errno.ENOSPC, "no room for metrics.jsonl")
            position = (self.clock.env_steps, self.clock.updates)
            name = self.checkpoints.save(state, *position, improved, beside, self.identity)
            self.write_status("running")
            return Saved((self.folder.checkpoints / name).path, improved)
        except OSError:
            scores.best, scores.best_at = before
            raise

    def _improved(self) -> bool:
        """Return whether the evaluation at this point is the best so far, and no checkpoint was saved for its score."""
        latest, best = self.scores.latest, self.scores.best
        if latest is None or self.scores.evaluated_at != self.clock.position:
            return False
        if best is None or (latest == best and self.scores.best_at == self.clock.position):
            return best is None
        # of equals the latest is the best; what one team wins another loses, so there the latest always is
        return latest >= best or self.spec.competitive

    def _save_if_best(self) -> None:
        if self._improved():
            self.save()

    def write_status(self, status: str, message: str = "") -> None:
        """Write the status and the progress of the run to status.json."""
        clock = self.clock
        self.folder.update_status(
            status=status,
            message=message,
            env_steps=clock.env_steps,
            updates=clock.updates,
            episodes=clock.episodes,
            seconds=round(clock.seconds, 3),
            best_return=self.scores.best,
            return_threshold=self.spec.return_threshold,
            reward_range=self.collector.env.reward_range if self.collector else None,
            phase=self._phase_facts(),
            **self.folder.whereabouts(),
            **{"eval/return_mean": self.scores.latest},
        )

    def _phase_facts(self) -> dict[str, Any]:
        """Return the phase for status.json, with its end in the run's counter of the phase's unit."""
        progress = self.scheduler.progress
        end = getattr(self.clock, progress.unit) - progress.amount + progress.total if progress.total else None
        return {"name": progress.phase, "last": progress.last, "unit": progress.unit, "end": end}


def triggers_of(config: RunConfig) -> dict[str, Every]:
    """Return the triggers of what is due at the end of a cycle."""
    evaluation, logging, checkpoint = config.evaluation, config.logging, config.checkpoint
    return {
        "evaluate": Every(evaluation.every_steps, evaluation.every_updates, after=evaluation.warmup_steps),
        "log": Every(logging.every_steps, logging.every_updates),
        "save": Every(checkpoint.every_steps, checkpoint.every_updates),
    }
