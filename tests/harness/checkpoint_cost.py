"""The cost of a checkpoint of a run with a large replay: seconds, and bytes of the files that are really new."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cadenza.data.replay import ReplayStore
from cadenza.engine.orchestrator import Orchestrator
from cadenza.envs.random_actions import random_actions
from cadenza.types import Acted, Step

RECORDED = 1000  # vector steps of the real environment, added again and again


@dataclass(frozen=True)
class Cost:
    written: int  # bytes of all files in the run's folder that are new or were changed
    transitions: int  # bytes of the rows of new transitions alone
    networks: int  # bytes of what learns: weights, optimizers, statistics
    priorities: int  # 4 bytes a slot, where there are some
    seconds: float
    first_written: int  # the same of the checkpoint before, which held nothing yet
    first_seconds: float

    @property
    def allowed(self) -> int:
        return 2 * self.transitions + self.networks + self.priorities


def checkpoint_cost(run: Orchestrator, before: int, new: int) -> Cost:
    """Of the checkpoint after so many new transitions, in a replay that holds so many."""
    store = run.stores["replay"]
    assert isinstance(store, ReplayStore)
    steps = recorded(run)
    add(run, store, steps, before)
    first_written, first_seconds = save(run)
    add(run, store, steps, new)
    written, seconds = save(run)
    newest = run.checkpoints.folder / run.checkpoints.resolve("last")
    slots = store.rows * store.num_envs
    return Cost(
        written=written,
        transitions=new * store.bulk // slots,
        networks=(newest / "workflow.safetensors").stat().st_size,
        priorities=0 if store.alpha is None else 4 * slots,
        seconds=seconds,
        first_written=first_written,
        first_seconds=first_seconds,
    )


def recorded(run: Orchestrator) -> list[tuple[Step, Acted, Step]]:
    assert run.collector is not None
    env, rng, steps = run.collector.env, np.random.default_rng(0), []
    for _ in range(RECORDED):
        step = copy.deepcopy(env.current)
        acted = Acted(random_actions(env.spec.groups, step, rng), {group: {} for group in env.spec.groups}, {})
        steps.append((step, acted, copy.deepcopy(env.step(acted.action))))
    return steps


def add(run: Orchestrator, store: ReplayStore, steps: list[tuple[Step, Acted, Step]], transitions: int) -> None:
    for number in range(transitions // store.num_envs):
        store.add(*steps[number % len(steps)])
    run.clock.env_steps += transitions


def save(run: Orchestrator) -> tuple[int, float]:
    """Bytes and seconds."""
    before, began = files(run.folder.path), time.perf_counter()
    run.save(insist=True)
    seconds = time.perf_counter() - began
    return sum(size for file, size in files(run.folder.path).items() if file not in before), seconds


def files(folder: Path) -> dict[tuple[Path, int, int], int]:
    """Path, inode and time of last change -> bytes."""
    stats = [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]
    return {(path, facts.st_ino, facts.st_mtime_ns): facts.st_size for path, facts in stats}
