"""What a run will need, found by trying: its stores after one step, everything else after some cycles of it."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.config.schema import RunConfig
from cadenza.envs.layout import shape_of
from cadenza.errors import ConfigError
from cadenza.monitor.console import Console
from cadenza.monitor.modules import Owned
from cadenza.monitor.sparkline import size
from cadenza.orchestration import ram
from cadenza.orchestration.build import Assembly, assemble, build
from cadenza.orchestration.clock import Clock
from cadenza.orchestration.launch import check
from cadenza.orchestration.orchestrator import Orchestrator
from cadenza.orchestration.signals import STOP, Signals
from cadenza.records.folder import create
from cadenza.records.metrics import read
from cadenza.types import Acted, EnvSpec, GroupSpec, Mode, PhaseInfo, Sealing, Step, Store, Workflow

PATIENCE = 4  # a first cycle that takes so many times the seconds to measure is left unfinished
EPISODE_ROW = 40  # bytes beside the actions: environment, number, seed, length, return
SEGMENT = 500  # bytes of a file of episodes beside them


@dataclass(frozen=True)
class Mark:
    """Where the run stood at the end of a cycle, and when."""

    seconds: float
    env_steps: int
    updates: int


@dataclass(frozen=True)
class Measured:
    """What a stretch of the run showed."""

    marks: list[Mark]  # the beginning and the end of each cycle; only the first if not one was finished in time
    clock: Clock
    seconds: float
    checkpoint: dict[str, int]  # file -> bytes, at the end of a cycle, or the very first
    row: float  # bytes of metrics.jsonl per row
    evaluation: float | None  # seconds of one evaluation; None: not one of its episodes came to an end
    evaluation_steps: int  # env_steps of its finished episodes
    finished: int  # how many those were

    @property
    def cycles(self) -> int:
        return len(self.marks) - 1

    def per_cycle(self, count: str) -> float | None:
        return (getattr(self.marks[-1], count) - getattr(self.marks[0], count)) / self.cycles if self.cycles else None

    def per_second(self, count: str) -> float:
        """Over all cycles but the first, which warms up, where there are more."""
        if not self.cycles:  # collecting alone
            return float(getattr(self.clock, count)) / self.seconds
        first, last = self.marks[1 if self.cycles > 1 else 0], self.marks[-1]
        return float(getattr(last, count) - getattr(first, count)) / (last.seconds - first.seconds)


@dataclass(frozen=True)
class Held:
    """What a store takes: exactly, or at least as much where not even that could be allocated."""

    bytes: int
    shape: tuple[int, ...]  # of its largest array
    at_least: bool = False
    files: int | None = None  # bytes it keeps beside the checkpoints; None: everything is in them


def plan(config: RunConfig, seconds: float) -> dict[str, Any]:
    """What `cadenza plan --json` prints, less what belongs to the place where runs are kept."""
    spec = check(config)
    stores = measure_stores(config, spec)
    refuse_too_much(config, stores)
    shown = replace(
        config,
        evaluation=replace(config.evaluation, every_steps=None, every_updates=None, at_end=False, video=False),
        checkpoint=replace(config.checkpoint, every_steps=0, every_updates=0),
        logging=replace(config.logging, every_steps=1, every_updates=1),
    )
    with tempfile.TemporaryDirectory(prefix="cadenza-plan-") as scratch, Signals() as signals:
        assembly = assemble(shown, spec, {})
        try:
            folder = create(Path(scratch), shown, ["cadenza", "plan"])
            run = build(assembly, folder, Console(quiet=True, total=None), signals)
            measured = measure(run, seconds)
            for name, held in stores.items():  # some grow
                later = held_by(assembly.stores[name], assembly.env and assembly.env.current)
                stores[name] = max(held, later, key=lambda one: one.bytes)
        finally:
            assembly.close()
    outline = outline_of(config, assembly, measured)
    return {
        "spec": f"{config.environment.id}:{config.algorithm.name}",
        "experiment": config.experiment,
        "device": assembly.decisions["device"],
        "environments": environments_of(config, assembly),
        "run": outline,
        "memory": memory_of(assembly.workflow, stores),
        "disk": disk_of(config, spec, measured, outline, stores),
        "time": time_of(config, spec, measured, outline),
    }


# measuring


def measure_stores(config: RunConfig, spec: EnvSpec) -> dict[str, Held]:
    """The memory of each store: it is allocated with the first step, and not yet touched beyond that."""
    assembly = assemble(config, spec, {})
    try:
        if assembly.env is None:
            return {}
        step, phase = assembly.env.current, assembly.phases[0]
        info = PhaseInfo(phase.name, phase.type, 0, assembly.decisions["training.horizon"])
        carry = assembly.workflow.initial_carry(assembly.env.num_envs)
        acted = assembly.workflow.act(step, carry, Mode(True, info, assembly.streams))
        after = assembly.env.step(acted.action)
        filled = {
            hook.buffer or phase.buffer for phase in assembly.phases for hook in phase.hooks if hook.name == "collect"
        }
        return {name: measure_store(assembly.stores[name], step, acted, after) for name in sorted(filled)}
    finally:
        assembly.close()


def measure_store(store: Store, step: Step, acted: Acted, after: Step) -> Held:
    try:
        store.add(step, acted, after)
    except MemoryError as problem:
        shape, dtype = getattr(problem, "shape", None), getattr(problem, "dtype", None)
        if shape is None or dtype is None:  # not NumPy's
            raise
        return Held(prod(shape) * dtype.itemsize, shape, at_least=True)
    return held_by(store, (step, acted, after))


def held_by(store: Store, passing: Any) -> Held:
    """What the store owns; it may look at what passes through without owning it."""
    others, arrays = ram.blocks(passing), ram.arrays(store)
    own = {address: held for address, held in ram.blocks(store).items() if address not in others}
    shape = tuple(max(arrays, key=lambda array: array.nbytes).shape) if arrays else ()
    files = store.bulk * (2 if store.on_disk else 1) if isinstance(store, Sealing) else None
    return Held(sum(own.values()), shape, files=files)


def measure(run: Orchestrator, seconds: float) -> Measured:
    """Some cycles of the run, for about so long, and one evaluation of what came of them."""
    marks: list[Mark] = []
    run.save(insist=True)
    checkpoint = checkpoint_files(run)
    began = time.monotonic()

    def seen_enough(clock: Clock) -> bool:
        now = time.monotonic() - began
        marks.append(Mark(now, clock.env_steps, clock.updates))
        return len(marks) > 1 and now >= seconds

    hurry = threading.Timer(PATIENCE * seconds, run.signals.stop)
    hurry.start()
    try:
        ended_by = run.run(seen_enough)
    finally:
        hurry.cancel()
    if ended_by not in (None, STOP):
        raise KeyboardInterrupt
    spent = time.monotonic() - began
    rows = read(run.folder.metrics)
    started = time.monotonic()
    phase = PhaseInfo(run.clock.phase, "eval_only", run.now, run.decisions["training.horizon"])
    evaluation = run.evaluator(0, phase, lambda: time.monotonic() - started >= seconds)
    finished = len(evaluation.episodes)  # perhaps not all that were asked for
    return Measured(
        marks=marks,
        clock=run.clock,
        seconds=spent,
        checkpoint=checkpoint_files(run) if len(marks) > 1 else checkpoint,
        row=run.folder.metrics.stat().st_size / len(rows) if rows else 0.0,
        evaluation=(time.monotonic() - started) * evaluation.asked / finished if finished else None,
        evaluation_steps=sum(episode.length for episode in evaluation.episodes),
        finished=finished,
    )


def checkpoint_files(run: Orchestrator) -> dict[str, int]:
    folder = run.checkpoints.folder / run.checkpoints.resolve("last")
    return {file.name: file.stat().st_size for file in folder.iterdir()}


# what follows from it


def refuse_too_much(config: RunConfig, stores: dict[str, Held]) -> None:
    """Stores that cannot be had are a mistake in the settings that size them."""
    room, needed = ram.available(), sum(held.bytes for held in stores.values())
    if room is None or (needed <= room and not any(held.at_least for held in stores.values())):
        return
    name, largest = max(stores.items(), key=lambda item: item[1].bytes)
    sizing = {"environment.num_envs": config.environment.num_envs}
    sizing |= {f"algorithm.{key}": value for key, value in vars(config.algorithm).items() if type(value) is int}
    whole = config.environment.num_envs  # a capacity is shared out in equal parts
    fitting = [
        f"{key}={less} (not {value})"
        for key, value in sizing.items()
        if value > 1 and {value, value - value % whole} & set(largest.shape) and (less := int(value * room / needed))
    ]
    amount = f"{'at least ' if largest.at_least else ''}{size(needed)}"
    advice = f": {' or '.join(fitting)} would fit" if fitting else f": {room / needed:.0%} of it would fit"
    raise ConfigError(f"store '{name}' needs {amount} of memory, {size(room)} are available{advice}")


def environments_of(config: RunConfig, assembly: Assembly) -> dict[str, Any]:
    decided = assembly.decisions.get("environment.vectorize")
    return {
        "count": config.environment.num_envs if assembly.env is not None else 0,
        "vectorize": decided["value"] if decided else config.environment.vectorize,
        "workers": assembly.decisions.get("environment.workers"),
        "evaluation_count": assembly.evaluator.num_envs,
    }


def outline_of(config: RunConfig, assembly: Assembly, measured: Measured) -> dict[str, Any]:
    """How long the run is in every unit. Cycles are taken to be as those of the first phase."""
    decisions, training = assembly.decisions, config.training
    steps, updates = measured.per_cycle("env_steps"), measured.per_cycle("updates")
    if steps is None:
        steps = float(sum(hook.steps or 0 for hook in assembly.phases[0].hooks)) or None
    ends = [
        ceil(budget / each)
        for budget, each in ((training.max_timesteps, steps), (training.max_updates, updates))
        if budget is not None and each
    ]
    if not ends:
        each = steps if decisions["training.unit"] == "env_steps" else updates
        ends = [ceil(decisions["training.horizon"] / each)] if each else []
    cycles = min(ends, default=None)
    offline = not steps

    def happens(settings: Any, after: int = 0, at_end: bool = False) -> int | None:
        each, interval = (updates, settings.every_updates) if offline else (steps, settings.every_steps)
        if cycles is None or not each:
            return None
        before, found = (crossings(interval, each, count, after) for count in (cycles - 1, cycles))
        return found + (at_end and found == before)  # the end is not evaluated twice

    return {
        "phases": [phase.name for phase in assembly.phases],
        "cycles": cycles,
        "env_steps": None if cycles is None else round(cycles * (steps or 0)),
        "updates": None if cycles is None or updates is None else round(cycles * updates),
        "env_steps_per_cycle": steps,
        "updates_per_cycle": updates,
        "evaluations": happens(config.evaluation, config.evaluation.warmup_steps, config.evaluation.at_end),
        "rows": happens(config.logging),
        "checkpoints": happens(config.checkpoint),
    }


def crossings(interval: int | None, each: float, cycles: int, after: int = 0) -> int:
    """At how many ends of cycles, `each` long, a multiple of the interval beyond `after` has been crossed."""
    if not interval:
        return 0
    longer = max(float(interval), each)
    return max(0, int(cycles * each // longer) - int(after // longer))


def memory_of(workflow: Workflow, stores: dict[str, Held]) -> dict[str, Any]:
    owned = Owned(workflow)
    parameters = {id(parameter): parameter for parameter in owned.parameters.values()}.values()
    buffers = [list(module.buffers()) for module in owned.modules.values()]
    networks = ram.blocks([list(parameters), buffers])
    state = ram.blocks(workflow.state_dict())
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "networks_bytes": sum(networks.values()),
        "gradients_bytes": sum(parameter.nbytes for parameter in parameters if parameter.requires_grad),
        "learning_bytes": sum(held for address, held in state.items() if address not in networks),
        "stores": {name: held.bytes for name, held in stores.items()},
        "stores_bytes": sum(held.bytes for held in stores.values()),
        "process_bytes": ram.peak(),
        "available_bytes": ram.available(),
    }


def disk_of(
    config: RunConfig, spec: EnvSpec, measured: Measured, outline: dict[str, Any], stores: dict[str, Held]
) -> dict[str, Any]:
    checkpoint = dict(measured.checkpoint)
    for name, held in stores.items():
        file = f"store.{name}.safetensors"
        if file in checkpoint and held.files is None:  # what keeps something beyond a cycle will be full one day
            checkpoint[file] = held.bytes
    action = sum(action_bytes(group) for group in spec.groups.values())
    typical = sum(checkpoint.values())
    limit = spec.max_episode_steps
    most = None if limit is None else typical + config.environment.num_envs * limit * action
    kept = config.checkpoint.keep + 1  # and the best
    rows = max(outline["rows"] or 0, outline["evaluations"] or 0) + 1  # one row tells of both; the end has one
    episodes = 0.0
    if config.logging.episodes and outline["env_steps"]:
        share = max(measured.clock.episodes / max(1, measured.clock.env_steps), 1 / limit if limit else 0.0)
        episodes = outline["env_steps"] * (action + EPISODE_ROW * share) + outline["checkpoints"] * SEGMENT
    replay = sum(held.files or 0 for held in stores.values())
    total = kept * (most or typical) + rows * measured.row + episodes + replay
    return {
        "checkpoint_bytes": typical,
        "checkpoint_bytes_at_most": most,  # with every running episode at its time limit
        "checkpoints_kept": kept,
        "checkpoints_bytes": kept * (most or typical),
        "metrics_bytes": round(rows * measured.row),
        "episodes_bytes": round(episodes),
        "replay_bytes": replay,
        "total_bytes": round(total),
    }


def action_bytes(group: GroupSpec) -> int:
    shape, dtype = shape_of(group.action)
    return len(group.agents) * prod(shape) * int(np.dtype(dtype).itemsize)


def time_of(config: RunConfig, spec: EnvSpec, measured: Measured, outline: dict[str, Any]) -> dict[str, Any]:
    collects = bool(outline["env_steps_per_cycle"])
    speed = measured.per_second("env_steps" if collects else "updates")
    length = outline["env_steps"] if collects else outline["updates"]
    count, limit = outline["evaluations"], spec.max_episode_steps
    usual, longest = measured.evaluation, None
    if limit is not None:
        steps, asked = config.evaluation.episodes * limit, config.evaluation.episodes
        if usual is not None and measured.evaluation_steps:
            longest = max(usual, usual / asked * measured.finished / measured.evaluation_steps * steps)
        elif collects and speed:
            longest = steps / speed
    return {
        "measured_cycles": measured.cycles,
        "env_steps_per_second": speed if collects else None,
        "updates_per_second": measured.per_second("updates") if measured.cycles else None,
        "training_seconds": length / speed if length is not None and speed else None,
        "evaluation_seconds": None if count is None or usual is None else count * usual,
        "evaluation_seconds_at_most": None if count is None or longest is None else count * longest,
    }
