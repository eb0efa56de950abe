"""Where the parts of a run meet: from a config to an Orchestrator that is ready to go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from cadenza.base.files import SafePath, screen
from cadenza.base.streams import Streams
from cadenza.config.registry import workflow_class
from cadenza.config.schema import Phase, RunConfig, TrainingConfig
from cadenza.data import lerobot
from cadenza.data.datasets import Dataset, converted, open_dataset, refuse_other
from cadenza.data.replay import ReplayStore
from cadenza.engine.attachments import Display
from cadenza.engine.checkpoint import Checkpoints
from cadenza.engine.collector import Collector
from cadenza.engine.cuda_graph import Captured
from cadenza.engine.evaluator import Evaluator
from cadenza.engine.orchestrator import Orchestrator
from cadenza.engine.runtime import compiled, decide_runtime, keep_memory, large_images, use_runtime
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.engine.signals import Signals
from cadenza.envs.seeds import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, nearest
from cadenza.records.episodes import EpisodeLog
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import MetricsFile
from cadenza.types import Context, EnvSpec, Sealing, Store, VectorEnv, Workflow

ENGINE_HOOKS = ("collect", "evaluate")
LONGEST_REASON = 200  # characters of what torch says of weights that do not fit: it names every one


@dataclass
class Assembly:
    """The living parts of a run, before it has a folder: whatever is wrong with a config shows while making these."""

    config: RunConfig
    decisions: dict[str, Any]
    spec: EnvSpec
    streams: Streams
    workflow: Workflow
    stores: dict[str, Store]
    phases: tuple[Phase, ...]
    evaluator: Evaluator
    env: VectorEnv | None  # None: no phase collects
    given: dict[str, Dataset]  # by store, what it holds from the start; nothing where a checkpoint will tell

    def close(self) -> None:
        self.evaluator.close()
        if self.env is not None:
            self.env.close()


def assemble(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any], fresh: bool = True) -> Assembly:
    """Make workflow, stores, phases and environments; decide every `auto` that `decisions` does not have already.

    `fresh` runs take over weights and data they are told to; others will find theirs in a checkpoint.
    """
    decisions["device"] = resolve_device(decisions.get("device", config.device))
    decide_runtime(config, spec, decisions)
    use_runtime(decisions)
    if decisions["device"] == "cpu" and large_images(spec):
        keep_memory()
    torch.backends.cudnn.deterministic = True  # else the gradient of a convolution is never the same twice
    dataset = given_dataset(config, spec, decisions) if fresh else None
    streams = Streams(config.seed)
    streams.seed_globals()
    workflow = build_workflow(config, spec, streams, decisions)
    if fresh and config.training.init_from:
        screen(Path(config.training.init_from))
        borrow_weights(workflow, RunFolder(Path(config.training.init_from)), decisions)
    stores = workflow.stores()
    phases = resolve_phases(config.training.phases, workflow, stores)
    decide_budget(config.training, phases, decisions)
    given = {} if dataset is None else {replay_for(dataset, config, phases, stores): dataset}
    if fresh:
        refuse_empty(phases, stores, given)
    evaluator = Evaluator(config, workflow, decisions)
    env = None
    if any(phase.type == "online" for phase in phases):
        env = make_vector(config.environment, EpisodeSeeds(config.seed, TRAIN), decisions=decisions)
        spec = env.spec
        if dataset is not None and env.current.mask and not dataset.knows("mask"):
            env.close()
            missing = "does not say which actions were allowed, and this environment does"
            raise ConfigError(f"training.dataset={config.training.dataset}: {missing}")
    return Assembly(config, decisions, spec, streams, workflow, stores, phases, evaluator, env, given)


def build(assembly: Assembly, folder: RunFolder, console: Display, signals: Signals) -> Orchestrator:
    """The run in its folder, at its beginning."""
    config = assembly.config
    attach_stores(assembly.stores, folder.replay)
    fill_stores(assembly)
    return Orchestrator(
        config=config,
        decisions=assembly.decisions,
        spec=assembly.spec,
        folder=folder,
        streams=assembly.streams,
        workflow=assembly.workflow,
        stores=assembly.stores,
        scheduler=PhaseScheduler(assembly.phases),
        collector=Collector(assembly.env, assembly.workflow) if assembly.env is not None else None,
        evaluator=assembly.evaluator,
        checkpoints=Checkpoints.of(folder, config.checkpoint.keep),
        metrics=MetricsFile(folder.metrics),
        episodes=EpisodeLog(folder, config.logging.episodes),
        console=console,
        signals=signals,
    )


def attach_stores(stores: dict[str, Store], replay: SafePath) -> None:
    """Tell those that keep their bulk in files where to."""
    for name, store in stores.items():
        if isinstance(store, Sealing):
            store.attach(replay / name)


def fill_stores(assembly: Assembly) -> None:
    """Before the first step, so that the first checkpoint holds it and the dataset is not needed again."""
    for name, dataset in assembly.given.items():
        store = assembly.stores[name]
        assert isinstance(store, ReplayStore)
        dataset.fill(store, assembly.spec)
        dataset.close()
    assembly.given.clear()


def resolve_device(asked: str) -> str:
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(asked)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={asked}: torch sees {torch.cuda.device_count()} CUDA devices here; "
            "train with device=cpu, resume with --device cpu"
        )
    return asked


def build_workflow(config: RunConfig, spec: EnvSpec, streams: Streams, decisions: Mapping[str, Any]) -> Workflow:
    config.algorithm.check(spec, config.environment.num_envs)
    context = Context(
        env=spec,
        num_envs=config.environment.num_envs,
        device=torch.device(decisions["device"]),
        streams=streams,
        kernels=decisions["runtime.kernels"],
        compiled=compiled if decisions["runtime.compile"] else as_it_is,
        captured=Captured if captures(config, decisions) else as_it_is,
    )
    return workflow_class(config.algorithm.name)(config.algorithm, context)


def captures(config: RunConfig, decisions: Mapping[str, Any]) -> bool:
    """Whether updates become CUDA graphs; checks in them would be made once and never again."""
    on_cuda = torch.device(decisions["device"]).type == "cuda"
    return on_cuda and decisions["runtime.compile"] and not config.debug.enabled


def as_it_is(function: Any) -> Any:
    return function


def borrow_weights(workflow: Workflow, source: RunFolder, decisions: dict[str, Any]) -> None:
    """Start from another run's networks and normalisers: its best when first asked, the same ones ever after."""
    checkpoints = Checkpoints.of(source)
    name = checkpoints.resolve(decisions.get("training.init_from", source.best_or_last))
    decisions["training.init_from"] = name
    try:
        workflow.load_weights(checkpoints.load(name, "workflow")["workflow"])
    except (RuntimeError, KeyError) as problem:
        reason = str(problem).splitlines()[-1].strip()  # torch's first line names only the class
        reason = f"there is no {reason}" if isinstance(problem, KeyError) else reason
        reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}…"
        run = f"run {source.id}, of {source.settings().get('algorithm', {}).get('name')}"
        raise ConfigError(f"the weights of {run}, do not fit this config: {reason}") from problem


def given_dataset(config: RunConfig, spec: EnvSpec, decisions: dict[str, Any]) -> Dataset | None:
    """What `training.dataset` names, known to be whole, of this environment, and the one that the run began with."""
    given = config.training.dataset
    if given is None:
        return None
    if lerobot.recognised(given):
        dataset = converted(lambda out: lerobot.convert(given, out, config, spec))
    else:
        dataset = open_dataset(given)
    refuse_other(dataset, given, config, spec)
    counts = {key: dataset.facts[key] for key in ("transitions", "episodes")}
    noted = decisions.setdefault("training.dataset", {"digest": dataset.digest, **counts})
    if noted["digest"] != dataset.digest:
        raise ConfigError(f"training.dataset={given}: is not the dataset that the run began with, its digest differs")
    return dataset


def replay_for(dataset: Dataset, config: RunConfig, phases: tuple[Phase, ...], stores: dict[str, Store]) -> str:
    """The store that the dataset goes to: the first replay that the phases use."""
    where = f"training.dataset={config.training.dataset}"
    for name in (*(phase.buffer for phase in phases), *stores):
        store = stores[name]
        if not isinstance(store, ReplayStore):
            continue
        stack, needed = dataset.facts["frame_stack"], dataset.rows_for(store.num_envs, store.stack)
        if stack != store.stack:
            raise ConfigError(f"{where}: keeps stacks of {stack} frames, the replay of this run of {store.stack}")
        if needed > store.rows * store.num_envs:
            sizes = [item.name for item in fields(config.algorithm) if item.metadata.get("unit") == "rows"]
            key = f"algorithm.{sizes[0]}" if sizes else "a capacity"
            raise ConfigError(f"{where}: does not fit the replay; {key}={needed} would do")
        return name
    raise ConfigError(f"{where}: {config.algorithm.name} has no replay to put it in")


def refuse_empty(phases: tuple[Phase, ...], stores: dict[str, Store], given: Collection[str]) -> None:
    """Offline phases that would find nothing to learn from."""
    filled = {*given, *(name for name, store in stores.items() if store.ready())}
    for phase in phases:
        for hook in phase.hooks:
            buffer = hook.buffer or phase.buffer
            if hook.name == "collect":
                filled.add(buffer)
            elif phase.type == "offline" and hook.name != "evaluate" and buffer not in filled:
                empty = f"phase {phase.name}: nothing is in buffer '{buffer}' by then"
                raise ConfigError(f"{empty}; set training.dataset, or collect in a phase before it")


def resolve_phases(given: tuple[Phase, ...] | None, workflow: Workflow, stores: dict[str, Store]) -> tuple[Phase, ...]:
    """The phases asked for, or the algorithm's own; what they leave out is taken from the algorithm's."""
    own = workflow.phases()
    if not own:
        raise ConfigError(f"{type(workflow).__name__}.phases() names no phase, so nothing would be trained")
    steps = next((hook.steps for phase in own for hook in phase.hooks if hook.name == "collect"), None)
    resolved = []
    for phase in own if given is None else given:
        phase = replace(phase, buffer=phase.buffer or own[0].buffer)
        for hook in phase.hooks:
            require(hook.name, (*ENGINE_HOOKS, *workflow.hooks), f"phase {phase.name}: unknown hook")
            require(hook.buffer or phase.buffer, tuple(stores), f"phase {phase.name}: unknown buffer")
        hooks = tuple(
            replace(hook, steps=steps) if hook.name == "collect" and not (hook.steps or hook.episodes) else hook
            for hook in phase.hooks
        )
        resolved.append(replace(phase, hooks=hooks))
    return tuple(resolved)


def require(name: str, known: tuple[str, ...], what: str) -> None:
    if name not in known:
        raise ConfigError(f"{what} '{name}'{nearest(name, known)} (known: {', '.join(known)})")


def decide_budget(training: TrainingConfig, phases: tuple[Phase, ...], decisions: dict[str, Any]) -> None:
    """In which unit the run's progress is counted and how far schedules reach, once and for all its resumptions."""
    collects = any(phase.type == "online" for phase in phases)
    budget = training.max_timesteps if collects else None
    unit = "env_steps" if budget is not None or (collects and training.max_updates is None) else "updates"
    endless = [
        phase.name for phase in phases if not (phase.duration_steps or phase.duration_updates or phase.duration_cycles)
    ]
    if endless and endless[0] != phases[-1].name:
        raise ConfigError(f"phase {endless[0]} never ends, so what follows it is never reached: give it a duration")
    if endless:
        names = [hook.name for hook in phases[-1].hooks]
        uses = {"max_timesteps": "collect" in names, "max_updates": any(name not in ENGINE_HOOKS for name in names)}
        if all(getattr(training, budget) is None for budget, used in uses.items() if used):
            ways = [f"set training.{budget}" for budget, used in uses.items() if used]
            raise ConfigError(f"phase {endless[0]} would never end: {', or '.join([*ways, 'give it a duration'])}")
    decisions.setdefault("training.unit", unit)
    lengths = sum(length_of(phase, collects) for phase in phases)
    horizon = training.horizon or budget or training.max_updates or lengths or 1
    decisions.setdefault("training.horizon", horizon)


def length_of(phase: Phase, collects: bool) -> int:
    """How long a phase is, in env_steps (or updates where no phase collects), as far as its settings tell."""
    if phase.duration_cycles is not None:
        amounts = [hook.steps if collects else hook.times for hook in phase.hooks if hook.name != "evaluate"]
        return phase.duration_cycles * sum(filter(None, amounts))
    return (phase.duration_steps if collects else phase.duration_updates) or 0
