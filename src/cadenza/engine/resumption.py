"""The resumption of a run: its newest checkpoint, and what was changed since: by hand, the budget, the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cadenza.base import blas
from cadenza.base.json_text import is_intact
from cadenza.config.schema import RunConfig
from cadenza.engine.build import resolve_device
from cadenza.engine.identity import Change, differences, identity_of, is_identity, unaccepted
from cadenza.engine.launch import BUDGET
from cadenza.engine.runtime import kernels_of
from cadenza.errors import CheckpointError, ConfigError
from cadenza.records.checkpoint import name_of
from cadenza.records.decisions import ACCEPTED, BLAS_CHANGES, BUDGETS, DEVICES
from cadenza.records.folder import RunFolder, read_object, timestamp
from cadenza.records.metrics import read

if TYPE_CHECKING:
    from cadenza.engine.orchestrator import Orchestrator

MOST = 4  # changes that a refusal names
EMPTY_METRICS = {"bytes": 0, "rows": 0, "digest": "", "pending": []}


def restore(run: Orchestrator, accept_changes: bool, edited: Sequence[str]) -> tuple[bool, list[Change]]:
    """Load the newest valid checkpoint; return whether there was one, and the accepted changes since it was saved."""
    newest = run.checkpoints.newest(lambda line: run.console.note(line, warning=True))
    changes: list[Change] = []
    if newest is None:
        start_again(run)
    else:
        name, state = newest
        changes = review_changes(run, name, accept_changes, edited)
        run.load_state(state)
        settle_pointers(run, name)
    if run.spec.restore == "restart":
        run.console.note(f"{run.spec.id} cannot be restored: its running episodes start afresh", warning=True)
    return newest is not None, changes


def start_again(run: Orchestrator) -> None:
    """Start a run from its seed that was stopped before its first checkpoint; refuse one that lost its checkpoints."""
    if any(run.folder.checkpoints.glob("rejected-*")) or read(run.folder.metrics):
        cleaned = run.folder.read_status().get("cleaned")
        reason = f" (cleaned up at {cleaned})" if cleaned else ""
        raise CheckpointError(
            f"{run.folder.checkpoints}: the run has been training, but its checkpoints are gone{reason}"
        )
    run.console.note("no checkpoint yet when the run stopped: starting it again from its seed", warning=True)
    run.folder.update_status(cleaned=None)  # if the run was cleaned up, what follows is new
    run.metrics.load_state_dict(EMPTY_METRICS)
    run.episodes.drop_after(-1)


# changes of the budget and of the device


def recorded_budget(config: RunConfig, decisions: Mapping[str, Any]) -> RunConfig:
    """Return the config with the budget in force: config.yaml is ahead of it if the disk was full in between."""
    budgets = decisions.get(BUDGETS)
    if not budgets:
        return config
    return replace(config, training=replace(config.training, **{key: budgets[-1][key] for key in BUDGET}))


def extend(run: Orchestrator, before: RunConfig) -> tuple[bool, bool]:
    """Put a changed budget into force; refuse one under which the run would end at once.

    Return whether there is a change that no checkpoint knows of, and whether the run had concluded before it.
    """
    budgets = run.decisions.get(BUDGETS, [])
    # extended at this very point by an earlier resumption, whose checkpoint may not have found room
    unsaved = len(budgets) > 1 and budgets[-1]["from_cycle"] == run.clock.cycles and run.scheduler.at_boundary
    if unsaved:
        run.scores.stopped_early = False
    if run.config.training == before.training:
        return unsaved, False
    had_concluded = has_concluded(run, before)
    run.scores.stopped_early = False
    refuse_spent_budget(run)
    return True, had_concluded


def has_concluded(run: Orchestrator, before: RunConfig) -> bool:
    """Return whether the run had come to its end, last evaluation and all, under the config it had before."""
    longer, run.config = run.config, before
    finished, run.config = run.finished, longer
    evaluated = not before.evaluation.at_end or run.scores.evaluated_at == run.clock.position
    return finished and evaluated and run.scores.logged_at == run.clock.position


def refuse_spent_budget(run: Orchestrator) -> None:
    """Refuse a budget that does not let the run go on."""
    if run.scheduler.over:
        raise ConfigError("the run's phases are over, more budget changes nothing: start a new run with --init-from")
    if run.finished:
        budgets = {"max_timesteps": run.clock.env_steps, "max_updates": run.clock.updates}
        where = ", ".join(f"{value} of training.{name}" for name, value in budgets.items())
        raise ConfigError(f"the run would end at once, it is at {where}: give more")


def move(decisions: dict[str, Any], device: str) -> str | None:
    """Decide on another device; return the one before, or None if that is the same."""
    before, decisions["device"] = decisions.get("device"), resolve_device(device)
    return None if before == decisions["device"] else before


# changes by hand


def edited_files(folder: RunFolder) -> list[str]:
    """Return which of config.yaml and decisions.json are not as this program wrote them."""
    intact = {"config.yaml": folder.has_known_config(), "decisions.json": is_intact(read_object(folder.decisions))}
    return [name for name, is_known in intact.items() if not is_known]


def review_changes(run: Orchestrator, checkpoint: str, accept: bool, edited: Sequence[str]) -> list[Change]:
    """Return how what this process trains with differs from what the checkpoint was saved with.

    Refuse any difference by name unless changes are to be accepted; then warn of each. A checkpoint of an older
    version does not record what it was saved with.
    """
    stored = run.checkpoints.facts(checkpoint).get("run")
    changes: list[Change] = []
    if stored is not None:
        if not is_identity(stored):
            raise CheckpointError(f"{run.checkpoints.folder / checkpoint}: what it was saved with is damaged")
        now = identity_of(run.config, run.scheduler.phases, run.decisions)
        changes = unaccepted(differences(stored, run.config, now, "config.yaml" in edited), run.decisions)
    if changes and not accept:
        raise refusal(run.folder, checkpoint, changes)
    for change in changes:
        run.console.note(f"accepted: {change}", warning=True)
    for name in edited:
        if not any(str(change).startswith(f"{name}: ") for change in changes):
            reason = "in nothing that training depends on" if stored else "and no checkpoint says what it was"
            run.console.note(f"accepted: {name} was changed, {reason}", warning=True)
    return changes


def record_changes(run: Orchestrator, changes: Sequence[Change], device: str | None) -> None:
    """Write the changes to decisions.json before they take effect.

    They are the given ones, the `device` that the run was moved from, and other kernels of linear algebra.
    """
    now = {"from_cycle": run.clock.cycles}
    if changes:
        pairs = {change.key: change.pair for change in changes}
        entry = {"when": timestamp(), "env_steps": run.clock.env_steps, **now, "changes": pairs}
        run.decisions.setdefault(ACCEPTED, []).append(entry)
    if device is not None:
        run.decisions.setdefault(DEVICES, []).append({"before": device, "now": run.decisions["device"], **now})
    kernels = {"before": kernels_of(run.decisions), "now": blas.loaded()}
    has_other_kernels = kernels["before"] != kernels["now"]
    if has_other_kernels:
        before, here = (name or "unknown" for name in kernels.values())
        change = f"NumPy's linear algebra has {here} kernels here, the run was made with {before}"
        run.console.note(f"{change}: from here on no longer bit for bit the same", warning=True)
        run.decisions.setdefault(BLAS_CHANGES, []).append(kernels | now)
    if changes or device is not None or has_other_kernels:
        run.folder.write_decisions(run.decisions)


def refusal(folder: RunFolder, checkpoint: str, changes: Sequence[Change]) -> CheckpointError | ConfigError:
    """Return the error that names the changes."""
    listed = "; ".join(str(change) for change in changes[:MOST])
    more = f"; and {len(changes) - MOST} more" if len(changes) > MOST else ""
    remedy = f"put it back, or accept it: `cadenza resume {folder.reference} --accept-changes`"
    kind = ConfigError if all(change.key.startswith("config.") for change in changes) else CheckpointError
    return kind(f"{folder.path} was changed since {checkpoint} was saved: {listed}{more} ({remedy})")


def settle_pointers(run: Orchestrator, checkpoint: str) -> None:
    """Make `best` name the checkpoint that the restored state knows as the best; warn where it named another."""
    if not run.scores.best_at:
        return
    best, pointer = name_of(run.scores.best_at), run.checkpoints.pointer("best")
    names = run.checkpoints.names()
    if best not in names:  # after a damaged checkpoint was set aside
        return
    if pointer in names and best not in (pointer, checkpoint):  # else it was cut, or killed before it could point
        warning = f"{run.checkpoints.folder / 'best'} named {pointer}, by {checkpoint} the best is {best}"
        run.console.note(f"{warning}: set right", warning=True)
    run.checkpoints.point("best", best)


def described_changes(decisions: Mapping[str, Any]) -> list[str]:
    """Return in words why a run may differ from its repetition: changes that were accepted, of device, of kernels."""
    lines = [
        f"from cycle {entry['from_cycle']} on: {Change(key, *pair)} (--accept-changes)"
        for entry in decisions.get(ACCEPTED, [])
        for key, pair in entry["changes"].items()
    ]
    for what, log in (("device", DEVICES), ("linear algebra", BLAS_CHANGES)):
        entries = decisions.get(log, [])
        lines += [f"from cycle {one['from_cycle']} on: {what} {one['before']} → {one['now']}" for one in entries]
    return lines
