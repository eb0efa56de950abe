"""From a config, or a run folder, to a finished run: what `train`, `resume` and `cadenza.train` share.

Torch is imported only once the config is known to be sound, so that mistakes are reported at once.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from cadenza.base import text
from cadenza.base.files import screen
from cadenza.base.formatting import number
from cadenza.config.load import dump
from cadenza.config.schedules import Schedule
from cadenza.config.schema import MINARI, Phase, RunConfig
from cadenza.engine.debugger import attached, note, settle_for_one
from cadenza.engine.events import Ended, Listener, Started
from cadenza.engine.signals import STOP, Signals
from cadenza.envs.catalog import make
from cadenza.errors import CadenzaError, CheckpointError, ConfigError, EnvironmentFault
from cadenza.records.folder import RunFolder, create
from cadenza.records.index import shared_url
from cadenza.records.lock import RunLock
from cadenza.records.metrics import export_csv, read
from cadenza.types import EnvSpec
from cadenza.watch.alerts import Alerts
from cadenza.watch.console import Console

if TYPE_CHECKING:
    from cadenza.engine.build import Assembly
    from cadenza.engine.orchestrator import Orchestrator

Sink = Callable[[Callable[[str], None]], Listener]  # given a way to warn, what to tell events to
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
    quiet: bool = False,
    on_event: Iterable[Listener] = (),
    notes: Iterable[str] = (),
    run_id: str | None = None,
) -> Result:
    """A new run, to its end; it begins with what there is to note about it. Its id is made up unless one is given."""
    decisions: dict[str, Any] = {}
    config = found_from_anywhere(config)
    spec, sinks = check(config), wanted_sinks(config)
    if (debugger := attached()) is not None:
        config = settle_for_one(config, spec)
        decisions["debugger"] = {"value": debugger, "reason": note(debugger)}
    from cadenza.engine.build import assemble, build

    assembly = assemble(config, spec, decisions)
    try:
        with Signals() as signals:
            folder = create(root, config, command, run_id)
            with RunLock(folder.path):
                run = build(assembly, folder, open_console(assembly, folder, quiet), signals)
                note_budget(run)
                listen(run, sinks, on_event)
                for text in notes:
                    run.console.note(text)
                if (warning := nothing_learned(config.training.max_timesteps, assembly.phases)) is not None:
                    run.console.note(warning, warning=True)
                if debugger is not None:
                    run.console.note(note(debugger), warning=True)
                return execute(run, first=True)
    finally:
        assembly.close()


def resume(
    folder: RunFolder,
    max_timesteps: int | None = None,
    max_updates: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    trust: bool = False,
    on_event: Iterable[Listener] = (),
    accept_changes: bool = False,
) -> Result:
    """The same run, from its newest valid checkpoint to its end, as if it had never stopped.

    What was changed by hand since is refused, unless it is accepted.
    """
    if folder.published is not None:
        way = "`cadenza train SPEC --init-from hf:user/repo` starts a new run from them"
        raise ConfigError(f"{folder.id}: a published run has weights only ({way})")
    screen(folder.path)
    with RunLock(folder.path), Signals() as signals:
        config, decisions = folder.read_config(trust, accept_changes), folder.read_decisions(accept_changes)
        longer = with_budget(config, max_timesteps, max_updates)
        spec, sinks = check(longer), wanted_sinks(longer)
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
            console = open_console(assembly, folder, quiet)
            if change:
                console.note(f"{change}: from here on no longer bit for bit the same", warning=True)
            run = build(assembly, folder, console, signals)
            found = run.checkpoints.newest(lambda text: console.note(text, warning=True))
            if found is None:
                begin_again(run)
            else:
                changes = review_changes(run, found[0], accept_changes, edited)
                run.load_state(found[1])
                settle_pointers(run, found[0])
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
            listen(run, sinks, on_event)
            return execute(run, first=found is None, extended=extended or unsaved or bool(changes))
        finally:
            assembly.close()


def wanted_sinks(config: RunConfig) -> list[Sink]:
    """Where rows go besides metrics.jsonl; asked for before anything is made, since an extra may be missing."""
    sinks: list[Sink] = []
    if config.logging.tensorboard:
        from cadenza.watch.tensorboard import TensorBoard

        sinks.append(TensorBoard)
    if config.logging.wandb:
        from cadenza.watch.wandb_sink import Wandb

        sinks.append(Wandb)
    if (url := shared_url()) is not None:
        from cadenza.records.shared_index import SharedIndex
        from cadenza.watch.heartbeat import Heartbeat

        sinks.append(partial(Heartbeat, SharedIndex(url)))  # which refuses a URL that is none
    return sinks


def listen(run: Orchestrator, sinks: Iterable[Sink], on_event: Iterable[Listener]) -> None:
    def warn(text: str) -> None:
        run.console.note(text, warning=True)

    watching: list[Listener] = [Alerts(run.console.note)] if run.config.logging.alerts.enabled else []
    if run.config.evaluation.video_every:
        from cadenza.lab.view.evaluation_video import EvaluationVideos

        watching.append(EvaluationVideos(run, warn))  # before the sinks, which look for its files
    run.listeners += [*watching, *(sink(warn) for sink in sinks), *on_event]


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


def execute(run: Orchestrator, first: bool, extended: bool = False) -> Result:
    """Run the loop and leave the folder telling how it ended, whatever happens."""
    console = run.console
    try:
        run.write_status("running")
        unit, stop = run.decisions["training.unit"], run.signals.stop
        run.tell(Started(run.folder, run.config, unit, run.clock.env_steps, stop))
        if first or extended:  # so that a kill in its first second forgets neither the run nor that it goes on
            run.save(insist=True)
        console.start(headline(run, first), run.now, run.scheduler.stretch)
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
    finish_folder(run)
    run.tell(Ended("interrupted" if signal else "finished", signal or ""))
    late = run.signals.requested  # one that came too late to interrupt anything; a listener's wish is fulfilled then
    return Result(run.folder, signal or (None if late == STOP else late), run.signals.why if signal else "")


def finish_folder(run: Orchestrator) -> None:
    """What is made from the run once it has stopped. None of it is worth failing for: the run itself is safe."""
    from cadenza.lab.report import write_report

    try:
        if run.config.evaluation.video and run.finished:
            from cadenza.lab.view.imagination import record_imagination
            from cadenza.lab.view.play import record

            record_imagination(run.workflow, run.stores, run.folder.videos)
            record(run.folder, run.folder.best_or_last, trust=True)
    except Exception as problem:  # whatever a stranger's renderer may raise
        reason = str(problem) if isinstance(problem, CadenzaError) else f"{type(problem).__name__}: {problem}"
        run.console.note(f"no video: {reason}", warning=True)
    try:
        export_csv(read(run.folder.metrics), run.folder.files / "metrics.csv")
        write_report(run.folder)
    except OSError as problem:
        run.console.note(f"no report: {problem.strerror or problem}", warning=True)


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


def open_console(assembly: Assembly, folder: RunFolder, quiet: bool) -> Console:
    training, unit = assembly.config.training, assembly.decisions["training.unit"]
    total = training.max_timesteps if unit == "env_steps" else training.max_updates
    return Console(quiet, total, unit=unit, log=folder.log)


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
