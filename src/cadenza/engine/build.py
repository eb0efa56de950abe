"""Make the parts of a run from its config, and put them together as an Orchestrator."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cadenza.base.files import SafePath, screen
from cadenza.base.resource_usage import keep_memory
from cadenza.base.streams import Streams
from cadenza.config.convert import to_dict
from cadenza.config.registry import workflow_class
from cadenza.config.schedules import KEYS
from cadenza.config.schema import Hook, Phase, RunConfig, TrainingConfig
from cadenza.engine.collector import Collector
from cadenza.engine.evaluator import Evaluator
from cadenza.engine.events import Display
from cadenza.engine.orchestrator import Orchestrator
from cadenza.engine.runtime import check_loss, compiled, decide_runtime, has_large_images, use_runtime
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.engine.signals import Signals
from cadenza.envs.catalog import FirstEnvironment
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, nearest
from cadenza.records.checkpoint import Checkpoints
from cadenza.records.decisions import COLLECT
from cadenza.records.episodes import EpisodeLog
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import MetricsFile
from cadenza.trees import leaves
from cadenza.types import Context, EnvSpec, HasFiles, SharesBatches, Store, VectorEnv, Workflow

if TYPE_CHECKING:
    from cadenza.data.datasets import Dataset
    from cadenza.data.exchange import StoreMaker

ENGINE_HOOKS = ("collect", "evaluate")
NOT_IN_NETWORKS = ("optimizer.", "planning.")
SYNONYMS = {"update_world_model": "update_value", "update_controller": "update_policy"}
LONGEST_REASON = 200  # characters of torch's message about weights that do not fit: it names every one


@dataclass
class Assembly:
    """The parts of a run that has no folder yet; whatever is wrong with a config shows while these are made."""

    config: RunConfig
    decisions: dict[str, Any]
    spec: EnvSpec
    streams: Streams
    workflow: Workflow
    stores: dict[str, Store]
    phases: tuple[Phase, ...]
    evaluator: Evaluator
    env: VectorEnv | None  # None: no phase collects
    datasets: dict[str, Dataset]  # by store, what fills it at the start; empty for a run that a checkpoint restores
    warning: str | None  # of the check of the loss

    @cached_property
    def collector(self) -> Collector | None:
        """The collector of steps; None where no phase collects."""
        return None if self.env is None else Collector(self.env, self.workflow)

    def close(self) -> None:
        self.evaluator.close()
        if self.env is not None:
            self.env.close()


def assemble(
    config: RunConfig,
    spec: EnvSpec,
    decisions: dict[str, Any],
    fresh: bool = True,
    first: FirstEnvironment | None = None,
) -> Assembly:
    """Make workflow, stores, phases and environments; decide every `auto` that is not in `decisions` yet.

    Only a `fresh` run starts from other weights or a dataset; any other is restored from a checkpoint. The training
    environments include `first` where they can; otherwise it is closed.
    """
    decisions["device"] = resolve_device(decisions.get("device", config.device))
    decide_runtime(config, spec, decisions)
    use_runtime(decisions)
    if decisions["device"] == "cpu" and has_large_images(spec):
        keep_memory()
    torch.backends.cudnn.deterministic = True  # else the gradient of a convolution is never the same twice
    dataset = None
    if fresh and config.training.dataset is not None:
        from cadenza.data.prefill import configured_dataset, replay_for

        dataset = configured_dataset(config, spec, decisions)
    warning = check_loss(config, spec, decisions, fresh)  # before the run's own generators are seeded: it uses them
    streams = Streams(config.seed)
    streams.seed_globals()
    maker = store_maker(config.training)
    workflow = build_workflow(config, spec, streams, decisions, maker)
    if fresh and config.training.init_from:
        screen(Path(config.training.init_from))
        load_initial_weights(workflow, config, decisions)
    stores = workflow.stores()
    if maker is not None:
        maker.check(config.algorithm.name, stores)
    phases = resolve_phases(config.training.phases, workflow, stores, decisions, fresh)
    decide_budget(config.training, phases, decisions)
    datasets = {} if dataset is None else {replay_for(dataset, config, phases, stores): dataset}
    if fresh:
        refuse_empty(phases, stores, datasets)
    evaluator = Evaluator(config, workflow, decisions, spec)
    env = None
    if any(phase.type == "online" for phase in phases):
        env = make_vector(config.environment, EpisodeSeeds(config.seed, TRAIN), decisions=decisions, first=first)
        spec = env.spec
        if dataset is not None and env.current.mask and not dataset.knows("mask"):
            env.close()
            missing = "does not say which actions were allowed, and this environment does"
            raise ConfigError(f"training.dataset={config.training.dataset}: {missing}")
    elif first is not None:
        first.close()
    return Assembly(config, decisions, spec, streams, workflow, stores, phases, evaluator, env, datasets, warning)


def build(assembly: Assembly, folder: RunFolder, console: Display, signals: Signals) -> Orchestrator:
    """Put the parts together as a run in its folder, at its beginning."""
    config = assembly.config
    if assembly.warning is not None:
        console.note(assembly.warning, warning=True)
    attach_stores(assembly.stores, folder.replay)
    if assembly.datasets:
        from cadenza.data.prefill import fill

        fill(assembly.stores, assembly.datasets, assembly.spec)
    return Orchestrator(
        config=config,
        decisions=assembly.decisions,
        spec=assembly.spec,
        folder=folder,
        streams=assembly.streams,
        workflow=assembly.workflow,
        stores=assembly.stores,
        scheduler=PhaseScheduler(assembly.phases),
        collector=assembly.collector,
        evaluator=assembly.evaluator,
        checkpoints=Checkpoints.from_run(folder, config.checkpoint.keep),
        metrics=MetricsFile(folder.metrics),
        episodes=EpisodeLog(folder, config.logging.episodes),
        console=console,
        signals=signals,
    )


def attach_stores(stores: dict[str, Store], replay: SafePath) -> None:
    """Set the folder of each store that keeps its rows in files, below `replay`."""
    for name, store in stores.items():
        if isinstance(store, HasFiles):
            store.attach(replay / name)


def resolve_device(name: str) -> str:
    """Return the device of this name, CUDA or CPU for `auto`; refuse a CUDA device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        advice = "train with device=cpu, resume with --device cpu"
        raise ConfigError(f"device={name}: torch sees {count} CUDA devices here; {advice}")
    return name


def build_workflow(
    config: RunConfig, spec: EnvSpec, streams: Streams, decisions: Mapping[str, Any], maker: StoreMaker | None = None
) -> Workflow:
    """Make the algorithm of a config, with fresh weights drawn from `streams`."""
    config.algorithm.check(spec, config.environment.num_envs)
    captured: Any = unchanged
    if captures := uses_cuda_graphs(config, decisions):
        from cadenza.nets.cuda_graph import Captured

        captured = Captured
    on_cuda = decisions["device"].startswith("cuda")
    autocast = partial(torch.autocast, "cuda", torch.bfloat16) if on_cuda and config.runtime.bf16 else nullcontext
    context = Context(
        env=spec,
        num_envs=config.environment.num_envs,
        device=torch.device(decisions["device"]),
        streams=streams,
        kernels=decisions["runtime.kernels"],
        # what `auto` decides on for CUDA is a capture alone
        compiled=compiled
        if decisions["runtime.compile"] and (config.runtime.compile is True or not on_cuda)
        else unchanged,
        captured=captured,
        captures=captures,
        autocast=autocast,
    )
    if maker is not None:
        context = replace(context, store=maker)
    return workflow_class(config.algorithm.name)(config.algorithm, context)


def store_maker(training: TrainingConfig) -> StoreMaker | None:
    """Return what makes the stores of a workflow, where the config names stores of other packages."""
    if not training.buffers:
        return None
    from cadenza.data.exchange import StoreMaker

    return StoreMaker(training.buffers)


def uses_cuda_graphs(config: RunConfig, decisions: Mapping[str, Any]) -> bool:
    """Return whether updates become CUDA graphs. Not under `--debug`: its checks would run at the capture only."""
    on_cuda = torch.device(decisions["device"]).type == "cuda"
    return on_cuda and decisions["runtime.compile"] and not config.debug.enabled


def unchanged(function: Any, *_: Any) -> Any:
    """Return the function itself, where nothing is compiled or captured."""
    return function


def load_initial_weights(workflow: Workflow, config: RunConfig, decisions: dict[str, Any]) -> None:
    """Load another run's networks and normalisers: those of its best checkpoint, or of the one in `decisions`."""
    source = RunFolder(Path(str(config.training.init_from)))
    checkpoints = Checkpoints.from_run(source)
    name = checkpoints.resolve(decisions.get("training.init_from", source.best_or_last))
    decisions["training.init_from"] = name
    try:
        workflow.load_weights(checkpoints.load(name, "workflow")["workflow"])
    except (RuntimeError, KeyError) as problem:
        reason = str(problem).splitlines()[-1].strip()  # torch's first line names only the class
        reason = f"there is no {reason}" if isinstance(problem, KeyError) else reason
        sizes = re.fullmatch(r"size mismatch for (\S+): copying .*\((\[.*?\])\) .*\((\[.*?\])\)\.", reason)
        reason = f"{sizes[1]} has the shape {sizes[2]} there and {sizes[3]} here" if sizes else reason
        reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}…"
        there, here = dict(leaves(source.settings())), dict(leaves(to_dict(config)))
        keys = [key for key in (*here, *there) if there.get(key) != here.get(key) and shapes_networks(key)]
        parts = [f"{key} is {there.get(key)} there and {here.get(key)} here" for key in dict.fromkeys(keys)]
        parts = parts if there.get("algorithm.name") == here["algorithm.name"] else []  # else all of them differ
        run = f"run {source.id}, of {there.get('algorithm.name')}"
        reason = "; ".join([*parts[:3], reason])
        raise ConfigError(f"the weights of {run}, do not fit this config: {reason}") from problem


def shapes_networks(key: str) -> bool:
    """Return whether a setting may determine the shapes of networks: a part of one, or of what it observes."""
    block, _, rest = key.partition(".")
    if block == "environment":
        return rest in ("id", "frame_stack", "grayscale", "groups") or rest.startswith(("resize", "wrappers"))
    is_scheduled = rest.rpartition(".")[2] in KEYS  # a part of any number's schedule
    return block == "algorithm" and "." in rest and not is_scheduled and not rest.startswith(NOT_IN_NETWORKS)


def refuse_empty(phases: tuple[Phase, ...], stores: dict[str, Store], prefilled: Collection[str]) -> None:
    """Refuse an offline phase whose buffer is still empty when the phase begins."""
    filled = {*prefilled, *(name for name, store in stores.items() if store.ready())}
    for phase in phases:
        for hook in phase.hooks:
            buffer = hook.buffer or phase.buffer
            if hook.name == "collect":
                filled.add(buffer)
            elif phase.type == "offline" and hook.name != "evaluate" and buffer not in filled:
                empty = f"phase {phase.name}: nothing is in buffer '{buffer}' by then"
                raise ConfigError(f"{empty}; set training.dataset, or collect in a phase before it")


def phases_of(config: RunConfig, spec: EnvSpec) -> tuple[Phase, ...]:
    """Return the phases of a run of this config, with the amounts that its own phases leave to the algorithm."""
    decisions: dict[str, Any] = {"device": "cpu"}
    decide_runtime(config, spec, decisions)
    workflow = build_workflow(config, spec, Streams(config.seed), decisions)
    return resolve_phases(config.training.phases, workflow, workflow.stores(), decisions)


def resolve_phases(
    requested: tuple[Phase, ...] | None,
    workflow: Workflow,
    stores: dict[str, Store],
    decisions: dict[str, Any],
    fresh: bool = True,
) -> tuple[Phase, ...]:
    """Return the requested phases, or the algorithm's; what they leave out is taken from the algorithm's.

    A `collect` without an amount collects as much as the algorithm does in the phase in which it learns. That amount
    is a decision. Runs from before it was one (`fresh` is false) keep the amount of the algorithm's first collect.
    """
    default = workflow.phases()
    if not default:
        raise ConfigError(f"{type(workflow).__name__}.phases() names no phase, so nothing would be trained")
    resolved = []
    for phase in default if requested is None else requested:
        hooks = named_for(workflow, phase.hooks, f"phase {phase.name}")
        phase = replace(phase, hooks=hooks, buffer=phase.buffer or default[0].buffer)
        for hook in phase.hooks:
            require(hook.name, (*ENGINE_HOOKS, *workflow.hooks), f"phase {phase.name}: unknown hook")
            require(hook.buffer or phase.buffer, tuple(stores), f"phase {phase.name}: unknown buffer")
        if any(hook.without_amount for hook in phase.hooks):
            if fresh and COLLECT not in decisions:
                decisions[COLLECT] = collect_amount(default, workflow.hooks)
            amount = decisions.get(COLLECT) or collect_amount(default, ())
            hooks = tuple(replace(hook, **amount) if hook.without_amount else hook for hook in phase.hooks)
            phase = replace(phase, hooks=hooks)
        resolved.append(phase)
    return tuple(resolved)


def named_for(workflow: Workflow, hooks: tuple[Hook, ...], where: str) -> tuple[Hook, ...]:
    """Return hooks under the workflow's names for them.

    Where there is no world model, its name stands for the values, and the controller's for the policy. Hooks that learn
    from one rollout (`joint_hooks` of the workflow, without a `collect` between them) become `update`, which is all of
    them.
    """

    def translated(hook: Hook) -> Hook:
        synonym = SYNONYMS.get(hook.name)
        return hook if hook.name in workflow.hooks or synonym not in workflow.hooks else replace(hook, name=synonym)

    together = workflow.joint_hooks if isinstance(workflow, SharesBatches) else ()
    named: list[Hook] = []
    joint: list[Hook] = []  # since the last `collect`
    for hook in map(translated, hooks):
        joint = [] if hook.name == "collect" else joint
        named.append(hook)
        if hook.name not in together:
            continue
        joint.append(hook)
        if {one.name for one in joint} != set(together):
            continue
        whole = replace(joint[0], name="update")
        if len(joint) > len(together) or any(replace(one, name="update") != whole for one in joint):
            names = " and ".join(together)
            raise ConfigError(
                f"{where}: {names} learn from the same steps, so they need the same times and the same buffer"
            )
        first = next(index for index, one in enumerate(named) if one is joint[0])
        named[first:] = [whole, *(one for one in named[first:] if one not in joint)]
    return tuple(named)


def collect_amount(phases: tuple[Phase, ...], updates: tuple[str, ...]) -> dict[str, int | None]:
    """Return the amount of `collect` in the first phase that also does one of the `updates`, else in the first."""
    collecting = [phase for phase in phases if phase.type == "online"]
    learning = [phase for phase in collecting if any(hook.name in updates for hook in phase.hooks)]
    for phase in (*learning, *collecting):
        hook = next(hook for hook in phase.hooks if hook.name == "collect")
        return {"steps": hook.steps, "episodes": hook.episodes}
    return {"steps": 1, "episodes": None}


def require(name: str, names: tuple[str, ...], what: str) -> None:
    """Refuse a name that is not among `names`."""
    if name not in names:
        raise ConfigError(f"{what} '{name}'{nearest(name, names)} (known: {', '.join(names)})")


def decide_budget(training: TrainingConfig, phases: tuple[Phase, ...], decisions: dict[str, Any]) -> None:
    """Decide the unit in which progress is counted and the horizon of schedules; refuse a run without an end."""
    collects = any(phase.type == "online" for phase in phases)
    budget = training.max_timesteps if collects else None
    unit = "env_steps" if budget is not None or (collects and training.max_updates is None) else "updates"
    endless = [
        phase.name for phase in phases if not (phase.duration_steps or phase.duration_updates or phase.duration_cycles)
    ]
    if endless and endless[0] != phases[-1].name:
        raise ConfigError(
            f"phase {endless[0]} never ends, so the phases after it are never reached: give it a duration"
        )
    if endless:
        names = [hook.name for hook in phases[-1].hooks]
        uses = {"max_timesteps": "collect" in names, "max_updates": any(name not in ENGINE_HOOKS for name in names)}
        if all(getattr(training, budget) is None for budget, used in uses.items() if used):
            remedies = [*(f"set training.{budget}" for budget, used in uses.items() if used), "give it a duration"]
            raise ConfigError(f"phase {endless[0]} would never end: {', or '.join(remedies)}")
    whole_episodes = [phase.name for phase in phases if any(hook.episodes for hook in phase.hooks)]
    if training.exact_budget and whole_episodes:
        reason = f"phase {whole_episodes[0]} collects whole episodes, and ends with the one that reaches the budget"
        raise ConfigError(f"training.exact_budget=true: {reason}")
    decisions.setdefault("training.unit", unit)
    lengths = sum(length_of(phase, collects) for phase in phases)
    horizon = training.horizon or budget or training.max_updates or lengths or 1
    decisions.setdefault("training.horizon", horizon)


def length_of(phase: Phase, collects: bool) -> int:
    """Return a phase's length in env_steps (in updates where no phase collects), or 0 where its settings give none."""
    if phase.duration_cycles is not None:
        amounts = [hook.steps if collects else hook.times for hook in phase.hooks if hook.name != "evaluate"]
        return phase.duration_cycles * sum(filter(None, amounts))
    return (phase.duration_steps if collects else phase.duration_updates) or 0
