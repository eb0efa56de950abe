"""From a config, or a run folder, to a finished run: what `train`, `resume` and `cadenza.train` share.

Torch is imported only once the config is known to be sound, so that mistakes are reported at once.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.config.load import dump
from cadenza.config.schema import RunConfig
from cadenza.envs.catalog import make
from cadenza.errors import CadenzaError, ConfigError
from cadenza.monitor.console import Console
from cadenza.orchestration.signals import Signals
from cadenza.records import atomic
from cadenza.records.folder import RunFolder, create
from cadenza.records.lock import RunLock
from cadenza.records.metrics import export_csv, read

if TYPE_CHECKING:
    from cadenza.orchestration.build import Assembly
    from cadenza.orchestration.orchestrator import Orchestrator

EMPTY_METRICS = {"bytes": 0, "rows": 0, "digest": "", "pending": []}


def check(config: RunConfig) -> None:
    """Refuse what the environment or the algorithm cannot do, before anything heavy is imported."""
    env = make(config.environment)
    env.close()
    config.algorithm.check(env.spec, config.environment.num_envs)


def train(
    config: RunConfig, root: Path, command: list[str], quiet: bool = False, init_from: RunFolder | None = None
) -> Result:
    """A new run, to its end."""
    check(config)
    from cadenza.orchestration.build import assemble, build

    assembly = assemble(config, {})
    try:
        if init_from is not None:
            borrow_weights(assembly, init_from)
        with Signals() as signals:
            folder = create(root, config, command)
            with RunLock(folder.path):
                console = open_console(config, folder, quiet)
                run = build(assembly, folder, console)
                run.signals = signals
                return execute(run, console, first=True)
    finally:
        assembly.close()


def resume(
    folder: RunFolder, max_timesteps: int | None = None, device: str | None = None, quiet: bool = False
) -> Result:
    """The same run, from its newest valid checkpoint to its end, as if it had never stopped."""
    with RunLock(folder.path), Signals() as signals:
        config, decisions = folder.read_config(), folder.read_decisions()
        if max_timesteps is not None:
            config = replace(config, training=replace(config.training, max_timesteps=max_timesteps))
        if device is not None:
            config = replace(config, device=device)
        from cadenza.orchestration.build import assemble, build, resolve_device

        console = open_console(config, folder, quiet)
        if device is not None and decisions and resolve_device(device) != decisions["device"]:
            change = f"from {decisions['device']} to {device}"
            console.note(f"device changes {change}: from here on no longer bit for bit the same", warning=True)
            decisions["device"] = resolve_device(device)
        assembly = assemble(config, decisions)
        try:
            run = build(assembly, folder, console)
            run.signals = signals
            found = run.checkpoints.newest(lambda text: console.note(text, warning=True))
            if found is None:
                console.note("no checkpoint yet when the run stopped: starting it again from its seed", warning=True)
                run.metrics.load_state_dict(EMPTY_METRICS)
                run.episodes.drop_after(-1)
            else:
                run.load_state(found[1])
            if max_timesteps is not None:
                atomic.write_text(folder.config, dump(config))
                run.standing.stopped_early = False
            if assembly.spec.restore == "restart":
                console.note(f"{assembly.spec.id} cannot be restored: running episodes start afresh", warning=True)
            return execute(run, console, first=found is None)
        finally:
            assembly.close()


class Result(dict[str, Any]):
    """What `train --json` prints; `signal` says what interrupted the run, if anything did."""

    signal: str | None = None


def execute(run: Orchestrator, console: Console, first: bool) -> Result:
    """Run the loop and leave the folder telling how it ended, whatever happens."""
    signal: str | None = None
    try:
        run.write_status("running")
        if first:
            run.save()  # so that a run killed in its first second can be resumed
        console.start(headline(run, first), run.now)
        signal = run.run()
        run.write_status("interrupted" if signal else "finished", signal or "")
    except BaseException as problem:
        console.close()
        note_failure(run, problem)
        raise
    finally:
        run.metrics.close()
    result = Result(summary(run.folder))
    result.signal = signal
    console.finish("\n".join(ending(run, result)))
    finish_folder(run, console)
    return result


def finish_folder(run: Orchestrator, console: Console) -> None:
    """What is made from the run once it has stopped; none of it is worth failing for."""
    from cadenza.records.report import write_report

    try:
        if run.config.evaluation.video and run.finished:
            from cadenza.view.video import record

            record(run.folder, "best" if (run.folder.checkpoints / "best").exists() else "last")
        export_csv(read(run.folder.metrics), run.folder.path / "metrics.csv")
        write_report(run.folder)
    except OSError as problem:
        console.note(f"no report: {problem.strerror or problem}", warning=True)


def note_failure(run: Orchestrator, problem: BaseException) -> None:
    message = str(problem) if isinstance(problem, CadenzaError) else f"{type(problem).__name__}: {problem}"
    try:
        with run.folder.log.open("a") as log:
            log.write("".join(traceback.format_exception(problem)))
        run.folder.update_status(status="failed", message=message)
    except OSError:  # the disk is the problem: the error itself says more
        run.console.note(f"could not record in {run.folder.path} that the run failed", warning=True)


def summary(folder: RunFolder) -> dict[str, Any]:
    status = folder.read_status()
    keys = ("status", "env_steps", "updates", "eval/return_mean", "best_return", "seconds")
    return {"run": folder.id, "dir": str(folder.path.absolute())} | {key: status.get(key) for key in keys}


def open_console(config: RunConfig, folder: RunFolder, quiet: bool) -> Console:
    training = config.training
    if training.max_timesteps is not None:
        return Console(quiet, training.max_timesteps, log=folder.log)
    return Console(quiet, training.max_updates, unit="updates", log=folder.log)


def headline(run: Orchestrator, first: bool) -> list[str]:
    config = run.config
    tuned = f"tuned ({config.experiment})" if config.experiment else "untuned: defaults of the algorithm"
    lines = [f"{config.environment.id}:{config.algorithm.name}  seed {config.seed}  {tuned}", f"run {run.folder.path}"]
    if not first:
        lines.append(f"resumed at step {run.clock.env_steps}")
    return lines


def ending(run: Orchestrator, result: Result) -> list[str]:
    steps, seconds = result["env_steps"], result["seconds"]
    lines = [f"{result['status']} at step {steps} after {seconds:.1f} s"]
    if result["eval/return_mean"] is not None:
        solved = run.threshold is not None and result["eval/return_mean"] >= run.threshold
        goal = f" (solved: threshold {run.threshold:g})" if solved else ""
        lines.append(f"evaluation {result['eval/return_mean']:.1f}{goal}, best {result['best_return']:.1f}")
    if result.signal:
        lines.append(f"go on with: cadenza resume {run.folder.id}")
    return lines


def borrow_weights(assembly: Assembly, source: RunFolder) -> None:
    """Start from another run's networks and normalisers; everything else is this run's own."""
    from cadenza.orchestration.checkpoint import Checkpoints

    checkpoints = Checkpoints(source.checkpoints, source.read_manifest()["config_hash"])
    name = checkpoints.resolve("best" if (source.checkpoints / "best").exists() else "last")
    given = checkpoints.load(name)["workflow"]
    own = assembly.workflow.state_dict()
    try:
        assembly.workflow.load_state_dict(own | {key: given[key] for key in ("networks", "normalisers")})
    except (RuntimeError, KeyError) as problem:
        reason = str(problem).splitlines()[-1].strip()  # torch's first line names only the class
        raise ConfigError(f"the weights of run {source.id} do not fit this config: {reason}") from problem
