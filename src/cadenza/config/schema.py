"""Every setting of a run except those of the algorithm: names, types, defaults, meaning, checks.

The settings of an algorithm are in `workflows/<name>_config.py`. All of them import without torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cadenza.config import plugins
from cadenza.config.alert_rules import AlertsConfig
from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.setting import setting
from cadenza.errors import ConfigError, nearest

SCHEMA_VERSION = 2
LONGEST_EPISODE = 27_000  # steps evaluated where the environment has no time limit; Atari's, the longest published
MINARI = "minari:"  # prefix of the id of a Minari dataset
# Metrics of every run that early stopping may watch, besides the train/… metrics of the algorithm.
WATCHED = (
    *(f"eval/{name}" for name in ("return_mean", "return_std", "return_min", "return_max", "length_mean", "win_rate")),
    *(f"collect/{name}" for name in ("return_mean", "length_mean", "win_rate")),
)


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environments that the agents act in."""

    id: str = setting("", "environment id, as in `cadenza envs`")
    num_envs: int = setting(8, "environments stepped together", least=1)
    kwargs: Mapping[str, Any] = setting(doc="keyword arguments for the environment's constructor", factory=dict)
    max_episode_steps: int | None = setting(None, "time limit; null: the environment's own", "env_steps", least=1)
    clip_actions: bool = setting(True, "clip continuous actions to the action space before stepping")
    rescale_actions: bool = setting(False, "the policy acts in [-1, 1], rescaled to the environment's bounds")
    wrappers: tuple[Any, ...] = setting(
        (), "wrappers, the innermost first: {id: Name, its arguments}, or a name alone; see docs/environments.md"
    )
    grayscale: bool = setting(False, "convert images to one channel; after the wrappers")
    resize: bool | int | tuple[int, ...] = setting(
        False, "size of images: N, [height, width], or true for 84; after grayscale", "pixels", least=1
    )
    frame_stack: int | None = setting(None, "number of stacked observations; after resize", "observations", least=1)
    groups: Literal["auto", "type", "space", "agent", "one"] | Mapping[str, tuple[str, ...]] = setting(
        "auto",
        "agents that share networks: by type, by equal spaces, each agent alone, all in one, or {name: [agents]}; "
        "auto: by type, or the algorithm's choice (happo: each agent alone)",
    )
    padding: Literal["none", "spaces", "types"] = setting(
        "none",
        "one observation and one action space for unlike agents, so that environment.groups may join them: zeros after "
        "the observation, extra actions masked out; types: followed by a one-hot vector of the agent's type",
    )
    teams: Mapping[str, tuple[str, ...]] = setting(
        doc="opposing teams: {name: [groups]}; empty: as the environment defines them", factory=dict
    )
    vectorize: Literal["auto", "in_process", "workers", "native", "gymnasium", "envpool"] = setting(
        "auto", "method of stepping environments together; auto: the fastest that can be restored exactly"
    )
    workers: int | Literal["auto"] = setting("auto", "processes for vectorize=workers; auto: one per core", least=1)
    autoreset: Literal["next_step", "same_step", "disabled"] = setting(
        "same_step", "Gymnasium's autoreset mode for vectorize=gymnasium"
    )
    timeout_seconds: float = setting(60.0, "time after which a reset or step counts as hung", "s", above=0)

    def __post_init__(self) -> None:
        if self.picture_size is not None and len(self.picture_size) != 2:
            size = list(self.picture_size)
            raise ConfigError(f"environment.resize={size}: must be true, a number of pixels or [height, width]")
        object.__setattr__(self, "wrappers", tuple(_wrapper(entry, i) for i, entry in enumerate(self.wrappers)))

    @property
    def picture_size(self) -> tuple[int, ...] | None:
        """The (height, width) that images are resized to, or None."""
        if isinstance(self.resize, tuple):
            return self.resize
        return ((84, 84) if self.resize is True else (self.resize, self.resize)) if self.resize is not False else None

    @property
    def dressing(self) -> tuple[str, ...]:
        """The names of the settings in force that wrap the bare environment."""
        fields = ("wrappers", "rescale_actions", "grayscale", "resize", "frame_stack")
        return tuple(name for name in fields if getattr(self, name))


def _wrapper(entry: Any, index: int) -> Mapping[str, Any]:
    """Return the settings of a wrapper; `Name` is short for `{id: Name}`."""
    settings = {"id": entry} if isinstance(entry, str) else entry
    if not isinstance(settings, Mapping) or not isinstance(settings.get("id"), str) or not settings["id"]:
        raise ConfigError(f"environment.wrappers[{index}]: needs an id, the wrapper's name, e.g. {{id: SignReward}}")
    return settings


@dataclass(frozen=True)
class Hook:
    """An entry of a phase: `collect`, `evaluate`, or the name of one of the algorithm's update methods."""

    name: str = setting("", "collect, evaluate, or the name of an update method")
    steps: int | None = setting(None, "collect: env_steps a cycle; null: the algorithm's choice", "env_steps", least=1)
    episodes: int | None = setting(None, "collect: finished episodes per cycle, instead of steps", "episodes", least=1)
    times: int = setting(1, "updates: calls per cycle", "calls", least=1)
    ratio: float | None = setting(None, "updates: calls per env_step of this phase, instead of `times`", above=0)
    buffer: str = setting("", "name of its store; empty: that of the phase")

    @property
    def without_amount(self) -> bool:
        """Whether this is a `collect` of the algorithm's own amount."""
        return self.name == "collect" and not (self.steps or self.episodes)

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the settings that a short form stands for: `collect` is short for `{name: collect}`."""
        return {"name": value} if isinstance(value, str) else value

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a hook needs a name")
        if self.name != "collect" and (self.steps, self.episodes) != (None, None):
            raise ConfigError(f"hook {self.name}: steps and episodes belong to collect")
        if self.steps is not None and self.episodes is not None:
            raise ConfigError(f"hook {self.name}: only one of steps and episodes")
        if self.name in ("collect", "evaluate") and (self.times != 1 or self.ratio is not None):
            raise ConfigError(f"hook {self.name}: times and ratio belong to updates")


@dataclass(frozen=True)
class Phase:
    """A part of the run: hooks called in turn, cycle after cycle, until a cycle ends after its duration."""

    name: str = setting("train", "name, shown in logs and passed to the algorithm")
    hooks: tuple[Hook, ...] = setting((), "hooks of one cycle, in order")
    type: Literal["online", "offline", "eval_only"] = setting("online", "collects, only learns, or only evaluates")
    buffer: str = setting("", "name of the store that collected steps go to and batches come from")
    actions: Literal["policy", "random"] = setting("policy", "actions while collecting")
    duration_steps: int | None = setting(None, "length of the phase", "env_steps", least=1)
    duration_updates: int | None = setting(None, "length of the phase", "updates", least=1)
    duration_cycles: int | None = setting(None, "length of the phase", "cycles", least=1)

    def __post_init__(self) -> None:
        names = [hook.name for hook in self.hooks]
        durations = (self.duration_steps, self.duration_updates, self.duration_cycles)
        where = f"phase {self.name}"
        if not names:
            raise ConfigError(f"{where}: needs at least one hook")
        if sum(duration is not None for duration in durations) > 1:
            raise ConfigError(f"{where}: only one of duration_steps, duration_updates, duration_cycles")
        if self.type == "online" and "collect" not in names:
            raise ConfigError(f"{where}: an online phase needs the hook collect, this one has {', '.join(names)}")
        if self.type == "offline" and ("collect" in names or set(names) == {"evaluate"}):
            raise ConfigError(f"{where}: an offline phase updates and does not collect")
        if self.type == "eval_only" and set(names) != {"evaluate"}:
            raise ConfigError(f"{where}: an eval_only phase has the hook evaluate alone")
        if self.type != "online" and (self.duration_steps is not None or any(hook.ratio for hook in self.hooks)):
            raise ConfigError(f"{where}: only an online phase can count env_steps")
        if self.type == "eval_only" and self.duration_cycles is None:
            raise ConfigError(f"{where}: an eval_only phase needs duration_cycles")


@dataclass(frozen=True)
class EarlyStop:
    """The condition on a metric that ends the run early."""

    metric: str = setting("eval/return_mean", "metric to watch; collect/return_mean watches training episodes")
    at_least: float | Literal["solved"] = setting("solved", "value to reach; solved: the environment's threshold")

    def __post_init__(self) -> None:
        measured = self.metric.startswith(("eval/", "collect/")) and self.metric.count("/") == 1
        if measured and self.metric not in WATCHED:
            names = f"{nearest(self.metric, WATCHED)} (known: {', '.join(WATCHED)})"
            raise ConfigError(f"training.early_stop.metric={self.metric}: unknown{names}")
        if not self.metric.startswith(("eval/", "collect/", "train/")):
            raise ConfigError(f"training.early_stop.metric={self.metric}: must begin with eval/, collect/ or train/")


@dataclass(frozen=True)
class TrainingConfig:
    """The length of a run and its phases."""

    max_timesteps: int | None = setting(100_000, "budget, rounded up to a whole cycle", "env_steps", least=1)
    exact_budget: bool = setting(
        False,
        "the last rollout is shorter, so that the run ends at max_timesteps, rounded up to a step of every environment",
        sparse=True,
    )
    max_updates: int | None = setting(None, "budget in gradient steps, alone or with max_timesteps", "updates", least=1)
    horizon: int | None = setting(None, "length for schedules; null: the first budget", "env_steps or updates", least=1)
    phases: tuple[Phase, ...] | None = setting(None, "curriculum; null: the algorithm's own")
    early_stop: EarlyStop | None = setting(None, "end early when a metric reaches a value")
    init_from: str | None = setting(None, "folder of a run whose weights this one starts from")
    buffers: Mapping[str, Any] = setting(
        doc="stores of yours in place of the algorithm's: {replay: {id: Name, its arguments}}, or a name alone; "
        "an import path `package.module:Store` or a registered name",
        factory=dict,
        sparse=True,
    )
    dataset: str | None = setting(None, "initial content of the replay: a folder, or minari:ID (docs/offline.md)")

    def __post_init__(self) -> None:
        if self.exact_budget and self.max_timesteps is None:
            raise ConfigError("training.exact_budget=true: needs training.max_timesteps, the budget to end at")
        if self.phases is not None and not self.phases:
            raise ConfigError("training.phases is empty: give at least one phase, or null for the algorithm's own")
        for name, entry in self.buffers.items():
            id, _ = plugins.split_entry(entry, f"training.buffers.{name}")
            plugins.check_name("buffer", id, f"training.buffers.{name}")
        names = [phase.name for phase in self.phases or ()]
        if len(names) != len(set(names)):
            raise ConfigError(f"training.phases: names must differ, got {', '.join(names)}")


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation of the policy apart from training, in separate environments with separate seeds."""

    every_steps: int | None = setting(
        10_000, "interval of evaluations; 0 or null: only at the end", "env_steps", least=0
    )
    every_updates: int | None = setting(10_000, "the same in phases that do not collect", "updates", least=0)
    warmup_steps: int = setting(0, "no evaluation up to and including this point", "env_steps", least=0)
    at_start: bool = setting(False, "evaluate before the first step, so that curves begin at 0", sparse=True)
    at_end: bool = setting(True, "evaluate when the run ends")
    episodes: int = setting(20, "finished episodes per evaluation", "episodes", least=1)
    num_envs: int = setting(8, "environments stepped together (never more than episodes)", least=1)
    timeout_seconds: float | None = setting(
        None, "time after which an evaluation ends with the episodes finished so far; 0 or null: none", "s", least=0
    )
    max_episode_steps: int | Literal["auto"] = setting(
        "auto",
        "time limit of an episode; auto: the environment's own, or 27,000 steps where it has none",
        "env_steps",
        least=1,
    )
    explore: bool = setting(False, "draw actions as in training, instead of taking the most likely ones")
    video: bool = setting(False, "record one episode as a video when the run ends")
    video_every: int = setting(
        0, "evaluations between videos (.mp4 with the extra video, else .gif); 0: none", "evaluations", least=0
    )

    def episode_limit(self, env_limit: int | None) -> int | None:
        """Return the time limit of evaluated episodes, or None if the environment's own is at most that."""
        if self.max_episode_steps == "auto":
            return LONGEST_EPISODE if env_limit is None else None
        return self.max_episode_steps if env_limit is None or self.max_episode_steps < env_limit else None


@dataclass(frozen=True)
class CheckpointConfig:
    """The times at which the whole state of the run is saved."""

    every_steps: int = setting(10_000, "distance between checkpoints; 0: no such distance", "env_steps", least=0)
    every_updates: int = setting(10_000, "the same in phases that do not collect", "updates", least=0)
    every_minutes: float = setting(
        10.0, "save at the end of the first cycle after this long without a checkpoint; 0: never", "min", least=0
    )
    keep: int = setting(2, "newest checkpoints kept, besides the best one", least=1)


@dataclass(frozen=True)
class LoggingConfig:
    """The records written while training."""

    every_steps: int = setting(1_000, "distance between rows of metrics.jsonl", "env_steps", least=1)
    every_updates: int = setting(1_000, "the same in phases that do not collect", "updates", least=1)
    episodes: bool = setting(True, "store seed and actions of every training episode in episodes/")
    run_log: bool = setting(True, "write logs/run.log, which also has what --quiet leaves out", sparse=True)
    alerts: AlertsConfig = setting(doc="rules that watch the metrics", factory=AlertsConfig)
    tensorboard: bool = setting(False, "also write rows for TensorBoard, in tensorboard/ (extra: tensorboard)")
    wandb: bool | Literal["offline"] = setting(
        False, "also send rows to Weights & Biases; offline: only write wandb/, for `wandb sync` (extra: wandb)"
    )
    wandb_project: str | None = setting(
        None, "W&B project; null: WANDB_PROJECT, else the name of the config's file without its ending, else cadenza"
    )
    wandb_entity: str | None = setting(None, "W&B user or team; null: WANDB_ENTITY, or the account's default")
    sinks: tuple[Any, ...] = setting(
        (),
        "sinks of other packages: {id: Name, its arguments}, or a name alone; an import path `package.module:Sink` or "
        "a registered name",
        sparse=True,
    )

    def __post_init__(self) -> None:
        for sink in self.sinks:
            id, _ = plugins.split_entry(sink, "logging.sinks")
            plugins.check_name("sink", id, "logging.sinks")


@dataclass(frozen=True)
class RuntimeConfig:
    """The use of the machine. It is part of a run's identity: results are equal bit for bit only under equal values."""

    threads: int | Literal["auto"] = setting(
        "auto",
        "threads of torch and NumPy at most: a run whose products are too small to gain from more uses one on a CPU; "
        "auto: 1, or every core for images of 36 pixels and more on a CPU",
        least=1,
    )
    kernels: Literal["auto", "numpy", "torch"] = setting(
        "auto", "library that computes plain networks; auto: numpy on a CPU, where it is faster, else torch"
    )
    blas: Literal["auto", "fastest", "SkylakeX", "Haswell", "Sandybridge"] = setting(
        "auto",
        "kernels of NumPy's linear algebra (OpenBLAS); auto: those that OPENBLAS_CORETYPE names, else the fastest of "
        "the processor; fastest: these in any case",
    )
    compile: bool | Literal["auto"] = setting(
        "auto",
        "compile the loss of ppo and dqn with torch; auto: for such images on a CPU, if the run is long enough to gain "
        "from it. On CUDA, auto captures gradient steps of ppo, sac, dreamer, planet and tdmpc, and plans, as CUDA "
        "graphs; true compiles the losses of ppo and dqn, and those and the search of tdmpc, as well",
    )
    tf32: bool = setting(False, "on CUDA: multiply float32 matrices with 10-bit mantissas, which is faster")
    bf16: bool = setting(
        False,
        "dreamer and planet on CUDA: compute the networks in bfloat16, as the authors of DreamerV3 do; weights, "
        "optimizers and losses stay float32",
    )


@dataclass(frozen=True)
class DebugConfig:
    """Checks and measurements for debugging. They change the speed of a run, not its weights."""

    enabled: bool = setting(False, "check every number, measure every module, profile; `train --debug` sets it")
    profile_cycles: int = setting(1, "cycles in the trace in debug/, after the first; 0: none", "cycles", least=0)


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run."""

    algorithm: Any = setting(doc="the algorithm and its settings", factory=dict)
    environment: EnvironmentConfig = setting(doc="the environments", factory=EnvironmentConfig)
    training: TrainingConfig = setting(doc="length and phases", factory=TrainingConfig)
    evaluation: EvaluationConfig = setting(doc="evaluation of the policy", factory=EvaluationConfig)
    checkpoint: CheckpointConfig = setting(doc="saving the state of the run", factory=CheckpointConfig)
    logging: LoggingConfig = setting(doc="the records written while training", factory=LoggingConfig)
    runtime: RuntimeConfig = setting(doc="threads, kernels and compilation", factory=RuntimeConfig)
    debug: DebugConfig = setting(doc="checks and measurements for debugging", factory=DebugConfig)
    seed: int = setting(0, "seed of everything random in the run", least=0)
    device: str = setting("auto", "cpu, cuda, cuda:1 …; auto: cuda if there is one")
    name: str = setting("", "name of the run, shown by `cadenza list`")
    tags: tuple[str, ...] = setting((), "words to find the run by")
    experiment: str | None = setting(None, "the tuned experiment that this config comes from; null: untuned")
    plugins: tuple[str, ...] = setting(
        (), "modules to import first, whose decorators register algorithms, networks and other parts", sparse=True
    )
    from_environment: tuple[str, ...] = setting(
        (), "keys whose value came from an environment variable (`${oc.env:…}`): never published", sparse=True
    )
    schema_version: int = setting(SCHEMA_VERSION, "version of these settings on disk")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device={self.device}: must be auto, cpu, cuda or cuda:INDEX")
        if self.environment.groups == "auto" and isinstance(self.algorithm, AlgorithmSettings):
            groups = self.algorithm.default_groups
            object.__setattr__(self, "environment", replace(self.environment, groups=groups))

    @property
    def variant(self) -> str:
        """The part of the spec after ENV: the name of a tuned experiment, else that of the algorithm."""
        return variant(self.environment.id, str(self.algorithm.name), self.experiment)


def variant(environment: str, algorithm: str, experiment: str | None) -> str:
    """Return the name of a run's experiment if it is one of that environment, else the algorithm's name."""
    env, _, name = (experiment or "").rpartition("/")
    return name if name and env == environment else algorithm
