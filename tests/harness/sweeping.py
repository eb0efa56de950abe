"""Sweeps whose runs train in this process one after the other, without the time to start processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadenza.config.convert import build
from cadenza.engine.signals import Signals
from cadenza.errors import CadenzaError
from cadenza.lab.sweeps.jobs import Job, train
from cadenza.lab.sweeps.journal import Journal, Trial
from cadenza.lab.sweeps.sweep_file import SweepFile
from cadenza.lab.sweeps.sweep_loop import Sweep, create_folder
from cadenza.lab.sweeps.sweep_plan import Plan, plan
from cadenza.records.folder import RunFolder

# Four cycles with an evaluation each.
TINY = {
    "algorithm.n_steps": 8,
    "algorithm.n_epochs": 1,
    "environment.num_envs": 2,
    "evaluation.episodes": 2,
    "evaluation.num_envs": 2,
    "evaluation.every_steps": 16,
    "checkpoint.every_steps": 0,
    "logging.every_steps": 16,
    "logging.episodes": False,
}
BUDGET = 64


@dataclass
class InProcess:
    slots: int = 1
    jobs: list[Job] = field(default_factory=list)
    codes: list[tuple[Job, int]] = field(default_factory=list)

    def start(self, job: Job) -> None:
        self.jobs.append(job)
        self.codes.append((job, self.exit_code(job)))

    def exit_code(self, job: Job) -> int:
        try:
            train(job.config.path, job.root, job.run, job.until, job.metric)
        except CadenzaError as problem:
            job.log.path.write_text(f"error: {problem}\n")
            return problem.exit_code
        return 0

    def poll(self) -> Iterator[tuple[Job, int]]:
        while self.codes:
            yield self.codes.pop(0)

    def stop(self, number: int) -> None: ...

    def close(self) -> None: ...


def make(base: str = "CartPole-v1:ppo", **settings: Any) -> Plan:
    settings["sweep"] = {**TINY, **settings["sweep"]}
    return plan(build(SweepFile, {"base": base, "name": "tried", "max_timesteps": BUDGET, **settings}))


def run(made: Plan, root: Path, engine: InProcess | None = None) -> list[Trial]:
    """Run a sweep to its end; return its trials."""
    folder = create_folder(made, root)
    journal = Journal(folder.journal)
    try:
        Sweep(made, root, folder, journal, engine or InProcess()).run(Signals())
    finally:
        journal.close()
    return list(journal.trials.values())


def outcomes(trials: Sequence[Trial]) -> list[Any]:
    """Return everything in which two equal sweeps agree: all but the names of the runs."""
    return [(trial.number, trial.params, trial.state, trial.value, trial.values, trial.rungs) for trial in trials]


def folders(trials: Sequence[Trial], root: Path) -> list[RunFolder]:
    return [RunFolder(root / run) for trial in trials for run in trial.runs.values()]
