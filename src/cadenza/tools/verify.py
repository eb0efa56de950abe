"""Prove that a run can be repeated bit for bit, and that killing it changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cadenza.base.failpoints import KILL
from cadenza.config.schema import RunConfig
from cadenza.data.replay import whole
from cadenza.engine.build import assemble
from cadenza.engine.clock import Clock
from cadenza.engine.launch import check
from cadenza.engine.signals import Signals
from cadenza.errors import CadenzaError, CheckpointError, NotFoundError
from cadenza.lab.diff import Pairs, differences, first_episode
from cadenza.lab.session import build_quietly
from cadenza.records.checkpoint import Checkpoints
from cadenza.records.folder import RunFolder, create, find
from cadenza.records.lock import RunLock
from cadenza.records.metrics import first_difference, read
from cadenza.records.validity import pointer

# Parts of a state that hold times, not results.
TIMES = {"clock.seconds", "metrics.bytes"}
# Where `verify --resume` kills: between two tasks, and at the delicate moments of saving.
SAVING = tuple(f"ckpt:{moment}@2" for moment in ("after_write", "before_rename", "after_rename", "before_prune"))
KILLS = ("run:task@3", *SAVING, "run:task@4")
CYCLES = 16  # enough for every failpoint to be reached

Report = Callable[[str], object]  # takes a line about what is done next


def ignore(line: str) -> None:
    """Report nothing."""


def repeat(folder: RunFolder, root: Path, steps: int | None, trust: bool) -> tuple[dict[str, Any] | None, Pairs]:
    """Repeat a run in `root`, up to `steps` env_steps; return the first difference, and the versions then and now."""
    config, decisions = folder.read_config(trust), folder.read_decisions()
    rows = [row for row in read(folder.metrics) if steps is None or row["env_steps"] <= steps]
    if not rows:
        raise NotFoundError(f"run {folder.id} has no rows of metrics to compare")
    last = rows[-1]["cycles"]
    if "training.budgets" not in decisions:
        raise CheckpointError(f"{folder.decisions} has no training.budgets: put it back from a copy of the run")
    budgets = decisions["training.budgets"]
    with closing(assemble(config, check(config), decisions)) as assembly:
        copy = create(root, config, ["cadenza", "verify", folder.id])
        copy.write_decisions(decisions)
        with RunLock(copy.path):
            run = build_quietly(assembly, copy, Signals())
            for budget, following in zip(budgets, [*budgets[1:], {"concluded": True}], strict=True):
                # a budget that was used up ends the run; one that was replaced ends at the cycle where that happened
                until = sys.maxsize if following["concluded"] else following["from_cycle"]

                def enough(clock: Clock, until: int = until) -> bool:
                    return clock.cycles > last or clock.cycles >= until

                amounts = {key: budget[key] for key in ("max_timesteps", "max_updates")}
                run.config = replace(config, training=replace(config.training, **amounts))
                run.scores.stopped_early = False
                run.run(enough)
            run.metrics.close()
    difference = first_difference(rows, read(copy.metrics)[: len(rows)])
    if difference is not None and (episode := first_episode(folder, copy)) and episode["quantity"] != "existence":
        difference["episode"] = episode
    return difference, differences(folder, copy)["made with"]


def kill_settings(config: RunConfig, steps: int | None) -> list[str]:
    """Return settings with a budget long enough for every kill, and a checkpoint at every cycle."""
    assembly = assemble(config, check(config), {})
    assembly.close()
    collected = [hook.steps or 0 for phase in assembly.phases[:1] for hook in phase.hooks if hook.name == "collect"]
    cycle = max(1, sum(collected))
    return [f"training.max_timesteps={steps or CYCLES * cycle}", f"checkpoint.every_steps={cycle}"]


def uninterrupted(command: Sequence[str], root: Path, report: Report = ignore) -> RunFolder:
    """Run `cadenza train …` in a process of its own, without a kill."""
    report("training without a kill …")
    launch(["train", *command], root)
    return find(root, "@last")


def interrupted(
    command: Sequence[str], root: Path, kills: Sequence[str] = KILLS, report: Report = ignore
) -> tuple[RunFolder, int]:
    """Run the same, killed at each failpoint in turn and resumed after each; return how many kills took effect."""
    count = 0
    for number, kill in enumerate(kills):
        report(f"{'resuming' if number else 'training'}, to be killed at {kill} ({number + 1} of {len(kills)}) …")
        count += launch(["resume", "@last"] if number else ["train", *command], root, kill)
    report("resuming to the end …")
    launch(["resume", "@last"], root)
    return find(root, "@last"), count


def launch(arguments: Sequence[str], root: Path, failpoint: str | None = None) -> bool:
    """Run a command quietly; return whether the failpoint killed it (it may finish before reaching it)."""
    environment = os.environ | {"CADENZA_FAILPOINT": failpoint or ""}
    command = [sys.executable, "-m", "cadenza", *arguments, "--runs-dir", str(root), "--quiet"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    killed = failpoint is not None and abs(process.returncode) == KILL
    if process.returncode and not killed:
        raise CadenzaError(f"`cadenza {' '.join(arguments)}` ended with {process.returncode}: {process.stderr.strip()}")
    return killed


def compare(a: RunFolder, b: RunFolder, ignore: Collection[str] = ()) -> dict[str, Any] | None:
    """Return the first row of metrics, else the first part of the final state (without `ignore`), that differs."""
    difference = first_difference(read(a.metrics), read(b.metrics))
    return difference or first_state_difference(final_state(a), final_state(b), {*TIMES, *ignore})


def final_state(folder: RunFolder) -> dict[str, Any]:
    """Return the leaves of the last checkpoint by path, and the names of the checkpoints `last` and `best`."""
    checkpoints = Checkpoints.from_run(folder)
    pointers = {which: pointer(folder.checkpoints / which) for which in ("last", "best")}
    names = {which: name for which, name in pointers.items() if name is not None}
    state = checkpoints.load(checkpoints.resolve("last"))
    for part in state:
        if "segments" in state[part]:  # compare the rows, not how they are split
            state[part] = whole(state[part], folder.replay / part.removeprefix("store."))
    return {**dict(flat(state)), **names}


def first_state_difference(a: dict[str, Any], b: dict[str, Any], ignore: Collection[str]) -> dict[str, Any] | None:
    """Return the first leaf, by path, that differs or that one state lacks."""
    for path in sorted(a.keys() | b.keys()):
        if path not in ignore and (path not in a or path not in b or not are_equal(a[path], b[path])):
            return {"quantity": f"state {path}", "a": brief(a.get(path)), "b": brief(b.get(path))}
    return None


def flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a state with its path, lists included."""
    if isinstance(tree, dict | list | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in items:
            yield from flat(value, f"{path}.{key}" if path else str(key))
        if not tree:
            yield path, type(tree).__name__
    else:
        yield path, tree


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal bit for bit."""
    if hasattr(a, "tobytes") or hasattr(a, "numpy"):
        if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return bytes_of(a) == bytes_of(b)
    return type(a) is type(b) and repr(a) == repr(b)


def bytes_of(array: Any) -> bytes:
    """Return the bytes of an array or tensor."""
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return bytes(array.tobytes())


def brief(value: Any) -> str:
    """Return the beginning of a value as text."""
    return str(value)[:80]
