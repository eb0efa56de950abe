"""The loop of a sweep: asks for trials, has their runs trained, tells what came of them, in a folder that survives."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from cadenza.base import atomic
from cadenza.base.files import SafePath
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
from cadenza.lab.sweeps.jobs import Engine, Job
from cadenza.lab.sweeps.journal import Journal, Trial
from cadenza.lab.sweeps.sweep_file import Pruning
from cadenza.lab.sweeps.sweep_plan import VARIABLE, Plan, check_known
from cadenza.records import metrics
from cadenza.records.folder import RunFolder, new_id
from cadenza.types import EnvSpec

FOLDER = "sweeps"  # beside the runs; it has no config.yaml, so it is none
LOSSES = 3  # how often a run's process may be lost before its trial has failed
TICK = 0.05
FATAL = {kind.exit_code: kind for kind in (MissingExtraError, LockedError, StorageError)}  # no fault of the trial's


@dataclass(frozen=True)
class SweepFolder:
    """A sweep on disk."""

    path: Path

    @property
    def files(self) -> SafePath:
        """What is in it, to be opened."""
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
        return self.files / "configs" / f"{trial:04d}-s{seed}.yaml"

    def log(self, trial: int, seed: int) -> SafePath:
        return self.files / "logs" / f"{trial:04d}-s{seed}.log"


def predecessor(plan: Plan, folder: SweepFolder) -> str:
    """What a new sweep must say where one of its name is there already: the newest such, and what has changed."""
    others = [path.parent for path in folder.path.parent.glob("*/journal.jsonl") if path.parent != folder.path]
    named = [path for path in others if path.name.rpartition("-")[0] == plan.id.rpartition("-")[0]]
    if not named:
        return ""
    old = max(named, key=lambda path: (path / "journal.jsonl").stat().st_mtime)
    kept = SweepFolder(old).plan
    before, now = read_file(kept) if kept.exists() else {}, to_dict(plan.file)
    changed = [key for key in now if key in before and before[key] != now[key] and key not in VARIABLE]
    why = f"changed: {', '.join(changed)}" if changed else "its base has changed"
    return f"a new sweep beside {old.name} ({why}), which stays as it is"


def folder_of(plan: Plan, root: Path) -> SweepFolder:
    """The sweep's folder, made with a copy of what it is if it is new."""
    folder = SweepFolder(root / FOLDER / plan.id)
    folder.path.mkdir(parents=True, exist_ok=True)
    for part in ("configs", "logs"):
        (folder.files / part).mkdir()
    atomic.write_text(folder.plan, as_yaml(to_dict(plan.file)))
    return folder


@dataclass
class Sweep:
    """A plan under way. Its whole state is the journal and the runs; whoever starts it again goes on."""

    plan: Plan
    root: Path
    folder: SweepFolder
    journal: Journal
    engine: Engine
    said: Callable[[Trial], None] = lambda trial: None  # told of each trial that is over
    warn: Callable[[str], None] = lambda text: None
    _busy: set[tuple[int, int]] = field(default_factory=set)
    _lost: dict[tuple[int, int], int] = field(default_factory=dict)
    _arrived: dict[tuple[int, int], int] = field(default_factory=dict)  # targets that a seed has come to
    _configs: dict[int, RunConfig] = field(default_factory=dict)  # of the first seed
    _specs: dict[str, EnvSpec] = field(default_factory=dict)

    def run(self, signals: Signals) -> None:
        """To the end, or until a signal: then every run has saved and nothing is under way."""
        while True:
            while not signals.requested and len(self._busy) < self.engine.slots:
                job = self._next()
                if job is None or signals.requested:  # one may have come while a trial was asked for
                    break
                self._busy.add((job.trial, job.seed))
                self.engine.start(job)
            if not self._busy:
                return
            for job, code in self.engine.ended():
                self._busy.discard((job.trial, job.seed))
                self._take(job, code, stopping=signals.requested is not None)
            time.sleep(TICK)

    # what comes next

    def _next(self) -> Job | None:
        """A seed of an open trial that is not where it should be; else one of a new trial; else nothing."""
        while True:
            for trial in self.journal.open:
                if not trial.runs and not self._is_new(trial):
                    continue
                for seed in self.plan.seeds:
                    idle = (trial.number, seed) not in self._busy and not self._there(trial, seed)
                    if idle and trial.state == "open":
                        return self._job(trial, seed)
            number = len(self.journal.trials) + 1
            if number > self.plan.total:
                return None
            self._ask(number)

    def _ask(self, number: int) -> None:
        if self.plan.file.method == "tpe":
            from cadenza.lab.sweeps.tune import suggest

            params = suggest(self.plan, self.journal, number)
        else:
            params = self.plan.known[number - 1]
        self.journal.asked(number, params)

    def _is_new(self, trial: Trial) -> bool:
        """Whether there is anything to train: it is possible, and no other trial tries the same."""
        twin = self._twin(trial)
        if twin is not None:
            if twin.state != "open":
                self._tell_again(trial, twin)
            return False
        try:
            check_known(self._config(trial), self._specs)
        except ConfigError as problem:  # of trials known beforehand none gets here
            self._tell(trial, str(problem))
            return False
        return True

    def _twin(self, trial: Trial) -> Trial | None:
        """An earlier trial of the same values: its runs would be the same to the bit."""
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
            self.journal.started(trial, seed, self._unused(new_id(config)))
        run, log = trial.runs[seed], self.folder.log(trial.number, seed)
        return Job(trial.number, seed, self.root, run, path, log, self.plan.file.objective.metric, self._target(trial))

    def _unused(self, run: str) -> str:
        """Ids end in four random digits: two runs of one second may have drawn the same."""
        taken = {known for trial in self.journal.trials.values() for known in trial.runs.values()}
        while run in taken or (self.root / run).exists():
            run = f"{run}x"
        return run

    def _target(self, trial: Trial) -> tuple[str, int] | None:
        rungs = self.plan.rungs(self._config(trial))
        return rungs[len(trial.rungs)] if len(trial.rungs) < len(rungs) else None

    def _there(self, trial: Trial, seed: int) -> bool:
        """Whether a seed's run has come to where its trial stands, as far as was seen or its folder tells."""
        key = (trial.number, seed)
        if self._arrived.get(key, -1) < len(trial.rungs) and seed in trial.runs and key not in self._lost:
            self._look(trial, seed)
        return self._arrived.get(key, -1) >= len(trial.rungs)

    def _look(self, trial: Trial, seed: int) -> None:
        """What a sweep that begins again can see of a run: it is over, or its rows go far enough."""
        folder, target = RunFolder(self.root / trial.runs[seed]), self._target(trial)
        state = folder.state() if folder.status.exists() else ""
        if state == "finished":
            self._arrive(trial, seed, len(self.plan.rungs(self._config(trial))))
        elif state == "interrupted" and target is not None:
            with suppress(CheckpointError):  # damaged rows lead nowhere: the run itself has to say what is wrong
                rows = metrics.read(folder.metrics)
                reached = [row for row in rows if row.get(self.plan.file.objective.metric) is not None]
                if any(row[target[0]] >= target[1] for row in reached):
                    self._arrive(trial, seed, len(trial.rungs))

    # what came of it

    def _take(self, job: Job, code: int, stopping: bool) -> None:
        trial, key = self.journal.trials[job.trial], (job.trial, job.seed)
        if trial.state != "open":  # another seed of it has failed meanwhile
            return
        if code == 0:
            self._lost.pop(key, None)
            rung = len(trial.rungs)
            self._look(trial, job.seed)
            if self._arrived.get(key, -1) < rung:
                self._tell(trial, f"seed {job.seed}: its process ended before the run did (see {job.log})")
        elif code in FATAL:
            raise FATAL[code](_last_error(job.log))
        elif stopping:  # whatever it died of, it may have been the signal: going on will tell
            return
        elif code < 0 or code in EXIT_CODES.values():  # killed, or told to stop by someone else
            self._lost[key] = self._lost.get(key, 0) + 1
            if self._lost[key] >= LOSSES:
                self._tell(trial, f"seed {job.seed}: its process was killed {LOSSES} times (out of memory?)")
            else:
                self.warn(
                    f"trial {job.trial}, seed {job.seed}: its process was killed; going on from its last checkpoint"
                )
        else:
            self._tell(trial, f"seed {job.seed}: {_last_error(job.log)}")

    def _arrive(self, trial: Trial, seed: int, target: int) -> None:
        self._arrived[trial.number, seed] = target
        while trial.state == "open" and all(
            self._arrived.get((trial.number, one), -1) >= len(trial.rungs) for one in self.plan.seeds
        ):
            self._judge(trial)

    def _judge(self, trial: Trial) -> None:
        """All seeds are at the same point: the trial is over, ended, or may go on to the next."""
        target = self._target(trial)
        try:
            values = {seed: self._value(trial, seed, target) for seed in self.plan.seeds}
        except CheckpointError as problem:
            self._tell(trial, str(problem))
            return
        value = self.plan.file.objective.of_seeds(list(values.values()))
        if target is None:
            self.journal.told(trial, "finished", value, values)
            self.said(trial)
            return
        if self._falls_behind(len(trial.rungs), value):
            self.journal.told(trial, "pruned", value, values, f"behind the median at {target[0]} {target[1]}")
            self.said(trial)
        else:
            self.journal.rung(trial, value)

    def _falls_behind(self, rung: int, value: float) -> bool:
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
                raise CheckpointError(f"seed {seed}: {folder.metrics} is gone, and with it what the run came to")
            hint = nearest(objective.metric, [name for name in metrics.names(rows) if "/" in name])
            raise CheckpointError(f"seed {seed}: objective.metric={objective.metric} was never measured{hint}")
        return value

    def _tell(self, trial: Trial, failure: str) -> None:
        self.journal.told(trial, "failed", None, message=failure)
        self.said(trial)

    def _tell_again(self, trial: Trial, twin: Trial) -> None:
        rungs = twin.rungs[:-1] if twin.state == "pruned" else twin.rungs
        for value in rungs[len(trial.rungs) :]:
            self.journal.rung(trial, value)
        self.journal.told(trial, twin.state, twin.value, twin.values, f"the same as trial {twin.number}")
        self.said(trial)


def _last_error(log: SafePath) -> str:
    """What a job said last before it ended."""
    lines = [line.partition("error: ")[2] for line in log.read_text(errors="replace").splitlines() if "error: " in line]
    return lines[-1] if lines else f"its process ended without a word (see {log})"


def conclude(sweep: Sweep) -> Trial | None:
    """The best trial, and its config as a file that `cadenza train` takes; nothing where none has finished."""
    ranked = sweep.journal.ranked(sweep.plan.file.objective.sign)
    if not ranked:
        if sweep.journal.trials and len(sweep.journal.over) >= sweep.plan.total:
            first, report = sweep.journal.over[0], sweep.folder.report
            raise CadenzaError(f"no trial came to its end; trial {first.number}: {first.message} (all: {report})")
        return None
    best = sweep.plan.resolver.config({**sweep.plan.space.fixed, **ranked[0].params})
    atomic.write_text(sweep.folder.best, dump(best))
    return ranked[0]
