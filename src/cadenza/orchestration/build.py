"""Where the parts of a run meet: from a config to an Orchestrator that is ready to go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from cadenza.config.registry import algorithm, load_object
from cadenza.config.schema import Phase, RunConfig
from cadenza.envs.catalog import make
from cadenza.envs.seeds import EVAL, TRAIN, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, nearest
from cadenza.monitor.console import Console
from cadenza.orchestration.checkpoint import Checkpoints
from cadenza.orchestration.collector import Collector
from cadenza.orchestration.evaluator import Evaluation, evaluate
from cadenza.orchestration.orchestrator import Orchestrator
from cadenza.orchestration.scheduler import PhaseScheduler
from cadenza.orchestration.seeding import Streams
from cadenza.records.episodes import EpisodeLog
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import MetricsFile
from cadenza.types import Context, EnvSpec, Store, VectorEnv, Workflow

ENGINE_HOOKS = ("collect", "evaluate")


@dataclass
class Assembly:
    """The living parts of a run, before it has a folder: whatever is wrong with a config shows while making these."""

    config: RunConfig
    decisions: dict[str, Any]
    streams: Streams
    spec: EnvSpec
    workflow: Workflow
    stores: dict[str, Store]
    phases: tuple[Phase, ...]
    env: VectorEnv | None
    evaluation_env: VectorEnv | None = None

    def evaluate(self, number: int) -> Evaluation:
        """Evaluation `number` of the run; its environments are made at the first one."""
        settings = self.config.evaluation
        if self.evaluation_env is None:
            self.evaluation_env = evaluation_env(self.config, settings.episodes, self.config.seed, self.decisions)
        return evaluate(self.workflow, self.evaluation_env, settings.episodes, number, settings.timeout_seconds)

    def close(self) -> None:
        for env in (self.env, self.evaluation_env):
            if env is not None:
                env.close()


def assemble(config: RunConfig, decisions: dict[str, Any]) -> Assembly:
    """Make environments, workflow, stores and phases; decide every `auto` that `decisions` does not have already."""
    decide(config, decisions)
    torch.set_num_threads(decisions["runtime.threads"])
    streams = Streams(config.seed)
    streams.seed_globals()
    given = config.training.phases
    collects = given is None or any(phase.type == "online" for phase in given)
    env = make_vector(config.environment, EpisodeSeeds(config.seed, TRAIN), decisions=decisions) if collects else None
    try:
        spec = env.spec if env is not None else environment_spec(config)
        workflow = build_workflow(config, spec, streams, decisions["device"])
        stores = workflow.stores()
        phases = resolve_phases(given, workflow, stores)
    except BaseException:
        if env is not None:
            env.close()
        raise
    return Assembly(config, decisions, streams, spec, workflow, stores, phases, env)


def build(assembly: Assembly, folder: RunFolder, console: Console) -> Orchestrator:
    """The run in its folder, at its beginning."""
    config = assembly.config
    folder.write_decisions(assembly.decisions)
    return Orchestrator(
        config=config,
        horizon=assembly.decisions["training.horizon"],
        threshold=assembly.spec.return_threshold,
        folder=folder,
        streams=assembly.streams,
        workflow=assembly.workflow,
        stores=assembly.stores,
        scheduler=PhaseScheduler(assembly.phases),
        collector=Collector(assembly.env, assembly.workflow) if assembly.env is not None else None,
        evaluate=assembly.evaluate,
        checkpoints=Checkpoints(folder.checkpoints, folder.read_manifest()["config_hash"], config.checkpoint.keep),
        metrics=MetricsFile(folder.metrics),
        episodes=EpisodeLog(folder, config.logging.episodes),
        console=console,
    )


def decide(config: RunConfig, decisions: dict[str, Any]) -> None:
    """Settle every `auto` that does not belong to the environment, and what a resumed run may not decide again."""
    training = config.training
    budget = training.max_timesteps or training.max_updates
    decisions.setdefault("training.horizon", budget)
    budgets = decisions.setdefault("training.budgets", [])  # one more each time a longer budget is given on resume
    if not budgets or budgets[-1] != budget:
        budgets.append(budget)
    # small networks gain nothing from a second thread and lose much when cores are busy
    decisions.setdefault("runtime.threads", 1 if config.runtime.threads == "auto" else config.runtime.threads)
    decisions.setdefault("device", resolve_device(config.device))


def resolve_device(asked: str) -> str:
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(asked)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={asked}: torch sees {torch.cuda.device_count()} CUDA devices here; use device=cpu")
    return asked


def build_workflow(config: RunConfig, spec: EnvSpec, streams: Streams, device: str) -> Workflow:
    config.algorithm.check(spec, config.environment.num_envs)
    make_workflow: Callable[..., Workflow] = load_object(algorithm(config.algorithm.name).workflow)
    return make_workflow(config.algorithm, Context(spec, config.environment.num_envs, torch.device(device), streams))


def environment_spec(config: RunConfig) -> EnvSpec:
    """The facts about the environment, from one that is made and closed again."""
    env = make(config.environment)
    env.close()
    return env.spec


def evaluation_env(config: RunConfig, episodes: int, seed: int, decisions: dict[str, Any]) -> VectorEnv:
    num_envs = min(config.evaluation.num_envs, episodes)
    own: dict[str, Any] = decisions.setdefault("evaluation", {})
    return make_vector(config.environment, EpisodeSeeds(seed, EVAL), num_envs=num_envs, decisions=own)


def resolve_phases(
    given: tuple[Phase, ...] | None, workflow: Workflow, stores: dict[str, Store]
) -> tuple[Phase, ...]:
    """The phases asked for, or the algorithm's own; what they leave out is taken from the algorithm's."""
    own: tuple[Phase, ...] = workflow.phases()
    steps = next((hook.steps for phase in own for hook in phase.hooks if hook.name == "collect"), None)
    resolved = []
    for phase in own if given is None else given:
        buffer = phase.buffer or own[0].buffer
        if buffer not in stores:
            known = f"(known: {', '.join(stores)})"
            raise ConfigError(f"phase {phase.name}: unknown buffer '{buffer}'{nearest(buffer, stores)} {known}")
        for hook in phase.hooks:
            known_hooks = (*ENGINE_HOOKS, *workflow.hooks)
            if hook.name not in known_hooks:
                raise ConfigError(
                    f"phase {phase.name}: unknown hook '{hook.name}'{nearest(hook.name, known_hooks)} "
                    f"(known: {', '.join(known_hooks)})"
                )
        hooks = tuple(
            replace(hook, steps=hook.steps or steps) if hook.name == "collect" else hook for hook in phase.hooks
        )
        resolved.append(replace(phase, buffer=buffer, hooks=hooks))
    return tuple(resolved)
