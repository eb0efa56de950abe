"""What a run will need, found by trying: its stores after one step, everything else after some cycles of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from math import isfinite, nan, prod
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.base import system_memory
from cadenza.base.formatting import size
from cadenza.config.schema import Phase, RunConfig
from cadenza.data.priorities import Priorities
from cadenza.data.replay import ReplayStore
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check, nothing_learned
from cadenza.engine.signals import Signals
from cadenza.envs.layout import shape_of
from cadenza.envs.seeds import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.lab.session import build_quietly
from cadenza.records.folder import create
from cadenza.tools.plan_forecast import Forecast, Pace, forecast, paces_of
from cadenza.tools.plan_measure import Measured, measure
from cadenza.types import Acted, EnvSpec, GroupSpec, Mode, PhaseInfo, Sealing, Step, Store, Workflow
from cadenza.watch.workflow_contents import WorkflowContents

EPISODE_ROW = 40  # bytes beside the actions: environment, number, seed, length, return
SEGMENT = 500  # bytes of a file of episodes beside them


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
            run = build_quietly(assembly, folder, signals)
            measured = measure(run, seconds)
            for name, held in stores.items():  # some grow
                later = held_by(assembly.stores[name], assembly.env and assembly.env.current)
                stores[name] = max(held, later, key=lambda one: one.bytes)
        finally:
            assembly.close()
    phases = assembly.phases
    paces = paces_of(phases, config.environment.num_envs, measured.marks, measured.stopped)
    expected = forecast(config, phases, paces)
    outline = outline_of(phases, expected)
    return {
        "spec": f"{config.environment.id}:{config.variant}",
        "experiment": config.experiment,
        "device": assembly.decisions["device"],
        "environments": environments_of(config, assembly),
        "run": outline,
        "memory": memory_of(assembly.workflow, stores, measured.beside),
        "disk": disk_of(config, spec, measured, outline, stores),
        "time": time_of(config, spec, measured, paces, expected),
        "warnings": warnings_of(config, phases, expected),
    }


# stores


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
    others, arrays = system_memory.blocks(passing), system_memory.arrays(store)
    own = {address: held for address, held in system_memory.blocks(store).items() if address not in others}
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


# what follows from it


def refuse_too_much(config: RunConfig, stores: dict[str, Held]) -> None:
    """Stores that cannot be had are a mistake in the settings that size them."""
    room, needed = system_memory.available(), sum(held.bytes for held in stores.values())
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


def outline_of(phases: tuple[Phase, ...], expected: Forecast) -> dict[str, Any]:
    """How long the run is in every unit."""
    last = expected.last
    return {
        "phases": [phase.name for phase in phases],
        "cycles": whole(expected.total("cycles")),
        "env_steps": whole(expected.total("env_steps")),
        "updates": whole(expected.total("updates")),
        "offline_updates": whole(expected.offline_updates),
        "env_steps_per_cycle": None if last is None else known(last.pace.env_steps),
        "updates_per_cycle": None if last is None else known(last.pace.updates),
        "evaluations": whole(expected.evaluations),
        "rows": whole(expected.rows),
        "checkpoints": whole(expected.checkpoints),
    }


def known(count: float) -> float | None:
    return count if isfinite(count) else None


def whole(count: float) -> int | None:
    return round(count) if isfinite(count) else None


def warnings_of(config: RunConfig, phases: tuple[Phase, ...], expected: Forecast) -> list[str]:
    """What a reader of the numbers alone might miss."""
    found = []
    vain = nothing_learned(config.training.max_timesteps, phases)
    if vain is not None:
        found.append(vain)
    elif expected.beyond:
        found.append(f"the budget ends before {named(expected.beyond)}")
    if expected.open:
        seen = f"too little was seen of {named(expected.open)}, so the run's time is open"
        found.append(f"{seen}; --seconds N measures longer")
    return found


def named(phases: list[str]) -> str:
    return f"phase{'s' * (len(phases) > 1)} {', '.join(phases)}"


def memory_of(workflow: Workflow, stores: dict[str, Held], beside: int | None) -> dict[str, Any]:
    owned = WorkflowContents(workflow)
    parameters = {id(parameter): parameter for parameter in owned.parameters.values()}.values()
    buffers = [list(module.buffers()) for module in owned.modules.values()]
    networks = system_memory.blocks([list(parameters), buffers])
    state = system_memory.blocks(workflow.state_dict())
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
        "available_bytes": system_memory.available(),
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
    rows = outline["rows"] or 1
    episodes = 0.0
    if config.logging.episodes and outline["env_steps"]:
        share = max(measured.episodes / max(1, measured.stopped.env_steps), 1 / limit if limit else 0.0)
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


def time_of(
    config: RunConfig, spec: EnvSpec, measured: Measured, paces: list[Pace], expected: Forecast
) -> dict[str, Any]:
    if measured.cycles:
        pace = paces[measured.marks[-2].phase]
    else:  # collecting alone
        pace = Pace(measured.stopped.env_steps, nan, measured.stopped.seconds)
    speed = pace.env_steps / pace.seconds
    count, limit = whole(expected.evaluations), spec.max_episode_steps
    usual, longest = measured.evaluation, None
    if limit is not None:
        steps, asked = config.evaluation.episodes * limit, config.evaluation.episodes
        if usual is not None and measured.evaluation_steps:
            longest = max(usual, usual / asked * measured.finished / measured.evaluation_steps * steps)
        elif speed:
            longest = steps / speed
    return {
        "measured_cycles": measured.cycles,
        "env_steps_per_second": speed or None,
        "updates_per_second": known(pace.updates / pace.seconds),
        "training_seconds": known(expected.total("seconds")),
        "evaluation_seconds": None if count is None or usual is None else count * usual,
        "evaluation_seconds_at_most": None if count is None or longest is None else count * longest,
    }
