"""What changed between a checkpoint and its resumption: refused by name, or accepted and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cadenza.base.digests import is_intact
from cadenza.engine.checkpoint import name_of
from cadenza.engine.identity import Change, differences, identity_of, unaccepted
from cadenza.errors import CheckpointError, ConfigError
from cadenza.records.decisions import ACCEPTED, DEVICES
from cadenza.records.folder import RunFolder, read_object, timestamp

if TYPE_CHECKING:
    from cadenza.engine.orchestrator import Orchestrator

MOST = 4  # changes that a refusal names


def edited_files(folder: RunFolder) -> list[str]:
    """Return which of config.yaml and decisions.json are not as this program wrote them."""
    intact = {"config.yaml": folder.has_known_config(), "decisions.json": is_intact(read_object(folder.decisions))}
    return [name for name, is_known in intact.items() if not is_known]


def review_changes(run: Orchestrator, checkpoint: str, accept: bool, edited: Sequence[str]) -> list[Change]:
    """Return how what this process trains with differs from what the checkpoint was saved with, if it says so.

    Refuse any difference by name unless changes are to be accepted; then warn of each.
    """
    stored = run.checkpoints.facts(checkpoint).get("run")
    changes: list[Change] = []
    if stored is not None:
        now = identity_of(run.config, run.scheduler.phases, run.decisions)
        changes = unaccepted(differences(stored, run.config, now, "config.yaml" in edited), run.decisions)
    if changes and not accept:
        raise refusal(run.folder, checkpoint, changes)
    for change in changes:
        run.console.note(f"accepted: {change}", warning=True)
    for name in edited:
        if not any(str(change).startswith(f"{name}: ") for change in changes):
            why = "in nothing that training depends on" if stored else "and no checkpoint says what it was"
            run.console.note(f"accepted: {name} was changed, {why}", warning=True)
    return changes


def record_changes(run: Orchestrator, changes: Sequence[Change], device: str | None) -> None:
    """Write the changes, and the `device` that the run was moved from, to decisions.json, before they take effect."""
    now = {"from_cycle": run.clock.cycles}
    if changes:
        pairs = {change.key: change.pair for change in changes}
        entry = {"when": timestamp(), "env_steps": run.clock.env_steps, **now, "changes": pairs}
        run.decisions.setdefault(ACCEPTED, []).append(entry)
    if device is not None:
        run.decisions.setdefault(DEVICES, []).append({"before": device, "now": run.decisions["device"], **now})
    if changes or device is not None:
        run.folder.write_decisions(run.decisions)


def refusal(folder: RunFolder, checkpoint: str, changes: Sequence[Change]) -> CheckpointError | ConfigError:
    """Return the error that names the changes."""
    listed = "; ".join(str(change) for change in changes[:MOST])
    more = f"; and {len(changes) - MOST} more" if len(changes) > MOST else ""
    way = f"put it back, or accept it: `cadenza resume {folder.reference} --accept-changes`"
    kind = ConfigError if all(change.key.startswith("config.") for change in changes) else CheckpointError
    return kind(f"{folder.path} was changed since {checkpoint} was saved: {listed}{more} ({way})")


def settle_pointers(run: Orchestrator, checkpoint: str) -> None:
    """Make `best` name the checkpoint that the restored state knows as the best; warn where it named another."""
    if not run.standing.best_at:
        return
    best, pointer = name_of(run.standing.best_at), run.checkpoints.pointer("best")
    names = run.checkpoints.names()
    if best not in names:  # after a damaged checkpoint was set aside
        return
    if pointer in names and best not in (pointer, checkpoint):  # else it was cut, or killed before it could point
        told = f"{run.checkpoints.folder / 'best'} named {pointer}, by {checkpoint} the best is {best}"
        run.console.note(f"{told}: set right", warning=True)
    run.checkpoints.point("best", best)


def changes_told(decisions: Mapping[str, Any]) -> list[str]:
    """Return why a run may differ from its repetition, in words: accepted changes and changes of device."""
    lines = [
        f"from cycle {entry['from_cycle']} on: {Change(key, *pair)} (--accept-changes)"
        for entry in decisions.get(ACCEPTED, [])
        for key, pair in entry["changes"].items()
    ]
    moves = decisions.get(DEVICES, [])
    return [*lines, *(f"from cycle {one['from_cycle']} on: device {one['before']} → {one['now']}" for one in moves)]
