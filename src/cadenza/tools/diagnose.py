"""Repeats the end of a run beside it, with every check on, until the first number that is not finite."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cadenza.base.files import SafePath
from cadenza.config.schema import DebugConfig
from cadenza.engine.build import assemble, attach_stores
from cadenza.engine.checkpoint import Checkpoints
from cadenza.engine.clock import Clock
from cadenza.engine.launch import EMPTY_METRICS, check
from cadenza.engine.orchestrator import Orchestrator
from cadenza.engine.signals import Signals
from cadenza.errors import NotFoundError, StorageError
from cadenza.lab.session import build_quietly
from cadenza.records.folder import RunFolder, create, read_object
from cadenza.types import Sealing
from cadenza.watch.nan_operations import FirstBad, forward_call

CHECKS = DebugConfig(enabled=True, profile_cycles=0)


def diagnose(
    folder: RunFolder,
    checkpoint: str | None,
    steps: int | None,
    trust: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """What went wrong and where, or that nothing did. The run's folder is only read.

    Once from a checkpoint (or what a debug run left of its failure) until it fails; then once more from the state just
    before, with torch's anomaly detection and a look at every operation.
    """
    source, name = starting_point(folder, checkpoint)
    config = replace(folder.read_config(trust), debug=CHECKS)
    spec, decisions = check(config), folder.read_decisions()
    assembly = assemble(config, spec, decisions, fresh=False)
    try:
        with tempfile.TemporaryDirectory(prefix="cadenza-debug-") as scratch, Signals() as signals:
            beside = create(Path(scratch), config, ["cadenza", "debug", folder.id])
            run = build_quietly(assembly, beside, signals)
            load(run, source.load(name), folder.replay)
            if assembly.spec.restore == "restart":
                say(f"{config.environment.id} cannot be restored: its running episodes start afresh")
            say(f"repeating {folder.id} from {name} with every check on …")
            problem = failure(run, steps)
            result: dict[str, Any] = {"run": folder.id, "from": name, "found": problem is not None}
            if problem is None:
                return {**result, "env_steps": run.clock.env_steps, "signal": signals.requested}
            found = read_object(beside.files / "debug" / "diagnosis.json")
            del found["repeat"]
            result |= {**found, "error": found["error"].replace(beside.reference, folder.reference)}
            say("found; once more with a look at every operation …")
            assembly.close()
            watched = {**decisions, "runtime.kernels": "torch", "runtime.compile": False}
            assembly = assemble(config, spec, watched, fresh=False)
            return result | closer_look(build_quietly(assembly, beside, signals), beside)
    finally:
        assembly.close()


def starting_point(folder: RunFolder, checkpoint: str | None) -> tuple[Checkpoints, str]:
    """The checkpoint asked for; else the last one, or the state before a failure under `--debug` since then."""
    checkpoints = Checkpoints.of(folder)
    names = checkpoints.names()
    if checkpoint is None:
        failed = Checkpoints(folder.files / "debug" / "failure", checkpoints.config_hash)
        if failed.names() and (not names or failed.resolve("last") >= checkpoints.resolve("last")):
            return failed, failed.resolve("last")
    if not names:
        raise NotFoundError(f"run {folder.id} has no checkpoint to go on from")
    return checkpoints, checkpoints.resolve(checkpoint or "last")


def load(run: Orchestrator, state: dict[str, Any], replay: SafePath) -> None:
    """The run's state but for its rows on disk: a repetition writes its own, and files for its stores."""
    attach_stores(run.stores, replay)
    run.load_state({**state, "metrics": EMPTY_METRICS})
    attach_stores(run.stores, run.folder.replay)
    for store in run.stores.values():
        if isinstance(store, Sealing):  # or every copy of the state would hold all its rows
            store.seal()


def failure(run: Orchestrator, steps: int | None = None) -> Exception | None:
    """Go on until something is wrong, `steps` env_steps are done or the run ends."""
    last = None if steps is None else run.clock.env_steps + steps

    def enough(clock: Clock) -> bool:
        return last is not None and clock.env_steps >= last

    try:
        run.run(enough)
    except (OSError, StorageError):
        raise
    except Exception as problem:  # whatever an update may raise is what is looked for
        return problem
    return None


def closer_look(run: Orchestrator, beside: RunFolder) -> dict[str, Any]:
    """The operation that made the first bad number, forwards and backwards, where there is one to name."""
    before = Checkpoints(beside.files / "debug" / "failure", run.checkpoints.config_hash)
    load(run, before.load(before.resolve("last")), beside.replay)
    operations = FirstBad()
    with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True), operations:
        warnings.simplefilter("always")
        failure(run)
    backward = forward_call(str(warning.message) for warning in caught)
    return {"operation": operations.found, "backward": backward}
