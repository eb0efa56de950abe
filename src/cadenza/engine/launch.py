"""The life of a run, new or resumed, from its config or its folder to its end.

Torch is imported only after the config was checked, so that mistakes are reported at once.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from cadenza.base import blas, owned_files, text
from cadenza.base.files import screen
from cadenza.base.formatting import number
from cadenza.config.convert import build, to_dict
from cadenza.config.debugger import attached, note, with_one_environment
from cadenza.config.load import dump
from cadenza.config.schedules import brief, schedules_in, value_at
from cadenza.config.schema import MINARI, RunConfig, TrainingConfig
from cadenza.engine.advice import (
    end_note,
    no_updates_warning,
    refuse_several_processes,
    threads_note,
    time_limit_warning,
)
from cadenza.engine.events import Attachments, Display, Ended, Started
from cadenza.engine.signals import STOP, Signals
from cadenza.envs.catalog import FirstEnvironment
from cadenza.errors import ConfigError, EnvironmentFault, explanation
from cadenza.records.folder import RunFolder, create
from cadenza.records.lock import RunLock
from cadenza.types import EnvSpec

if TYPE_CHECKING:
    from cadenza.engine.build import Assembly
    from cadenza.engine.orchestrator import Orchestrator

BUDGET = ("max_timesteps", "max_updates")


def checked_environment(config: RunConfig) -> FirstEnvironment:
    """Make an environment, and refuse what it or the algorithm cannot do, before anything heavy is imported."""
    first = FirstEnvironment(config.environment)
    try:
        config.algorithm.check(first.spec, config.environment.num_envs)
        stop = config.training.early_stop
        if stop is not None and stop.at_least == "solved" and first.spec.return_threshold is None:
            reason = f"{first.spec.id} names no such return; give a number"
            raise ConfigError(f"training.early_stop.at_least=solved: {reason}")
    except BaseException:
        first.close()
        raise
    return first


def check(config: RunConfig) -> EnvSpec:
    """Return the spec of a config's environment; refuse what the environment or the algorithm cannot do."""
    with checked_environment(config) as first:
        return first.spec


def with_absolute_path(config: RunConfig) -> RunConfig:
    """Make the path of the dataset absolute: `verify` and `resume` may be called in another folder."""
    dataset = config.training.dataset
    if dataset is None or dataset.startswith(MINARI):
        return config
    return replace(config, training=replace(config.training, dataset=str(Path(dataset).expanduser().absolute())))


def train(
    config: RunConfig,
    root: Path,
    command: list[str],
    attachments: Attachments,
    notes: Iterable[str] = (),
    run_id: str | None = None,
) -> Result:
    """Train a new run to its end. Its display begins with `notes`; its id is made up unless `run_id` names one."""
    refuse_several_processes(os.environ)
    decisions: dict[str, Any] = {}
    config = with_absolute_path(config)
    with checked_environment(config) as first, ExitStack() as stack:
        attachments.check(config)
        if (debugger := attached()) is not None:
            config = with_one_environment(config, first.spec)
            decisions["debugger"] = {"value": debugger, "reason": note(debugger)}
        from cadenza.engine.build import assemble, build
        from cadenza.envs.catalog import facts

        assembly = assemble(config, first.spec, decisions, first=first)
        stack.callback(assembly.close)
        signals = stack.enter_context(Signals())
        folder = create(root, config, command, run_id, facts(first.spec))
        stack.enter_context(RunLock(folder.path))
        run = build(assembly, folder, open_display(attachments, assembly, folder), signals)
        attachments.attach(run)
        record_budget(run)
        attachments.listen(run)
        for line in filter(None, (*notes, threads_note(config, decisions))):
            run.console.note(line)
        if config.runtime.blas in (blas.AUTO, blas.FASTEST) and (remark := blas.remark()):
            run.console.note(f"NumPy computes with {blas.loaded()} kernels{remark}")
        warnings = (
            no_updates_warning(config, assembly.phases),
            time_limit_warning(config, first.spec),
        )
        for warning in filter(None, warnings):
            run.console.note(warning, warning=True)
        if debugger is not None:
            run.console.note(note(debugger), warning=True)
        return execute(run, attachments, first=True)


def resume(
    folder: RunFolder,
    attachments: Attachments,
    max_timesteps: int | None = None,
    max_updates: int | None = None,
    device: str | None = None,
    trust: bool = False,
    accept_changes: bool = False,
) -> Result:
    """Continue a run from its newest valid checkpoint to its end, as if it had never stopped.

    Changes made by hand since then are refused, unless `accept_changes`.
    """
    refuse_several_processes(os.environ)
    if folder.published is not None:
        remedy = "`cadenza train SPEC --init-from hf:user/repo` starts a new run from them"
        raise ConfigError(f"{folder.id}: a published run has weights only ({remedy})")
    screen(folder.path)
    for place in (folder.episodes, *(folder.replay / name for name in folder.replay.folders("*"))):
        owned_files.check(place)
    with RunLock(folder.path), Signals() as signals, ExitStack() as stack:
        config = folder.read_config(trust, accept_changes, training=True)
        decisions = folder.read_decisions(accept_changes)
        longer = with_budget(config, max_timesteps, max_updates)
        first = stack.enter_context(checked_environment(longer))
        attachments.check(longer)
        from cadenza.engine.build import assemble, build
        from cadenza.engine.resumption import edited_files, extend, move, record_changes, recorded_budget, restore
        from cadenza.records.live_runs import latest, tail

        edited, moved_from = edited_files(folder), None
        if device is not None:
            longer, moved_from = replace(longer, device=device), move(decisions, device)
        fresh = not any(folder.checkpoints.glob("step-*"))
        assembly = assemble(longer, first.spec, decisions, fresh, first)
        stack.callback(assembly.close)
        console = open_display(attachments, assembly, folder)
        if moved_from is not None:
            change = f"device changes from {moved_from} to {device}"
            console.note(f"{change}: from here on no longer bit for bit the same", warning=True)
        run = build(assembly, folder, console, signals)
        attachments.attach(run)
        reached = int(latest(tail(folder.metrics), run.decisions["training.unit"]) or 0)  # by the rows, before the cut
        restored, changes = restore(run, accept_changes, edited)
        extended, had_concluded = extend(run, recorded_budget(config, decisions))
        record_changes(run, changes, moved_from)
        if longer != config or "config.yaml" in edited:
            folder.change_config(dump(longer))
        note_outlook(run)
        record_budget(run, had_concluded)
        attachments.listen(run)
        return execute(run, attachments, not restored, not restored or extended or bool(changes), reached)


def with_budget(config: RunConfig, max_timesteps: int | None, max_updates: int | None) -> RunConfig:
    """Return the config with other budgets; None keeps the one it has."""
    budgets = {"max_timesteps": max_timesteps, "max_updates": max_updates}
    changes = {key: budget for key, budget in budgets.items() if budget is not None}
    training = build(TrainingConfig, {**to_dict(config.training), **changes}, "training")
    return replace(config, training=training)


def record_budget(run: Orchestrator, had_concluded: bool = False) -> None:
    """Record from which cycle on the budget is in force, so that `verify` can repeat the run."""
    training = run.config.training
    entry = {key: getattr(training, key) for key in BUDGET}
    budgets = run.decisions.setdefault("training.budgets", [])
    if not budgets or {key: budgets[-1][key] for key in entry} != entry:
        budgets.append({**entry, "from_cycle": run.clock.cycles, "concluded": had_concluded})
    run.folder.write_decisions(run.decisions)


def note_outlook(run: Orchestrator) -> None:
    """Say so if a resumed run has nothing left to do, or if its schedules are over."""
    if run.finished and not run.scheduler.over:
        flag = "--max-timesteps" if run.decisions["training.unit"] == "env_steps" else "--max-updates"
        run.console.note(f"the run has finished: {flag} N gives it a longer budget")
    elif run.now >= run.decisions["training.horizon"]:
        horizon = run.decisions["training.horizon"]
        values = [
            f"{key} ({brief(vars(schedule))}) at {value_at(schedule, run.now, horizon):g}"
            for key, schedule in schedules_in(run.config.algorithm, "algorithm")
        ]
        if values:
            run.console.note(
                f"the schedules are over (training.horizon); from here on: {', '.join(values)}", warning=True
            )


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    folder: RunFolder
    signal: str | None  # that interrupted it, or `signals.STOP`
    why: str = ""  # the reason for a stop without a signal

    def summary(self) -> dict[str, Any]:
        """Return what `train --json` prints."""
        status = self.folder.read_status()
        keys = ("status", "env_steps", "updates", "eval/return_mean", "best_return", "seconds")
        place = {"run": self.folder.id, "dir": str(self.folder.path.absolute())}
        return place | {key: status.get(key) for key in keys}


def execute(
    run: Orchestrator, attachments: Attachments, first: bool, save_first: bool = True, reached: int = 0
) -> Result:
    """Run the loop, and write to the folder how it ended, whatever happens.

    `first` if no checkpoint was restored; `reached` is the progress, in units of the budget, of a run that was killed.
    """
    console = run.console
    try:
        run.write_status("running")
        unit, stop = run.decisions["training.unit"], run.signals.stop
        run.tell(Started(run.folder, run.config, unit, run.clock.env_steps, stop, run.spec.competitive))
        if save_first:  # so that a kill in the first second loses neither the run nor its longer budget
            run.save(insist=True)
        console.start(headline(run, first, reached), run.now, run.scheduler.progress)
        signal = run.run()
        run.write_status(*(("interrupted", run.signals.why or signal) if signal else ("finished", "")))
    except BaseException as problem:
        console.close()
        record_failure(run, problem)
        with contextlib.suppress(Exception):  # the first problem is the one to report
            run.tell(Ended("failed", str(problem), type(problem).__name__, *run.clock.position))
        raise
    finally:
        run.metrics.close()
    console.finish("\n".join(map(text.one_line, ending(run, signal))))
    attachments.finish(run)
    run.tell(Ended("interrupted" if signal else "finished", signal or "", "", *run.clock.position))
    late = run.signals.requested  # it came after the loop; a listener's request to stop has then nothing to stop
    return Result(run.folder, signal or (None if late == STOP else late), run.signals.why if signal else "")


def record_failure(run: Orchestrator, problem: BaseException) -> None:
    """Write the error to status.json and its traceback to the run's log."""
    try:
        # indented, because an entry of the log begins at the start of a line
        trace = indent(text.lines("".join(traceback.format_exception(problem))), "  ")
        run.folder.log.append(trace.encode(errors="backslashreplace"))
        run.folder.update_status(status="failed", message=explanation(problem))
        if isinstance(problem, EnvironmentFault):  # the user's code, most often
            run.console.note(f"the traceback is in {run.folder.log}", warning=True)
    except OSError:  # the disk fails; the error that is raised says more
        run.console.note(f"could not record in {run.folder.path} that the run failed", warning=True)


def open_display(attachments: Attachments, assembly: Assembly, folder: RunFolder) -> Display:
    """Open the display with the budget in the unit of the run."""
    training, unit = assembly.config.training, assembly.decisions["training.unit"]
    total = training.max_timesteps if unit == "env_steps" else training.max_updates
    return attachments.display(folder, unit, total)


def headline(run: Orchestrator, first: bool, reached: int = 0) -> list[str]:
    """Return the lines that a display shows first."""
    unit = run.decisions["training.unit"]
    repeated = reached - (run.clock.updates if unit == "updates" else run.clock.env_steps)
    config = run.config
    what = f"{config.environment.id}:{config.variant}  seed {config.seed}  {tuned(config.experiment)}"
    lines = [what, f"run {run.folder.path}"]
    if first and (note := end_note(config, run.scheduler.phases)) is not None:
        lines.append(note)
    if first and config.training.init_from:
        source = run.decisions["training.init_from"]
        lines.append(f"starting from the weights of {config.training.init_from} at {source}")
    if first and config.training.dataset:
        count = run.decisions["training.dataset"]["transitions"]
        lines.append(f"starting with {count} transitions of {config.training.dataset} in the replay")
    lines += [f"{name} is ignored (nohup): the run goes on when the terminal closes" for name in run.signals.ignored]
    again = f"; {repeated:,} {unit} after it were not saved and are done again" if repeated > 0 else ""
    return lines if first else [*lines, f"resumed at step {run.clock.env_steps}{again}"]


def tuned(experiment: str | None) -> str:
    """Return in words whether the settings come from a tuned experiment."""
    return f"tuned ({experiment})" if experiment else "untuned: defaults of the algorithm"


def ending(run: Orchestrator, signal: str | None) -> list[str]:
    """Return the lines that a display shows last."""
    latest, best, clock = run.scores.latest, run.scores.best, run.clock
    how = "stopped early" if run.scores.stopped_early else "finished"
    if signal:
        how = f"{run.signals.why or signal}: saved"
    lines = [f"{how} at step {clock.env_steps} after {clock.seconds:.1f} s"]
    if latest is not None:
        solved = run.spec.return_threshold is not None and latest >= run.spec.return_threshold
        goal = f" (solved: threshold {run.spec.return_threshold:g})" if solved else ""
        highest = "" if best is None or run.spec.competitive else f", best {number(best)}"  # of opponents: the latest
        lines.append(f"evaluation {number(latest)}{goal}{highest}")
    return [*lines, f"go on with: cadenza resume {run.folder.reference}"] if signal else lines
