"""From a config, or a run folder, to a finished run: what `train`, `resume` and `cadenza.train` share.

Torch is imported only once the config is known to be sound, so that mistakes are reported at once.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from cadenza.base import text
from cadenza.base.files import screen
from cadenza.base.formatting import number
from cadenza.config.load import dump
from cadenza.config.schedules import Schedule
from cadenza.config.schema import MINARI, Phase, RunConfig
from cadenza.engine.attachments import Attachments, Display
from cadenza.engine.debugger import attached, note, settle_for_one
from cadenza.engine.events import Ended, Started
from cadenza.engine.signals import STOP, Signals
from cadenza.envs.catalog import make
from cadenza.errors import CadenzaError, CheckpointError, ConfigError, EnvironmentFault
from cadenza.records.folder import RunFolder, create
from cadenza.records.lock import RunLock
from cadenza.records.metrics import read
from cadenza.types import EnvSpec

if TYPE_CHECKING:
    from cadenza.engine.build import Assembly
    from cadenza.engine.orchestrator import Orchestrator

BUDGET = ("max_timesteps", "max_updates")
EMPTY_METRICS = {"bytes": 0, "rows": 0, "digest": "", "pending": []}


def check(config: RunConfig) -> EnvSpec:
    """Refuse what the environment or the algorithm cannot do, before anything heavy is imported."""
    env = make(config.environment)
    env.close()
    config.algorithm.check(env.spec, config.environment.num_envs)
    stop = config.training.early_stop
    if stop is not None and stop.at_least == "solved" and env.spec.return_threshold is None:
        raise ConfigError(f"training.early_stop.at_least=solved: {env.spec.id} names no such return; give a number")
    return env.spec


def found_from_anywhere(config: RunConfig) -> RunConfig:
    """A dataset's path as it is known in every folder: `verify` and `resume` may be called in another."""
    given = config.training.dataset
    if given is None or given.startswith(MINARI):
        return config
    return replace(config, training=replace(config.training, dataset=str(Path(given).expanduser().absolute())))


def train(
    config: RunConfig,
    root: Path,
    command: list[str],
    attachments: Attachments,
    notes: Iterable[str] = (),
    run_id: str | None = None,
) -> Result:
    """Train a new run to its end. Its display begins with `notes`; its id is made up unless `run_id` names one."""
    decisions: dict[str, Any] = {}
    config = found_from_anywhere(config)
    spec = check(config)
    attachments.check(config)
    if (debugger := attached()) is not None:
        config = settle_for_one(config, spec)
        decisions["debugger"] = {"value": debugger, "reason": note(debugger)}
    from cadenza.engine.build import assemble, build

    assembly = assemble(config, spec, decisions)
    try:
        with Signals() as signals:
            folder = create(root, config, command, run_id)
            with RunLock(folder.path):
                run = build(assembly, folder, open_display(attachments, assembly, folder), signals)
                attachments.attach(run)
                note_budget(run)
                attachments.listen(run)
                for line in notes:
                    run.console.note(line)
                if (warning := nothing_learned(config.training.max_timesteps, assembly.phases)) is not None:
                    run.console.note(warning, warning=True)
                if debugger is not None:
                    run.console.note(note(debugger), warning=True)
                return execute(run, attachments, first=True)
    finally:
        assembly.close()


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
    if folder.published is not None:
        way = "`cadenza train SPEC --init-from hf:user/repo` starts a new run from them"
        raise ConfigError(f"{folder.id}: a published run has weights only ({way})")
    screen(folder.path)
    with RunLock(folder.path), Signals() as signals:
        config, decisions = folder.read_config(trust, accept_changes), folder.read_decisions(accept_changes)
        longer = with_budget(config, max_timesteps, max_updates)
        spec = check(longer)
        attachments.check(longer)
        from cadenza.engine.build import assemble, build, resolve_device
        from cadenza.engine.changes import edited_files, record_changes, review_changes, settle_pointers

        edited, changes, change, moved_from = edited_files(folder), [], None, None
        if device is not None:
            longer = replace(longer, device=device)
        if device is not None and resolve_device(device) != decisions.get("device"):
            moved_from = decisions.get("device")
            change = f"device changes from {moved_from} to {device}"
            decisions["device"] = resolve_device(device)
        assembly = assemble(longer, spec, decisions, fresh=not any(folder.checkpoints.glob("step-*")))
        try:
            console = open_display(attachments, assembly, folder)
            if change:
                console.note(f"{change}: from here on no longer bit for bit the same", warning=True)
            run = build(assembly, folder, console, signals)
            attachments.attach(run)
            newest = run.checkpoints.newest(lambda line: console.note(line, warning=True))
            if newest is None:
                begin_again(run)
            else:
                changes = review_changes(run, newest[0], accept_changes, edited)
                run.load_state(newest[1])
                settle_pointers(run, newest[0])
            if assembly.spec.restore == "restart":
                console.note(f"{spec.id} cannot be restored: its running episodes start afresh", warning=True)
            noted = as_noted(config, decisions)
            unsaved = was_extended_here(run)
            if unsaved:
                run.standing.stopped_early = False
            extended = longer.training != noted.training
            concluded = extended and was_concluded(run, noted)
            if extended:
                run.standing.stopped_early = False
                refuse_less(run)
            record_changes(run, changes, moved_from)
            if longer != config or "config.yaml" in edited:
                folder.change_config(dump(longer))
            say_what_to_expect(run)
            note_budget(run, concluded)
            attachments.listen(run)
            return execute(run, attachments, first=newest is None, extended=extended or unsaved or bool(changes))
        finally:
            assembly.close()


def with_budget(config: RunConfig, max_timesteps: int | None, max_updates: int | None) -> RunConfig:
    training = config.training
    if max_timesteps is not None:
        training = replace(training, max_timesteps=max_timesteps)
    if max_updates is not None:
        training = replace(training, max_updates=max_updates)
    return replace(config, training=training)


def as_noted(config: RunConfig, decisions: dict[str, Any]) -> RunConfig:
    """With the budget in force: config.yaml is ahead of it if a disk was full between the two."""
    budgets = decisions.get("training.budgets")
    if not budgets:
        return config
    amounts = {key: budgets[-1][key] for key in BUDGET}
    return replace(config, training=replace(config.training, **amounts))


def was_extended_here(run: Orchestrator) -> bool:
    """Whether the last longer budget was given at this very point: its checkpoint may not have found room."""
    budgets = run.decisions.get("training.budgets", [])
    return len(budgets) > 1 and budgets[-1]["from_cycle"] == run.clock.cycles and run.scheduler.at_boundary


def was_concluded(run: Orchestrator, before: RunConfig) -> bool:
    """Whether the run had come to its end, last evaluation and all, under the budget it had before."""
    longer, run.config = run.config, before
    finished, run.config = run.finished, longer
    measured = not before.evaluation.at_end or run.standing.evaluated_at == run.clock.position
    return finished and measured and run.standing.logged_at == run.clock.position


def note_budget(run: Orchestrator, concluded: bool = False) -> None:
    """Remember from which cycle on which budget was in force, so that `verify` can do the run again."""
    training = run.config.training
    entry = {key: getattr(training, key) for key in BUDGET}
    budgets = run.decisions.setdefault("training.budgets", [])
    if not budgets or {key: budgets[-1][key] for key in entry} != entry:
        budgets.append({**entry, "from_cycle": run.clock.cycles, "concluded": concluded})
    run.folder.write_decisions(run.decisions)


def nothing_learned(budget: int | None, phases: Iterable[Phase]) -> str | None:
    """What to say of phases that only collect and take the whole budget of env_steps."""
    from cadenza.engine.build import length_of

    gathered = 0
    for phase in phases:
        if {hook.name for hook in phase.hooks} - {"collect", "evaluate"}:
            if budget is None or not 0 < budget <= gathered:
                return None
            text = f"training.max_timesteps={budget} ends before anything is learned: {gathered} steps come before"
            return f"{text} phase {phase.name}"
        gathered += length_of(phase, collects=True)
    return None


def refuse_less(run: Orchestrator) -> None:
    if run.scheduler.over:
        raise ConfigError("the run's phases are over, more budget changes nothing: start a new run with --init-from")
    if run.finished:
        budgets = {"max_timesteps": run.clock.env_steps, "max_updates": run.clock.updates}
        where = ", ".join(f"{value} of training.{name}" for name, value in budgets.items())
        raise ConfigError(f"the run would end at once, it is at {where}: give more")


def say_what_to_expect(run: Orchestrator) -> None:
    """A resumed run that has nothing to do, or whose schedules are over, should not surprise anyone."""
    if run.finished and not run.scheduler.over:
        flag = "--max-timesteps" if run.decisions["training.unit"] == "env_steps" else "--max-updates"
        run.console.note(f"the run has finished: {flag} N gives it a longer budget")
    elif run.now >= run.decisions["training.horizon"]:
        held = [key for key, value in vars(run.config.algorithm).items() if isinstance(value, Schedule)]
        if held:
            names = ", ".join(f"algorithm.{key} at {getattr(run.config.algorithm, key).end_value:g}" for key in held)
            run.console.note(f"the schedules are over (training.horizon); from here on: {names}", warning=True)


def begin_again(run: Orchestrator) -> None:
    """A run that was stopped before its first checkpoint is started from its seed; one that lost them all is not."""
    if any(run.folder.checkpoints.glob("rejected-*")) or read(run.folder.metrics):
        cleaned = run.folder.read_status().get("cleaned")
        why = f" (cleaned up at {cleaned})" if cleaned else ""
        raise CheckpointError(f"{run.folder.checkpoints}: the run has been training, but its checkpoints are gone{why}")
    run.console.note("no checkpoint yet when the run stopped: starting it again from its seed", warning=True)
    run.folder.update_status(cleaned=None)  # it may have been: what comes now is new
    run.metrics.load_state_dict(EMPTY_METRICS)
    run.episodes.drop_after(-1)


@dataclass(frozen=True)
class Result:
    """How a run ended: its folder, and the signal that interrupted it, if one did, or else who asked it to stop."""

    folder: RunFolder
    signal: str | None
    why: str = ""

    def summary(self) -> dict[str, Any]:
        """What `train --json` prints."""
        status = self.folder.read_status()
        keys = ("status", "env_steps", "updates", "eval/return_mean", "best_return", "seconds")
        place = {"run": self.folder.id, "dir": str(self.folder.path.absolute())}
        return place | {key: status.get(key) for key in keys}


def execute(run: Orchestrator, attachments: Attachments, first: bool, extended: bool = False) -> Result:
    """Run the loop and leave the folder telling how it ended, whatever happens."""
    console = run.console
    try:
        run.write_status("running")
        unit, stop = run.decisions["training.unit"], run.signals.stop
        run.tell(Started(run.folder, run.config, unit, run.clock.env_steps, stop))
        if first or extended:  # so that a kill in its first second forgets neither the run nor that it goes on
            run.save(insist=True)
        console.start(headline(run, first), run.now, run.scheduler.progress)
        signal = run.run()
        run.write_status(*(("interrupted", run.signals.why or signal) if signal else ("finished", "")))
    except BaseException as problem:
        console.close()
        note_failure(run, problem)
        with contextlib.suppress(Exception):  # the first problem is the one to tell
            run.tell(Ended("failed", str(problem), type(problem).__name__))
        raise
    finally:
        run.metrics.close()
    console.finish("\n".join(map(text.one_line, ending(run, signal))))
    attachments.finish(run)
    run.tell(Ended("interrupted" if signal else "finished", signal or ""))
    late = run.signals.requested  # one that came too late to interrupt anything; a listener's wish is fulfilled then
    return Result(run.folder, signal or (None if late == STOP else late), run.signals.why if signal else "")


def note_failure(run: Orchestrator, problem: BaseException) -> None:
    message = str(problem) if isinstance(problem, CadenzaError) else f"{type(problem).__name__}: {problem}"
    try:
        # indented: no line of it is an entry
        trace = indent(text.lines("".join(traceback.format_exception(problem))), "  ")
        run.folder.log.append(trace.encode(errors="backslashreplace"))
        run.folder.update_status(status="failed", message=message)
        if isinstance(problem, EnvironmentFault):  # someone else's code: they will want to see where
            run.console.note(f"the traceback is in {run.folder.log}", warning=True)
    except OSError:  # the disk is the problem: the error itself says more
        run.console.note(f"could not record in {run.folder.path} that the run failed", warning=True)


def open_display(attachments: Attachments, assembly: Assembly, folder: RunFolder) -> Display:
    training, unit = assembly.config.training, assembly.decisions["training.unit"]
    total = training.max_timesteps if unit == "env_steps" else training.max_updates
    return attachments.display(folder, unit, total)


def headline(run: Orchestrator, first: bool) -> list[str]:
    config = run.config
    what = f"{config.environment.id}:{config.variant}  seed {config.seed}  {tuned(config.experiment)}"
    lines = [what, f"run {run.folder.path}"]
    if first and config.training.init_from:
        lines.append(f"starting from the weights of {config.training.init_from}")
    if first and config.training.dataset:
        known = run.decisions["training.dataset"]
        lines.append(f"starting with {known['transitions']} transitions of {config.training.dataset} in the replay")
    return lines if first else [*lines, f"resumed at step {run.clock.env_steps}"]


def tuned(experiment: str | None) -> str:
    """Whether somebody has tuned these settings, in words."""
    return f"tuned ({experiment})" if experiment else "untuned: defaults of the algorithm"


def ending(run: Orchestrator, signal: str | None) -> list[str]:
    latest, best, clock = run.standing.latest, run.standing.best, run.clock
    how = "stopped early" if run.standing.stopped_early else "finished"
    if signal:
        how = f"{run.signals.why or signal}: saved"
    lines = [f"{how} at step {clock.env_steps} after {clock.seconds:.1f} s"]
    if latest is not None:
        solved = run.spec.return_threshold is not None and latest >= run.spec.return_threshold
        goal = f" (solved: threshold {run.spec.return_threshold:g})" if solved else ""
        lines.append(f"evaluation {number(latest)}{goal}" + (f", best {number(best)}" if best is not None else ""))
    return [*lines, f"go on with: cadenza resume {run.folder.reference}"] if signal else lines
