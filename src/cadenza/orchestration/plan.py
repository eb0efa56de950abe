"""What a run will need, found by trying: its stores after one step, everything else after some cycles of it."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.config.schema import Phase, RunConfig
from cadenza.data.priorities import Priorities
from cadenza.data.replay import ReplayStore
from cadenza.envs.layout import shape_of
from cadenza.envs.seeds import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.monitor.console import Console
from cadenza.monitor.modules import Owned
from cadenza.monitor.sparkline import size
from cadenza.orchestration import ram
from cadenza.orchestration.build import Assembly, assemble, build, length_of
from cadenza.orchestration.clock import Clock
from cadenza.orchestration.launch import check
from cadenza.orchestration.orchestrator import Orchestrator
from cadenza.orchestration.scheduler import PhaseScheduler
from cadenza.orchestration.signals import STOP, Signals
from cadenza.records.folder import create
from cadenza.records.metrics import read
from cadenza.types import Acted, EnvSpec, GroupSpec, Mode, PhaseInfo, Sealing, Step, Store, Workflow

PATIENCE = 4  # a first cycle that takes so many times the seconds to measure is left unfinished
EPISODE_ROW = 40  # bytes beside the actions: environment, number, seed, length, return
GLIMPSE = 5  # cycles of an offline phase that are measured where others follow
SEGMENT = 500  # bytes of a file of episodes beside them


@dataclass(frozen=True)
class Mark:
    """Where the run stood at the end of a cycle, and when."""

    seconds: float
    env_steps: int
    updates: int
    phase: int  # of the cycle that follows


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
    beside: int | None  # bytes of the process beside its stores; None: nobody tells
    shortened: dict[int, Phase]  # offline phases, by number, of which it saw but a glimpse

    @property
    def cycles(self) -> int:
        return len(self.marks) - 1

    @property
    def glimpses(self) -> dict[int, list[Mark]]:
        """The marks of each shortened phase that it came to."""
        pairs = list(pairwise(self.marks))
        of = {number: [pair for pair in pairs if pair[0].phase == number] for number in self.shortened}
        return {number: [found[0][0], *(after for _, after in found)] for number, found in of.items() if found}

    def before(self, count: str) -> float:
        """What was counted before the settled marks, without the glimpses."""
        glimpsed = sum(getattr(marks[-1], count) - getattr(marks[0], count) for marks in self.glimpses.values())
        return float(getattr(self.settled[0], count) - getattr(self.marks[0], count) - glimpsed)

    def shortened_seconds(self) -> float | None:
        """How long those phases take in full; None if not all of them were seen."""
        seen, total = self.glimpses, 0.0
        for number, phase in self.shortened.items():
            pace = speed(seen[number], "updates") if number in seen else 0.0
            if not pace:
                return None
            total += length_of(phase, collects=False) / pace
        return total

    @property
    def settled(self) -> list[Mark]:
        """The marks of the last phase it came to, behind a warm-up say: all that follows is taken to be like it."""
        reached = self.marks[max(0, self.cycles - 1)].phase
        return [mark for mark in self.marks[:-1] if mark.phase == reached] + self.marks[-1:]

    def per_cycle(self, count: str) -> float | None:
        first, *others = self.settled
        return (getattr(others[-1], count) - getattr(first, count)) / len(others) if others else None

    def per_second(self, count: str) -> float:
        if not self.cycles:  # collecting alone
            return float(getattr(self.clock, count)) / self.seconds
        return speed(self.settled, count)


def speed(marks: list[Mark], count: str) -> float:
    """Over all cycles but the first, which warms up, where there are more."""
    first, last = marks[1 if len(marks) > 2 else 0], marks[-1]
    return float(getattr(last, count) - getattr(first, count)) / (last.seconds - first.seconds)


@dataclass(frozen=True)
class Held:
    """What a store takes: exactly, or at least as much where not even that could be allocated."""

    bytes: int
    shape: tuple[int, ...]  # of its largest array
    at_least: bool = False
    files: int | None = None  # bytes it keeps beside the checkpoints; None: everything is in them
    mapped: int = 0  # bytes of a file it works on: in memory while nobody else needs that, and not counted above
    renewed: int = 0  # bytes among `files` that each checkpoint has anew


def plan(config: RunConfig, seconds: float) -> dict[str, Any]:
    """What `cadenza plan --json` prints, less what belongs to the place where runs are kept."""
    spec = check(config)
    stores = measure_stores(config, spec)
    refuse_too_much(config, stores)
    shown = replace(
        config,
        evaluation=replace(config.evaluation, every_steps=None, every_updates=None, at_end=False, video=False),
        checkpoint=replace(config.checkpoint, every_steps=0, every_updates=0),
    )
    with tempfile.TemporaryDirectory(prefix="cadenza-plan-") as scratch, Signals() as signals:
        assembly = assemble(shown, spec, {})
        try:
            folder = create(Path(scratch), shown, ["cadenza", "plan"])
            run = build(assembly, folder, Console(quiet=True, total=None), signals)
            run.scheduler = PhaseScheduler(with_glimpses(assembly.phases))
            measured = measure(run, to_shorten(assembly.phases), seconds)
            for name, held in stores.items():  # some grow
                later = held_by(assembly.stores[name], assembly.env and assembly.env.current)
                stores[name] = max(held, later, key=lambda one: one.bytes)
        finally:
            assembly.close()
    outline = outline_of(config, assembly, measured)
    return {
        "spec": f"{config.environment.id}:{config.variant}",
        "experiment": config.experiment,
        "device": assembly.decisions["device"],
        "environments": environments_of(config, assembly),
        "run": outline,
        "memory": memory_of(assembly.workflow, stores, measured.beside),
        "disk": disk_of(config, spec, measured, outline, stores),
        "time": time_of(config, spec, measured, outline),
    }


# measuring


def measure_stores(config: RunConfig, spec: EnvSpec) -> dict[str, Held]:
    """The memory of each store: known beforehand, or allocated with the first step and not yet touched beyond that."""
    assembly = assemble(config, spec, {})
    try:
        if assembly.env is None:
            return {name: measure_replay(assembly.stores[name], spec, assembly) for name in assembly.given}
        step = assembly.env.current
        acted = first_act(assembly, step)
        after = assembly.env.step(acted.action)
        filled = {
            hook.buffer or phase.buffer for phase in assembly.phases for hook in phase.hooks if hook.name == "collect"
        }
        spec = assembly.env.spec
        return {name: measure_store(assembly.stores[name], spec, step, acted, after) for name in sorted(filled)}
    finally:
        assembly.close()


def first_act(assembly: Assembly, step: Step) -> Acted:
    phase = assembly.phases[0]
    info = PhaseInfo(phase.name, phase.type, 0, assembly.decisions["training.horizon"])
    carry = assembly.workflow.initial_carry(len(step.is_first))
    return assembly.workflow.act(step, carry, Mode(True, info, assembly.streams))


def measure_store(store: Store, spec: EnvSpec, step: Step, acted: Acted, after: Step) -> Held:
    if isinstance(store, ReplayStore):
        masks = {group: mask.shape[-1] for group, mask in step.mask.items()}
        extras = [item for group in acted.extras.values() for item in group.items() if item[0] != "carry"]
        more, slots = sum(data[:1].nbytes for _, data in extras), store.rows * store.num_envs
        rows = ReplayStore.bytes_for(spec, store.num_envs, slots, masks=masks, extras=more, stack=store.stack)
        revised = sum(data[:1].nbytes for name, data in extras if name in store.revisable)
        return held_by_replay(store, rows, slots * revised)
    try:
        store.add(step, acted, after)
    except MemoryError as problem:
        shape, dtype = getattr(problem, "shape", None), getattr(problem, "dtype", None)
        if shape is None or dtype is None:  # not NumPy's
            raise
        return Held(prod(shape) * dtype.itemsize, shape, at_least=True)
    return held_by(store, (step, acted, after))


def measure_replay(store: Store, spec: EnvSpec, assembly: Assembly) -> Held:
    """One that is filled from a dataset; it will tell of masks, which are in no space, by itself."""
    assert isinstance(store, ReplayStore)
    slots, revised = store.rows * store.num_envs, 0
    if store.revisable:  # what learning puts beside the rows is as large as what acting would
        env = make_vector(assembly.config.environment, EpisodeSeeds(assembly.config.seed, TRAIN), num_envs=1)
        try:
            noted = first_act(assembly, env.current).extras.values()
        finally:
            env.close()
        revised = sum(extras[name].nbytes for extras in noted for name in store.revisable)
    rows = ReplayStore.bytes_for(spec, store.num_envs, slots, extras=revised, stack=store.stack)
    return held_by_replay(store, rows, slots * revised)


def held_by(store: Store, passing: Any) -> Held:
    """What the store owns; it may look at what passes through without owning it."""
    if isinstance(store, ReplayStore):
        return held_by_replay(store, store.bulk, store.revised_bulk)
    others, arrays = ram.blocks(passing), ram.arrays(store)
    own = {address: held for address, held in ram.blocks(store).items() if address not in others}
    shape = tuple(max(arrays, key=lambda array: array.nbytes).shape) if arrays else ()
    files = store.bulk * (2 if store.on_disk else 1) if isinstance(store, Sealing) else None
    return Held(sum(own.values()), shape, files=files)


def held_by_replay(store: ReplayStore, rows: int, revised: int = 0) -> Held:
    """With rows of so many bytes in all, so many of them of what learning replaces."""
    slots = store.rows * store.num_envs
    weights = 0 if store.alpha is None else Priorities.bytes_for(slots)
    if store.on_disk:
        return Held(weights, (slots,), files=2 * rows, mapped=rows, renewed=revised)
    return Held(rows + weights, (slots,), files=rows, renewed=revised)


def to_shorten(phases: tuple[Phase, ...]) -> dict[int, Phase]:
    """By number, the offline phases that others follow: a measurement should get beyond them."""
    return {number: phase for number, phase in enumerate(phases[:-1]) if phase.type == "offline"}


def with_glimpses(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    short = {
        number: replace(phase, duration_updates=None, duration_cycles=GLIMPSE)
        for number, phase in to_shorten(phases).items()
    }
    return tuple(short.get(number, phase) for number, phase in enumerate(phases))


def measure(run: Orchestrator, shortened: dict[int, Phase], seconds: float) -> Measured:
    """Some cycles of the run, for about so long, and one evaluation of what came of them."""
    marks: list[Mark] = []
    held: list[int | None] = []  # before the last checkpoint, which seals all rows at once, and after it
    run.save(insist=True)
    checkpoint = checkpoint_files(run)
    began = time.monotonic()

    def seen_enough(clock: Clock) -> bool:
        now = time.monotonic() - began
        marks.append(Mark(now, clock.env_steps, clock.updates, run.scheduler.index))
        reached = len(marks) > 1 and marks[-2].phase == len(run.scheduler.phases) - 1  # what a run mostly does
        enough = reached and now >= seconds
        if enough:
            held.append(resident_beside(run.stores))
        return enough

    def stop() -> None:
        held.append(resident_beside(run.stores))
        run.signals.stop()

    hurry = threading.Timer(PATIENCE * seconds, stop)
    hurry.start()
    try:
        ended_by = run.run(seen_enough)
    finally:
        hurry.cancel()
    if ended_by not in (None, STOP):
        raise KeyboardInterrupt
    spent = time.monotonic() - began
    held.append(resident_beside(run.stores))
    if not run.clock.updates:
        update_once(run)
    run.write_row(None)  # perhaps none was due yet
    rows = read(run.folder.metrics)
    started = time.monotonic()
    phase = PhaseInfo(run.clock.phase, "eval_only", run.now, run.decisions["training.horizon"])
    evaluation = run.evaluator(0, phase, lambda: time.monotonic() - started >= seconds)
    finished = len(evaluation.episodes)  # perhaps not all that were asked for
    beside = resident_beside(run.stores)
    if beside is not None and held[0] is not None and held[-1] is not None:
        beside += held[0] - held[-1]  # a run seals its rows a few at a time
    return Measured(
        marks=marks,
        shortened=shortened,
        clock=run.clock,
        seconds=spent,
        checkpoint=checkpoint_files(run) if len(marks) > 1 else checkpoint,
        row=run.folder.metrics.stat().st_size / len(rows) if rows else 0.0,
        evaluation=(time.monotonic() - started) * evaluation.asked / finished if finished else None,
        evaluation_steps=sum(episode.length for episode in evaluation.episodes),
        finished=finished,
        beside=beside,
    )


def update_once(run: Orchestrator) -> None:
    """Every update that was not reached in time, behind a long warm-up say: what it needs, the run will need, too."""
    for phase in run.scheduler.phases:
        info = PhaseInfo(phase.name, phase.type, run.now, run.decisions["training.horizon"])
        for hook in phase.hooks:
            store = run.stores[hook.buffer or phase.buffer]
            if hook.name in run.workflow.hooks and store.ready():
                getattr(run.workflow, hook.name)(store, info)


def resident_beside(stores: dict[str, Store]) -> int | None:
    """What this process holds beside its stores: interpreter, libraries, environments, networks, what updates need."""
    now, pieces = ram.resident(), ram.blocks(stores) | ram.mapped(stores)
    return None if now is None else now - ram.touched(pieces)


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
        if value > 1 and {value, value - value % whole} & set(largest.shape) and (less := part(value, room / needed))
    ]
    amount = f"{'at least ' if largest.at_least else ''}{size(needed)}"
    advice = f": {' or '.join(fitting)} would fit" if fitting else f": {room / needed:.0%} of it would fit"
    raise ConfigError(f"store '{name}' needs {amount} of memory, {size(room)} are available{advice}")


def part(value: int, share: float) -> int:
    """So much of it, rounded down to three digits."""
    less = int(value * share)
    digits = int(10 ** max(0, len(str(less)) - 3))
    return less // digits * digits


def environments_of(config: RunConfig, assembly: Assembly) -> dict[str, Any]:
    decided = assembly.decisions.get("environment.vectorize")
    return {
        "count": config.environment.num_envs if assembly.env is not None else 0,
        "vectorize": decided["value"] if decided else config.environment.vectorize,
        "workers": assembly.decisions.get("environment.workers"),
        "evaluation_count": assembly.evaluator.num_envs,
    }


def outline_of(config: RunConfig, assembly: Assembly, measured: Measured) -> dict[str, Any]:
    """How long the run is in every unit. Cycles are taken to be as those of the last phase that was measured."""
    decisions, training = assembly.decisions, config.training
    start, done = measured.settled[0], round(measured.before("updates"))
    glimpsed = sum(len(marks) - 1 for marks in measured.glimpses.values())
    earlier = len(measured.marks) - len(measured.settled) - glimpsed
    steps, updates = measured.per_cycle("env_steps"), measured.per_cycle("updates")
    before = sum(length_of(phase, collects=False) for phase in measured.shortened.values())
    if steps is None:
        steps = float(sum(hook.steps or 0 for hook in assembly.phases[0].hooks)) or None
    left = None if training.max_updates is None else max(0, training.max_updates - before)
    ends = [
        ceil(max(0, budget - spent) / each)
        for budget, spent, each in ((training.max_timesteps, start.env_steps, steps), (left, done, updates))
        if budget is not None and each
    ]
    if not ends:
        in_steps = decisions["training.unit"] == "env_steps"
        spent, each = (start.env_steps, steps) if in_steps else (before + done, updates)
        ends = [ceil(max(0, decisions["training.horizon"] - spent) / each)] if each else []
    cycles = min(ends, default=None)
    offline = not steps

    def happens(settings: Any, after: int = 0, at_end: bool = False) -> int | None:
        each, interval = (updates, settings.every_updates) if offline else (steps, settings.every_steps)
        if cycles is None or not each:
            return None
        spent = done if offline else start.env_steps
        less, found = (crossings(interval, each, count, after, spent) for count in (cycles - 1, cycles))
        offline_ones = before // settings.every_updates if settings.every_updates else 0
        return found + offline_ones + (at_end and found == less)  # the end is not evaluated twice

    return {
        "phases": [phase.name for phase in assembly.phases],
        "cycles": None if cycles is None else earlier + cycles,
        "env_steps": None if cycles is None else start.env_steps + round(cycles * (steps or 0)),
        "updates": None if cycles is None or updates is None else before + done + round(cycles * updates),
        "offline_updates": before,
        "env_steps_per_cycle": steps,
        "updates_per_cycle": updates,
        "evaluations": happens(config.evaluation, config.evaluation.warmup_steps, config.evaluation.at_end),
        "rows": happens(config.logging),
        "checkpoints": happens(config.checkpoint),
    }


def crossings(interval: int | None, each: float, cycles: int, after: int = 0, start: int = 0) -> int:
    """At how many ends of cycles, `each` long from `start`, a multiple of the interval beyond `after` was crossed."""
    if not interval:
        return 0
    longer = max(float(interval), each)
    return max(0, int((start + cycles * each) // longer) - int(after // longer))


def memory_of(workflow: Workflow, stores: dict[str, Held], beside: int | None) -> dict[str, Any]:
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
        "mapped_bytes": sum(held.mapped for held in stores.values()),
        "process_bytes": beside,
        "total_bytes": None if beside is None else beside + sum(held.bytes for held in stores.values()),
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
    replay = sum((held.files or 0) + (config.checkpoint.keep - 1) * held.renewed for held in stores.values())
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
    pace = measured.per_second("env_steps" if collects else "updates")
    offline, before = measured.shortened_seconds(), measured.before("seconds")
    length = outline["env_steps"] if collects else outline["updates"]
    spent = measured.before("env_steps") if collects else outline["offline_updates"] + measured.before("updates")
    count, limit = outline["evaluations"], spec.max_episode_steps
    usual, longest = measured.evaluation, None
    if limit is not None:
        steps, asked = config.evaluation.episodes * limit, config.evaluation.episodes
        if usual is not None and measured.evaluation_steps:
            longest = max(usual, usual / asked * measured.finished / measured.evaluation_steps * steps)
        elif collects and pace:
            longest = steps / pace
    return {
        "measured_cycles": measured.cycles,
        "env_steps_per_second": pace if collects else None,
        "updates_per_second": measured.per_second("updates") if measured.cycles else None,
        "training_seconds": (
            offline + before + (length - spent) / pace if length is not None and pace and offline is not None else None
        ),
        "evaluation_seconds": None if count is None or usual is None else count * usual,
        "evaluation_seconds_at_most": None if count is None or longest is None else count * longest,
    }
