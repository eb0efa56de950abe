"""Repeat the end of a run in a scratch folder, with every check on, until the first number that is not finite."""

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
from cadenza.engine.clock import Clock
from cadenza.engine.launch import check
from cadenza.engine.orchestrator import Orchestrator
from cadenza.engine.resumption import EMPTY_METRICS
from cadenza.engine.signals import Signals
from cadenza.errors import NotFoundError, StorageError
from cadenza.lab.session import build_quietly
from cadenza.records.checkpoint import Checkpoints
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
    """Return what became non-finite and where, or that nothing did. The run's folder is only read.

    The run is repeated from a checkpoint (or the state that a debug run saved of its failure) until it fails; then
    once more from the state just before, with torch's anomaly detection and a check of every operation.
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
                say(f"{config.environment.id} cannot be restored: its unfinished episodes start again")
            say(f"repeating {folder.id} from {name} with every check on …")
            problem = failure(run, steps)
            result: dict[str, Any] = {"run": folder.id, "from": name, "found": problem is not None}
            if problem is None:
                return {**result, "env_steps": run.clock.env_steps, "signal": signals.requested}
            diagnosis = read_object(beside.files / "debug" / "diagnosis.json")
            del diagnosis["repeat"]
            result |= {**diagnosis, "error": diagnosis["error"].replace(beside.reference, folder.reference)}
            say("found; repeating once more with a check of every operation …")
            assembly.close()
            watched = {**decisions, "runtime.kernels": "torch", "runtime.compile": False}
            assembly = assemble(config, spec, watched, fresh=False)
            return result | closer_look(build_quietly(assembly, beside, signals), beside)
    finally:
        assembly.close()


def starting_point(folder: RunFolder, checkpoint: str | None) -> tuple[Checkpoints, str]:
    """Return the named checkpoint; else the last one, or the state before a later failure under `--debug`."""
    checkpoints = Checkpoints.from_run(folder)
    names = checkpoints.names()
    if checkpoint is None:
        failed = Checkpoints(folder.files / "debug" / "failure", checkpoints.config_hash)
        if failed.names() and (not names or failed.resolve("last") >= checkpoints.resolve("last")):
            return failed, failed.resolve("last")
    if not names:
        raise NotFoundError(f"run {folder.id} has no checkpoint to start from")
    return checkpoints, checkpoints.resolve(checkpoint or "last")


def load(run: Orchestrator, state: dict[str, Any], replay: SafePath) -> None:
    """Load the state without rows of metrics; the repetition writes its own rows, and its own files of stores."""
    attach_stores(run.stores, replay)
    run.load_state({**state, "metrics": EMPTY_METRICS})
    attach_stores(run.stores, run.folder.replay)
    for store in run.stores.values():
        if isinstance(store, Sealing):  # else every copy of the state would hold all its rows
            store.seal()


def failure(run: Orchestrator, steps: int | None = None) -> Exception | None:
    """Continue the run until it fails, `steps` env_steps are done or it ends; return the failure."""
    last = None if steps is None else run.clock.env_steps + steps

    def enough(clock: Clock) -> bool:
        return last is not None and clock.env_steps >= last

    try:
        run.run(enough)
    except (OSError, StorageError):
        raise
    except Exception as problem:  # an update may raise anything
        return problem
    return None


def closer_look(run: Orchestrator, beside: RunFolder) -> dict[str, Any]:
    """Return the operation that made the first non-finite number, forwards and backwards, if it can be named."""
    before = Checkpoints(beside.files / "debug" / "failure", run.checkpoints.config_hash)
    load(run, before.load(before.resolve("last")), beside.replay)
    operations = FirstBad()
    with warnings.catch_warnings(record=True) as warned, torch.autograd.set_detect_anomaly(True), operations:
        warnings.simplefilter("always")
        failure(run)
    backward = forward_call(str(warning.message) for warning in warned)
    return {"operation": operations.operation, "backward": backward}
