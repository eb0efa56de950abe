"""The loop of a sweep: request trials, train their runs, record the results, in a folder that survives kills."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from cadenza.base import atomic
from cadenza.base.files import SafePath
from cadenza.base.garbage import collect_as_usual
from cadenza.base.json_text import canonical
from cadenza.config.convert import to_dict
from cadenza.config.load import as_yaml, dump
from cadenza.config.schema import RunConfig
from cadenza.config.spec import read_file
from cadenza.engine.signals import EXIT_CODES, Signals
from cadenza.errors import (
    CadenzaError,
    CheckpointError,
    ConfigError,
    LockedError,
    MissingExtraError,
    StorageError,
    nearest,
)
from cadenza.lab.sweeps.jobs import Backend, Job
from cadenza.lab.sweeps.journal import Journal, Trial
from cadenza.lab.sweeps.sweep_file import Pruning
from cadenza.lab.sweeps.sweep_plan import VARIABLE, Plan, check_with_specs
from cadenza.records import metrics
from cadenza.records.folder import RunFolder, new_id
from cadenza.types import EnvSpec

FOLDER = "sweeps"  # beside the runs; without a config.yaml it is not listed as a run
LOSSES = 3  # a trial fails when the process of one of its runs has been killed so many times
TICK = 0.05  # seconds between two polls
FATAL = {kind.exit_code: kind for kind in (MissingExtraError, LockedError, StorageError)}  # these end the sweep itself


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep on disk."""

    path: Path

    @property
    def files(self) -> SafePath:
        """The folder as a `SafePath`, through which its files are opened."""
        return SafePath(self.path)

    @property
    def plan(self) -> SafePath:
        return self.files / "sweep.yaml"

    @property
    def journal(self) -> SafePath:
        return self.files / "journal.jsonl"

    @property
    def report(self) -> SafePath:
        return self.files / "report.md"

    @property
    def best(self) -> SafePath:
        return self.files / "best.yaml"

    def config(self, trial: int, seed: int) -> SafePath:
        """Return the path of the config of one run."""
        return self.files / "configs" / f"{trial:04d}-s{seed}.yaml"

    def log(self, trial: int, seed: int) -> SafePath:
        """Return the path of the output of one run."""
        return self.files / "logs" / f"{trial:04d}-s{seed}.log"


def predecessor(plan: Plan, folder: SweepFolder) -> str:
    """Return a note on the newest other sweep of the same name and what has changed since; empty without one."""
    others = [path.parent for path in folder.path.parent.glob("*/journal.jsonl") if path.parent != folder.path]
    same_name = [path for path in others if path.name.rpartition("-")[0] == plan.id.rpartition("-")[0]]
    if not same_name:
        return ""
    newest = max(same_name, key=lambda path: (path / "journal.jsonl").stat().st_mtime)
    stored = SweepFolder(newest).plan
    before, now = read_file(stored) if stored.exists() else {}, to_dict(plan.file)
    changed = [key for key in now if key in before and before[key] != now[key] and key not in VARIABLE]
    why = f"changed: {', '.join(changed)}" if changed else "its base has changed"
    return f"a new sweep beside {newest.name} ({why}), which stays as it is"


def create_folder(plan: Plan, root: Path) -> SweepFolder:
    """Return the folder of a sweep; create it, with a copy of the sweep file, if it is missing."""
    folder = SweepFolder(root / FOLDER / plan.id)
    folder.path.mkdir(parents=True, exist_ok=True)
    for part in ("configs", "logs"):
        (folder.files / part).mkdir()
    atomic.write_text(folder.plan, as_yaml(to_dict(plan.file)))
    return folder


@dataclass
class Sweep:
    """A sweep in progress.

    Its state is the journal and the runs, so that it can be killed at any time and continued by starting it again.
    Each trial has one run per seed. All runs of a trial train to its next pruning point (rung), are judged there
    together, and then continue or end.
    """

    plan: Plan
    root: Path
    folder: SweepFolder
    journal: Journal
    backend: Backend
    on_end: Callable[[Trial], None] = lambda trial: None  # called with each trial that is over
    warn: Callable[[str], None] = lambda text: None
    _running: set[tuple[int, int]] = field(default_factory=set)  # (trial, seed), as in the next two
    _losses: dict[tuple[int, int], int] = field(default_factory=dict)
    _reached: dict[tuple[int, int], int] = field(default_factory=dict)  # the furthest rung each seed has reached
    _configs: dict[int, RunConfig] = field(default_factory=dict)  # of each trial's first seed
    _specs: dict[str, EnvSpec] = field(default_factory=dict)

    def run(self, signals: Signals) -> None:
        """Train until all trials are over, or until a signal; then wait until every run has saved."""
        collect_as_usual()
        while True:
            while not signals.requested and len(self._running) < self.backend.slots:
                job = self._next_job()
                if job is None or signals.requested:  # a signal may have arrived meanwhile
                    break
                self._running.add((job.trial, job.seed))
                self.backend.start(job)
            if not self._running:
                return
            for job, code in self.backend.poll():
                self._running.discard((job.trial, job.seed))
                self._handle_exit(job, code, stopping=signals.requested is not None)
            time.sleep(TICK)

    # the next job

    def _next_job(self) -> Job | None:
        """Return a seed of an open trial that has not reached the trial's rung, else one of a new trial, else None."""
        while True:
            for trial in self.journal.open:
                if not trial.runs and not self._check_new(trial):
                    continue
                for seed in self.plan.seeds:
                    waiting = (trial.number, seed) not in self._running and not self._has_reached(trial, seed)
                    if waiting and trial.state == "open":
                        return self._job(trial, seed)
            number = len(self.journal.trials) + 1
            if number > self.plan.total:
                return None
            self._request_trial(number)

    def _request_trial(self, number: int) -> None:
        if self.plan.file.method == "tpe":
            from cadenza.lab.sweeps.tune import suggest

            params = suggest(self.plan, self.journal, number)
        else:
            params = self.plan.predetermined[number - 1]
        self.journal.add_trial(number, params)

    def _check_new(self, trial: Trial) -> bool:
        """Return whether to train a new trial; end it if its config is invalid or an earlier trial is the same."""
        twin = self._twin(trial)
        if twin is not None:
            if twin.state != "open":
                self._copy_result(trial, twin)
            return False
        try:
            check_with_specs(self._config(trial), self._specs)
        except ConfigError as problem:  # predetermined trials were checked before the sweep began
            self._fail(trial, str(problem))
            return False
        return True

    def _twin(self, trial: Trial) -> Trial | None:
        """Return an earlier trial of the same values that did not fail: its runs would be bit-identical."""
        for other in self.journal.trials.values():
            if other.number >= trial.number:
                return None
            same = other.params == trial.params and canonical(other.params) == canonical(trial.params)  # true is not 1
            if same and other.state != "failed":
                return other
        return None

    def _config(self, trial: Trial) -> RunConfig:
        if trial.number not in self._configs:
            self._configs[trial.number] = self.plan.config(trial.number, trial.params, self.plan.seeds[0])
        return self._configs[trial.number]

    def _job(self, trial: Trial, seed: int) -> Job:
        path, config = self.folder.config(trial.number, seed), replace(self._config(trial), seed=seed)
        if seed not in trial.runs or not path.exists():
            atomic.write_text(path, dump(config))
        if seed not in trial.runs:
            self.journal.add_run(trial, seed, self._unused_id(new_id(config)))
        run, log = trial.runs[seed], self.folder.log(trial.number, seed)
        return Job(trial.number, seed, self.root, run, path, log, self.plan.file.objective.metric, self._target(trial))

    def _unused_id(self, run: str) -> str:
        """Return the id, made longer if it is in use: ids end in four random digits and can coincide."""
        used = {other for trial in self.journal.trials.values() for other in trial.runs.values()}
        while run in used or (self.root / run).exists():
            run = f"{run}x"
        return run

    def _target(self, trial: Trial) -> tuple[str, int] | None:
        """Return the next rung of a trial, as a unit and an amount; None if only the end of the budget remains."""
        rungs = self.plan.rungs(self._config(trial))
        return rungs[len(trial.rungs)] if len(trial.rungs) < len(rungs) else None

    def _has_reached(self, trial: Trial, seed: int) -> bool:
        """Return whether the run of a seed has reached the next rung of its trial."""
        key, rung = (trial.number, seed), len(trial.rungs)
        if self._reached.get(key, -1) < rung and seed in trial.runs and key not in self._losses:
            self._inspect_run(trial, seed)
        return self._reached.get(key, -1) >= len(trial.rungs)

    def _inspect_run(self, trial: Trial, seed: int) -> None:
        """Read from its folder how far a run has come: to its end, or to the next rung."""
        folder, target = RunFolder(self.root / trial.runs[seed]), self._target(trial)
        state = folder.state() if folder.status.exists() else ""
        if state == "finished":
            self._set_reached(trial, seed, len(self.plan.rungs(self._config(trial))))
        elif state == "interrupted" and target is not None:
            with suppress(CheckpointError):  # damaged rows: resuming the run will report them
                unit, amount = target
                rows = metrics.read(folder.metrics)
                if any(row.get(self.plan.file.objective.metric) is not None and row[unit] >= amount for row in rows):
                    self._set_reached(trial, seed, len(trial.rungs))

    # results

    def _handle_exit(self, job: Job, code: int, stopping: bool) -> None:
        """Record the result of a job whose process has exited."""
        trial, key = self.journal.trials[job.trial], (job.trial, job.seed)
        if trial.state != "open":  # another seed of it has failed meanwhile
            return
        if code == 0:
            self._losses.pop(key, None)
            rung = len(trial.rungs)
            self._inspect_run(trial, job.seed)
            if self._reached.get(key, -1) < rung:
                self._fail(trial, f"seed {job.seed}: its process ended before the run did (see {job.log})")
        elif code in FATAL:
            raise FATAL[code](_last_error(job.log))
        elif stopping:  # the signal may be the cause: continuing the sweep will show
            return
        elif code < 0 or code in EXIT_CODES.values():  # killed, or stopped by somebody else
            self._losses[key] = self._losses.get(key, 0) + 1
            if self._losses[key] >= LOSSES:
                self._fail(trial, f"seed {job.seed}: its process was killed {LOSSES} times (out of memory?)")
            else:
                self.warn(
                    f"trial {job.trial}, seed {job.seed}: its process was killed; continuing from its last checkpoint"
                )
        else:
            self._fail(trial, f"seed {job.seed}: {_last_error(job.log)}")

    def _set_reached(self, trial: Trial, seed: int, rung: int) -> None:
        """Record how far a seed is, and judge the trial at each rung that all of its seeds have reached."""
        self._reached[trial.number, seed] = rung
        while trial.state == "open" and all(
            self._reached.get((trial.number, other), -1) >= len(trial.rungs) for other in self.plan.seeds
        ):
            self._judge(trial)

    def _judge(self, trial: Trial) -> None:
        """End a trial, prune it, or let it continue to its next rung."""
        target = self._target(trial)
        try:
            values = {seed: self._value(trial, seed, target) for seed in self.plan.seeds}
        except CheckpointError as problem:
            self._fail(trial, str(problem))
            return
        value = self.plan.file.objective.of_seeds(list(values.values()))
        if target is None:
            self.journal.end_trial(trial, "finished", value, values)
        elif self._is_behind(len(trial.rungs), value):
            self.journal.end_trial(trial, "pruned", value, values, f"behind the median at {target[0]} {target[1]}")
        else:
            self.journal.add_rung(trial, value)
            return
        self.on_end(trial)

    def _is_behind(self, rung: int, value: float) -> bool:
        """Return whether a value is worse than the median of the trials at this rung, once there are enough."""
        pruning, objective = self.plan.file.pruning, self.plan.file.objective
        assert isinstance(pruning, Pruning)
        others = [trial.rungs[rung] for trial in self.journal.trials.values() if len(trial.rungs) > rung]
        return len(others) >= pruning.warmup_trials and objective.better(median(others), value)

    def _value(self, trial: Trial, seed: int, target: tuple[str, int] | None) -> float:
        folder, objective = RunFolder(self.root / trial.runs[seed]), self.plan.file.objective
        rows = metrics.read(folder.metrics)
        value = objective.of_run(rows, target)
        if value is None:
            if not rows:
                raise CheckpointError(f"seed {seed}: {folder.metrics} is gone, and the result of the run with it")
            hint = nearest(objective.metric, [name for name in metrics.names(rows) if "/" in name])
            raise CheckpointError(f"seed {seed}: objective.metric={objective.metric} was never measured{hint}")
        return value

    def _fail(self, trial: Trial, message: str) -> None:
        self.journal.end_trial(trial, "failed", None, message=message)
        self.on_end(trial)

    def _copy_result(self, trial: Trial, twin: Trial) -> None:
        """End a trial with the results of an earlier one of the same values."""
        rungs = twin.rungs[:-1] if twin.state == "pruned" else twin.rungs
        for value in rungs[len(trial.rungs) :]:
            self.journal.add_rung(trial, value)
        self.journal.end_trial(trial, twin.state, twin.value, twin.values, f"the same as trial {twin.number}")
        self.on_end(trial)


def _last_error(log: SafePath) -> str:
    """Return the last error message in the output of a job."""
    lines = [line.partition("error: ")[2] for line in log.read_text(errors="replace").splitlines() if "error: " in line]
    return lines[-1] if lines else f"its process ended without an error message (see {log})"


def conclude(sweep: Sweep) -> Trial | None:
    """Write the best trial's config as a file for `cadenza train`; return the trial, or None if none has finished.

    A sweep that is over without a finished trial is an error.
    """
    ranked = sweep.journal.ranked(sweep.plan.file.objective.sign)
    if not ranked:
        if sweep.journal.trials and len(sweep.journal.over) >= sweep.plan.total:
            first, report = sweep.journal.over[0], sweep.folder.report
            raise CadenzaError(f"no trial has finished; trial {first.number}: {first.message} (all: {report})")
        return None
    best = sweep.plan.resolver.config({**sweep.plan.space.fixed, **ranked[0].params})
    atomic.write_text(sweep.folder.best, dump(best))
    return ranked[0]
