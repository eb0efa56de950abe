"""Estimate what a run needs: stores from their settings and one step, everything else from a few cycles of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, fields, replace
from math import isfinite, nan, prod
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.base import resource_usage
from cadenza.base.formatting import size
from cadenza.config.schema import Phase, RunConfig
from cadenza.data.priorities import Priorities
from cadenza.data.replay import ReplayStore
from cadenza.engine.advice import end_note, no_updates_warning, time_limit_warning
from cadenza.engine.build import Assembly, assemble
from cadenza.engine.launch import check
from cadenza.engine.signals import Signals
from cadenza.envs.layout import shape_of
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.lab.session import build_quietly
from cadenza.records.folder import create
from cadenza.tools import object_memory
from cadenza.tools.plan_forecast import Forecast, Pace, forecast, paces_of
from cadenza.tools.plan_measure import Measured, measure
from cadenza.types import Acted, EnvSpec, Mode, PhaseInfo, Sealing, Step, Store, Workflow
from cadenza.watch.workflow_contents import WorkflowContents

EPISODE_ROW = 40  # bytes of a stored episode besides its actions: environment, number, seed, length, return
EPISODE_FILE = 500  # bytes of a file of episodes besides its rows


@dataclass(frozen=True)
class Footprint:
    """The bytes that a full store needs in memory and on disk."""

    memory: int
    shape: tuple[int, ...]  # of its largest array
    at_least: bool = False  # the array could not even be allocated
    files: int | None = None  # bytes beside the checkpoints; None: checkpoints hold everything
    mapped: int = 0  # bytes of a memory-mapped file: resident while memory is free, not part of `memory`
    renewed: int = 0  # bytes among `files` that every checkpoint writes again


def plan(config: RunConfig, seconds: float) -> dict[str, Any]:
    """Return what `cadenza plan --json` prints, without the facts about the disk that holds the runs."""
    spec = check(config)
    stores = measure_stores(config, spec)
    refuse_too_much(config, stores)
    quiet = replace(
        config,
        evaluation=replace(
            config.evaluation, every_steps=None, every_updates=None, at_start=False, at_end=False, video=False
        ),
        checkpoint=replace(config.checkpoint, every_steps=0, every_updates=0),
    )
    scratch_folder = tempfile.TemporaryDirectory(prefix="cadenza-plan-")
    with scratch_folder as scratch, Signals() as signals, closing(assemble(quiet, spec, {})) as assembly:
        folder = create(Path(scratch), quiet, ["cadenza", "plan"])
        measured = measure(build_quietly(assembly, folder, signals), seconds)
        for name, before in stores.items():  # some stores grow
            after = footprint(assembly.stores[name], assembly.env and assembly.env.current)
            stores[name] = max(before, after, key=lambda one: one.memory)
    phases, decisions = assembly.phases, assembly.decisions
    paces = paces_of(phases, config.environment.num_envs, measured.marks, measured.stopped)
    expected = forecast(config, phases, paces)
    outline = outline_of(phases, expected)
    vectorize = decisions.get("environment.vectorize")
    memory = memory_of(assembly.workflow, stores, measured.process)
    notes = (time_limit_warning(config, spec), memory_warning(config, memory))
    return {
        "spec": f"{config.environment.id}:{config.variant}",
        "experiment": config.experiment,
        "device": decisions["device"],
        "environments": {
            "count": config.environment.num_envs if assembly.env is not None else 0,
            "vectorize": vectorize["value"] if vectorize else config.environment.vectorize,
            "workers": decisions.get("environment.workers"),
            "evaluation_count": assembly.evaluator.num_envs,
        },
        "run": outline | {"end": end_note(config, phases)},
        "memory": memory,
        "disk": disk_of(config, spec, measured, outline, stores),
        "time": time_of(config, spec, measured, paces, expected),
        "warnings": [*filter(None, notes), *warnings_of(config, phases, expected)],
    }


# stores


def measure_stores(config: RunConfig, spec: EnvSpec) -> dict[str, Footprint]:
    """Return the footprint of each store: computed, or allocated with one step, which touches few of its pages."""
    with closing(assemble(config, spec, {})) as assembly:
        if assembly.env is None:
            return {name: dataset_footprint(assembly.stores[name], spec, assembly) for name in assembly.datasets}
        step = assembly.env.current
        acted = first_act(assembly, step)
        after = assembly.env.step(acted.action)
        collects = [(phase, hook) for phase in assembly.phases for hook in phase.hooks if hook.name == "collect"]
        names, spec = sorted({hook.buffer or phase.buffer for phase, hook in collects}), assembly.env.spec
        return {name: measure_store(assembly.stores[name], spec, step, acted, after) for name in names}


def first_act(assembly: Assembly, step: Step) -> Acted:
    """Act once as at the very beginning of the run."""
    phase = assembly.phases[0]
    info = PhaseInfo(phase.name, phase.type, 0, assembly.decisions["training.horizon"])
    carry = assembly.workflow.initial_carry(len(step.is_first))
    return assembly.workflow.act(step, carry, Mode(True, info, assembly.streams))


def measure_store(store: Store, spec: EnvSpec, step: Step, acted: Acted, after: Step) -> Footprint:
    """Compute the footprint of a replay; add one step to any other store and measure what it allocated."""
    if isinstance(store, ReplayStore):
        masks = {group: mask.shape[-1] for group, mask in step.mask.items()}
        names = {name for extras in acted.extras.values() for name in extras} - {"carry"}
        revised = extra_bytes(acted, names & set(store.revisable))
        return full_replay(store, spec, extra_bytes(acted, names), revised, masks)
    try:
        store.add(step, acted, after)
    except MemoryError as problem:
        shape, dtype = getattr(problem, "shape", None), getattr(problem, "dtype", None)
        if shape is None or dtype is None:  # not NumPy's
            raise
        return Footprint(prod(shape) * dtype.itemsize, shape, at_least=True)
    return footprint(store, (step, acted, after))


def dataset_footprint(store: Store, spec: EnvSpec, assembly: Assembly) -> Footprint:
    """Compute the footprint of a replay that a dataset fills; its masks, which are in no space, are not counted."""
    assert isinstance(store, ReplayStore)
    config, revised = assembly.config, 0
    if store.revisable:  # what learning writes beside the rows is as large as what acting would write
        with closing(make_vector(config.environment, EpisodeSeeds(config.seed, TRAIN), num_envs=1)) as env:
            revised = extra_bytes(first_act(assembly, env.current), store.revisable)
    return full_replay(store, spec, revised, revised)


def extra_bytes(acted: Acted, names: Collection[str]) -> int:
    """Return the bytes of these extras in one row of one environment."""
    return sum(data[:1].nbytes for extras in acted.extras.values() for name, data in extras.items() if name in names)


def full_replay(
    store: ReplayStore, spec: EnvSpec, extras: int, revised: int, masks: dict[str, int] | None = None
) -> Footprint:
    """Compute the footprint of a full replay from the bytes that extras and their revised part add to a row."""
    slots = store.rows * store.num_envs
    rows = ReplayStore.bytes_for(spec, store.num_envs, slots, masks=masks or {}, extras=extras, stack=store.stack)
    return replay_footprint(store, rows, slots * revised)


def footprint(store: Store, passing: Any) -> Footprint:
    """Measure what the store owns now, without the arrays of `passing`, which it may only refer to."""
    if isinstance(store, ReplayStore):
        return replay_footprint(store, store.bulk, store.revised_bulk)
    blocks, foreign = object_memory.blocks(store), object_memory.blocks(passing)
    largest = max(object_memory.arrays(store), key=lambda array: array.nbytes, default=None)
    memory = sum(count for address, count in blocks.items() if address not in foreign)
    files = store.bulk * (2 if store.on_disk else 1) if isinstance(store, Sealing) else None
    mapped = sum(object_memory.mapped(store).values())
    return Footprint(memory, () if largest is None else tuple(largest.shape), files=files, mapped=mapped)


def replay_footprint(store: ReplayStore, rows: int, revised: int) -> Footprint:
    """Return the footprint of a replay with so many bytes of rows, `revised` of which learning replaces."""
    slots = store.rows * store.num_envs
    weights = 0 if store.alpha is None else Priorities.bytes_for(slots)
    if store.on_disk:
        return Footprint(weights, (slots,), files=2 * rows, mapped=rows, renewed=revised)
    return Footprint(rows + weights, (slots,), files=rows, renewed=revised)


def refuse_too_much(config: RunConfig, stores: dict[str, Footprint]) -> None:
    """Refuse stores that exceed the available memory, and name settings that would fit."""
    room, needed = resource_usage.available_memory(), sum(store.memory for store in stores.values())
    if room is None or (needed <= room and not any(store.at_least for store in stores.values())):
        return
    name, largest = max(stores.items(), key=lambda item: item[1].memory)
    num_envs = config.environment.num_envs  # a capacity is shared out in equal parts
    sizing = {"environment.num_envs": num_envs}
    sizing |= {f"algorithm.{key}": value for key, value in vars(config.algorithm).items() if type(value) is int}
    fitting = [
        f"{key}={less} (not {value})"
        for key, value in sizing.items()
        if value > 1
        and {value, value - value % num_envs} & set(largest.shape)
        and (less := three_digits(value * room / needed))
    ]
    amount = f"{'at least ' if largest.at_least else ''}{size(needed)}"
    advice = f"{' or '.join(fitting) or f'{room / needed:.0%} of it'} would fit"
    if vars(config.algorithm).get("buffer_on_disk") is False:
        advice += "; algorithm.buffer_on_disk=true maps it from a file"
    raise ConfigError(f"store '{name}' needs {amount} of memory, {size(room)} are available: {advice}")


def three_digits(amount: float) -> int:
    """Round down to three significant digits."""
    digits = int(10 ** max(0, len(str(int(amount))) - 3))
    return int(amount) // digits * digits


# the parts of the answer


def outline_of(phases: tuple[Phase, ...], expected: Forecast) -> dict[str, Any]:
    """Return the length of the run in every unit; None where the measurement left it open."""
    pace = Pace(nan, nan, nan) if expected.last is None else expected.last.pace
    return {
        "phases": [phase.name for phase in phases],
        "hooks": {phase.name: [hook.name for hook in phase.hooks] for phase in phases},
        **{unit: whole(expected.total(unit)) for unit in ("cycles", "env_steps", "updates")},
        "offline_updates": whole(expected.offline_updates),
        "env_steps_per_cycle": finite(pace.env_steps),
        "updates_per_cycle": finite(pace.updates),
        **{event: whole(getattr(expected, event)) for event in ("evaluations", "rows", "checkpoints")},
    }


def finite(count: float) -> float | None:
    """Return the count, or None if it is unknown."""
    return count if isfinite(count) else None


def whole(count: float) -> int | None:
    """Return the rounded count, or None if it is unknown."""
    return round(count) if isfinite(count) else None


def warnings_of(config: RunConfig, phases: tuple[Phase, ...], expected: Forecast) -> list[str]:
    """Return what a reader of the numbers alone might miss."""
    warnings: list[str] = []
    if (problem := no_updates_warning(config, phases)) is not None:
        warnings.append(problem)
    elif expected.beyond:
        warnings.append(f"the budget ends before {phase_names(expected.beyond)}")
    if expected.open:
        unknown = f"{phase_names(expected.open)} could not be measured, so the run's time is unknown"
        warnings.append(f"{unknown}; --seconds N measures longer")
    return warnings


def phase_names(phases: list[str]) -> str:
    """Return `phase a` or `phases a, b`."""
    return f"phase{'s' * (len(phases) > 1)} {', '.join(phases)}"


def memory_of(workflow: Workflow, stores: dict[str, Footprint], process: int | None) -> dict[str, Any]:
    """Return the bytes of networks, gradients, optimizers and stores; `process` is everything besides the stores."""
    contents = WorkflowContents(workflow)
    parameters = {id(parameter): parameter for parameter in contents.parameters.values()}.values()
    buffers = [list(module.buffers()) for module in contents.modules.values()]
    networks = object_memory.blocks([list(parameters), buffers])
    state = object_memory.blocks(workflow.state_dict())
    full = sum(store.memory for store in stores.values())
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "networks_bytes": sum(networks.values()),
        "gradients_bytes": sum(parameter.nbytes for parameter in parameters if parameter.requires_grad),
        "learning_bytes": sum(count for address, count in state.items() if address not in networks),
        "stores": {name: store.memory for name, store in stores.items()},
        "stores_bytes": full,
        "mapped_bytes": sum(store.mapped for store in stores.values()),
        "process_bytes": process,
        "total_bytes": None if process is None else process + full,
        "available_bytes": resource_usage.available_memory(),
    }


def memory_warning(config: RunConfig, memory: dict[str, Any]) -> str | None:
    """Return a warning if the run needs more memory than is available, and the settings that need less."""
    needed, room, stores = memory["total_bytes"], memory["available_bytes"], memory["stores_bytes"]
    if needed is None or room is None or needed <= room:
        return None
    can_cut = "accumulate" in {field.name for field in fields(config.algorithm)}
    advice = ["algorithm.accumulate=4 computes gradients in parts"] if can_cut else []
    advice += ["fewer environments or a smaller batch need less"]
    if stores > needed / 2:
        advice.insert(0, f"its stores are {size(stores)} of it")
    return f"the run needs about {size(needed)} of memory, {size(room)} are available: {'; '.join(advice)}"


def disk_of(
    config: RunConfig, spec: EnvSpec, measured: Measured, outline: dict[str, Any], stores: dict[str, Footprint]
) -> dict[str, Any]:
    """Return the bytes of checkpoints, metrics, episodes and replay segments at the end of the run."""
    checkpoint = dict(measured.checkpoint)
    for name, store in stores.items():
        file = f"store.{name}.safetensors"
        if file in checkpoint and store.files is None:  # a store that outlives a cycle will be full one day
            checkpoint[file] = store.memory
    actions = ((len(group.agents), *shape_of(group.action)) for group in spec.groups.values())
    action = sum(agents * prod(shape) * int(np.dtype(dtype).itemsize) for agents, shape, dtype in actions)
    typical, limit = sum(checkpoint.values()), spec.max_episode_steps
    most = None if limit is None else typical + config.environment.num_envs * limit * action
    count = config.checkpoint.keep + 1  # and the best
    checkpoints, metrics, episodes = count * (most or typical), (outline["rows"] or 1) * measured.row, 0.0
    if config.logging.episodes and outline["env_steps"]:
        share = max(measured.episodes / max(1, measured.stopped.env_steps), 1 / limit if limit else 0.0)
        episodes = outline["env_steps"] * (action + EPISODE_ROW * share) + outline["checkpoints"] * EPISODE_FILE
    replay = sum((store.files or 0) + (config.checkpoint.keep - 1) * store.renewed for store in stores.values())
    return {
        "checkpoint_bytes": typical,
        "checkpoint_bytes_at_most": most,  # with every running episode at its time limit
        "checkpoints_kept": count,
        "checkpoints_bytes": checkpoints,
        "metrics_bytes": round(metrics),
        "episodes_bytes": round(episodes),
        "replay_bytes": replay,
        "total_bytes": round(checkpoints + metrics + episodes + replay),
    }


def time_of(
    config: RunConfig, spec: EnvSpec, measured: Measured, paces: list[Pace], expected: Forecast
) -> dict[str, Any]:
    """Return the measured speed, and the seconds that training and all evaluations will take."""
    if measured.cycles:
        pace = paces[measured.marks[-2].phase]
    else:  # collecting alone
        pace = Pace(measured.stopped.env_steps, nan, measured.stopped.seconds)
    speed = pace.env_steps / pace.seconds
    usual = nan if measured.evaluation is None else measured.evaluation  # seconds of one evaluation
    longest = nan
    if spec.max_episode_steps is not None:
        steps = config.evaluation.episodes * spec.max_episode_steps
        if isfinite(usual) and measured.evaluation_steps:
            per_step = usual / config.evaluation.episodes * measured.finished / measured.evaluation_steps
            longest = max(usual, per_step * steps)
        elif speed:
            longest = steps / speed
    count = whole(expected.evaluations)
    evaluations = nan if count is None else count
    return {
        "measured_cycles": measured.cycles,
        "env_steps_per_second": speed or None,
        "updates_per_second": finite(pace.updates / pace.seconds),
        "training_seconds": finite(expected.total("seconds")),
        "evaluation_seconds": finite(evaluations * usual),
        "evaluation_seconds_at_most": finite(evaluations * longest),
    }
