"""Every setting of a run except the algorithm's own: names, types, defaults, meaning, checks.

An algorithm's settings stand beside it, in `workflows/<name>_config.py`. All of it imports without torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cadenza.config.alert_rules import AlertsConfig
from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.plugins import check_name
from cadenza.config.setting import setting
from cadenza.errors import ConfigError, nearest

SCHEMA_VERSION = 2
MINARI = "minari:"  # before the id of a dataset that Minari keeps
# What every run measures, and early stopping may watch beside the algorithm's own train/… metrics.
WATCHED = (
    *(f"eval/{name}" for name in ("return_mean", "return_std", "return_min", "return_max", "length_mean", "win_rate")),
    *(f"collect/{name}" for name in ("return_mean", "length_mean", "win_rate")),
)


@dataclass(frozen=True)
class EnvironmentConfig:
    """What the agents live in."""

    id: str = setting("", "environment id, as in `cadenza envs`")
    num_envs: int = setting(8, "environments stepped together")
    kwargs: Mapping[str, Any] = setting(doc="keyword arguments for the environment's constructor", factory=dict)
    max_episode_steps: int | None = setting(None, "time limit; null keeps the environment's own", "env_steps")
    clip_actions: bool = setting(True, "clip continuous actions into the action space before stepping")
    rescale_actions: bool = setting(False, "the policy acts from -1 to 1, stretched over the environment's bounds")
    wrappers: tuple[Any, ...] = setting(
        (), "wrappers, the innermost first: {id: Name, its arguments}, or a name alone; see docs/environments.md"
    )
    grayscale: bool = setting(False, "images in one channel; after the wrappers")
    resize: bool | int | tuple[int, ...] = setting(
        False, "images in this size: N, [height, width], or true for 84; after grayscale", "pixels"
    )
    frame_stack: int | None = setting(None, "the last observations at once; after resize", "observations")
    groups: Literal["auto", "type", "space", "agent", "one"] | Mapping[str, tuple[str, ...]] = setting(
        "auto",
        "who shares networks: by type, by equal spaces, each agent alone, all, or {name: [agents]}; "
        "auto: by type, or what the algorithm asks for (happo: each agent alone)",
    )
    padding: Literal["none", "spaces", "types"] = setting(
        "none",
        "one observation and one action space for unlike agents, so that environment.groups may join them: zeros after "
        "what is seen, actions that are never allowed; types: then its type, as one of as many columns",
    )
    teams: Mapping[str, tuple[str, ...]] = setting(
        doc="who plays against whom: {name: [groups]}; empty: as the environment knows it", factory=dict
    )
    vectorize: Literal["auto", "in_process", "workers", "native", "gymnasium", "envpool"] = setting(
        "auto", "how environments are stepped together; auto takes the fastest that can be restored exactly"
    )
    workers: int | Literal["auto"] = setting("auto", "processes for vectorize=workers; auto: one per core")
    autoreset: Literal["next_step", "same_step", "disabled"] = setting(
        "same_step", "Gymnasium's autoreset mode for vectorize=gymnasium"
    )
    timeout_seconds: float = setting(60.0, "an environment that takes longer for one reset or step has hung", "s")

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ConfigError(f"environment.num_envs={self.num_envs}: at least one environment is needed")
        if self.timeout_seconds <= 0:
            raise ConfigError(f"environment.timeout_seconds={self.timeout_seconds:g}: must be above 0")
        if self.workers != "auto" and self.workers < 1:
            raise ConfigError(f"environment.workers={self.workers}: at least one worker is needed")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ConfigError(f"environment.max_episode_steps={self.max_episode_steps}: must be at least 1")
        if self.frame_stack is not None and self.frame_stack < 1:
            raise ConfigError(f"environment.frame_stack={self.frame_stack}: must be at least 1")
        size = self.picture_size
        if size is not None and (len(size) != 2 or min(size) < 1):
            given = list(self.resize) if isinstance(self.resize, tuple) else self.resize
            raise ConfigError(f"environment.resize={given}: must be true, a number of pixels or [height, width]")
        object.__setattr__(self, "wrappers", tuple(_wrapper(entry, i) for i, entry in enumerate(self.wrappers)))

    @property
    def picture_size(self) -> tuple[int, ...] | None:
        """(height, width) that images are brought to."""
        if isinstance(self.resize, tuple):
            return self.resize
        return ((84, 84) if self.resize is True else (self.resize, self.resize)) if self.resize is not False else None

    @property
    def dressing(self) -> tuple[str, ...]:
        """The fields in force that stand between the bare environment and the agent."""
        fields = ("wrappers", "rescale_actions", "grayscale", "resize", "frame_stack")
        return tuple(name for name in fields if getattr(self, name))


def _wrapper(entry: Any, index: int) -> Mapping[str, Any]:
    """`Name` is short for `{id: Name}`."""
    settings = {"id": entry} if isinstance(entry, str) else entry
    if not isinstance(settings, Mapping) or not isinstance(settings.get("id"), str) or not settings["id"]:
        raise ConfigError(f"environment.wrappers[{index}]: needs an id, the wrapper's name, e.g. {{id: SignReward}}")
    return settings


@dataclass(frozen=True)
class Hook:
    """One entry of a phase: `collect`, `evaluate`, or the name of one of the algorithm's update methods."""

    name: str = setting("", "what to do")
    steps: int | None = setting(None, "collect: env_steps each visit; null takes the algorithm's own", "env_steps")
    episodes: int | None = setting(None, "collect: finished episodes each visit, instead of steps", "episodes")
    times: int = setting(1, "updates: calls each visit", "calls")
    ratio: float | None = setting(None, "updates: calls per env_step collected in this phase, instead of `times`")
    buffer: str = setting("", "the store it uses; empty: the phase's")

    @property
    def without_amount(self) -> bool:
        """Whether this is a `collect` that takes the algorithm's own amount."""
        return self.name == "collect" and not (self.steps or self.episodes)

    @classmethod
    def parse(cls, value: Any) -> Any:
        """`collect` is short for `{name: collect}`."""
        return {"name": value} if isinstance(value, str) else value

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a hook needs a name")
        given = [amount for amount in (self.steps, self.episodes) if amount is not None]
        if given and self.name != "collect":
            raise ConfigError(f"hook {self.name}: steps and episodes belong to collect")
        if len(given) > 1 or any(amount < 1 for amount in given):
            raise ConfigError(f"hook {self.name}: one of steps and episodes, and at least 1")
        if self.name in ("collect", "evaluate") and (self.times != 1 or self.ratio is not None):
            raise ConfigError(f"hook {self.name}: times and ratio belong to updates")
        if self.times < 1 or (self.ratio is not None and self.ratio <= 0):
            raise ConfigError(f"hook {self.name}: times must be at least 1 and ratio above 0")


@dataclass(frozen=True)
class Phase:
    """A stretch of the run: hooks called in turn until its duration is over (at the end of a turn)."""

    name: str = setting("train", "name, shown in logs and passed to the algorithm")
    hooks: tuple[Hook, ...] = setting((), "what one cycle of the phase does, in order")
    type: Literal["online", "offline", "eval_only"] = setting("online", "collects, only learns, or only evaluates")
    buffer: str = setting("", "name of the store that collected steps go to and batches come from")
    actions: Literal["policy", "random"] = setting("policy", "who chooses the actions while collecting")
    duration_steps: int | None = setting(None, "length of the phase", "env_steps")
    duration_updates: int | None = setting(None, "length of the phase", "updates")
    duration_cycles: int | None = setting(None, "length of the phase", "cycles")

    def __post_init__(self) -> None:
        names = [hook.name for hook in self.hooks]
        durations = (self.duration_steps, self.duration_updates, self.duration_cycles)
        where = f"phase {self.name}"
        if not names:
            raise ConfigError(f"{where}: needs at least one hook")
        if sum(duration is not None for duration in durations) > 1:
            raise ConfigError(f"{where}: only one of duration_steps, duration_updates, duration_cycles")
        if any(duration is not None and duration < 1 for duration in durations):
            raise ConfigError(f"{where}: a duration must be at least 1")
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
    """Ends the run when a metric is good enough."""

    metric: str = setting("eval/return_mean", "metric to watch; collect/return_mean watches training episodes")
    at_least: float | Literal["solved"] = setting("solved", "stop at or above it; solved: the environment's threshold")

    def __post_init__(self) -> None:
        measured = self.metric.startswith(("eval/", "collect/")) and self.metric.count("/") == 1
        if measured and self.metric not in WATCHED:
            known = f"{nearest(self.metric, WATCHED)} (known: {', '.join(WATCHED)})"
            raise ConfigError(f"training.early_stop.metric={self.metric}: unknown{known}")
        if not self.metric.startswith(("eval/", "collect/", "train/")):
            raise ConfigError(f"training.early_stop.metric={self.metric}: must begin with eval/, collect/ or train/")


@dataclass(frozen=True)
class TrainingConfig:
    """How long a run lasts and what it does."""

    max_timesteps: int | None = setting(100_000, "budget; the run ends at the first cycle at or after it", "env_steps")
    max_updates: int | None = setting(None, "budget in gradient steps, alone or beside max_timesteps", "updates")
    horizon: int | None = setting(None, "what schedules stretch over; null: the first budget", "env_steps or updates")
    phases: tuple[Phase, ...] | None = setting(None, "curriculum; null takes the algorithm's own")
    early_stop: EarlyStop | None = setting(None, "end early when a metric is reached")
    init_from: str | None = setting(None, "folder of a run whose weights this one starts from")
    dataset: str | None = setting(None, "what the replay holds at the start: a folder, or minari:ID (docs/offline.md)")

    def __post_init__(self) -> None:
        for name in ("max_timesteps", "max_updates", "horizon"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"training.{name}={value}: must be at least 1")
        if self.phases is not None and not self.phases:
            raise ConfigError("training.phases is empty: give at least one phase, or null for the algorithm's own")
        names = [phase.name for phase in self.phases or ()]
        if len(names) != len(set(names)):
            raise ConfigError(f"training.phases: names must differ, got {', '.join(names)}")


@dataclass(frozen=True)
class EvaluationConfig:
    """Measuring the policy apart from training, in environments and with seeds of its own."""

    every_steps: int | None = setting(10_000, "distance between evaluations; 0 or null: none till the end", "env_steps")
    every_updates: int | None = setting(10_000, "the same in phases that do not collect", "updates")
    warmup_steps: int = setting(0, "no evaluation up to and including this point", "env_steps")
    at_end: bool = setting(True, "evaluate when the run ends")
    episodes: int = setting(20, "finished episodes per evaluation", "episodes")
    num_envs: int = setting(8, "environments stepped together (never more than episodes)")
    timeout_seconds: float | None = setting(None, "give up after this long and use what is finished", "s")
    video: bool = setting(False, "record one episode as a video when the run ends")
    video_every: int = setting(
        0, "and one at every so manieth evaluation (.mp4 with the extra video, else .gif); 0: none", "evaluations"
    )

    def __post_init__(self) -> None:
        for key in ("episodes", "num_envs"):
            if getattr(self, key) < 1:
                raise ConfigError(f"evaluation.{key}={getattr(self, key)}: must be at least 1")
        for key in ("every_steps", "every_updates", "warmup_steps", "video_every"):
            if (getattr(self, key) or 0) < 0:
                raise ConfigError(f"evaluation.{key}={getattr(self, key)}: cannot be negative")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the whole state of the run is saved."""

    every_steps: int = setting(10_000, "distance between checkpoints; 0: no such distance", "env_steps")
    every_updates: int = setting(10_000, "the same in phases that do not collect", "updates")
    every_minutes: float = setting(10.0, "and at the first end of a cycle after so long without one; 0: never", "min")
    keep: int = setting(2, "newest checkpoints kept, besides the best one")

    def __post_init__(self) -> None:
        for key in ("every_steps", "every_updates", "every_minutes"):
            if getattr(self, key) < 0:
                raise ConfigError(f"checkpoint.{key}={getattr(self, key)}: cannot be negative")
        if self.keep < 1:
            raise ConfigError(f"checkpoint.keep={self.keep}: must be at least 1")


@dataclass(frozen=True)
class LoggingConfig:
    """What is written while training."""

    every_steps: int = setting(1_000, "distance between rows of metrics.jsonl", "env_steps")
    every_updates: int = setting(1_000, "the same in phases that do not collect", "updates")
    episodes: bool = setting(True, "keep seed and actions of every training episode in episodes/")
    alerts: AlertsConfig = setting(doc="what the metrics are watched for", factory=AlertsConfig)
    tensorboard: bool = setting(False, "write rows for TensorBoard, too, in tensorboard/ (extra: tensorboard)")
    wandb: bool | Literal["offline"] = setting(
        False, "hand rows to Weights & Biases, too; offline: into wandb/ alone, for `wandb sync` (extra: wandb)"
    )
    wandb_project: str | None = setting(None, "W&B project; null: WANDB_PROJECT, or cadenza")
    wandb_entity: str | None = setting(None, "W&B user or team; null: WANDB_ENTITY, or the account's own")
    sinks: tuple[Any, ...] = setting(
        (),
        "sinks of other packages: {id: Name, its arguments}, or a name alone; an import path `package.module:Sink` or "
        "an entry point's name",
        sparse=True,
    )

    def __post_init__(self) -> None:
        for sink in self.sinks:
            name = sink.get("id") if isinstance(sink, Mapping) else sink
            if not isinstance(name, str):
                raise ConfigError(
                    f"logging.sinks={sink!r}: must be a name, or a mapping with an id, e.g. {{id: my:Sink}}"
                )
            check_name("sink", name, "logging.sinks")
        if self.every_steps < 1 or self.every_updates < 1:
            raise ConfigError("logging.every_steps and logging.every_updates must be at least 1")


@dataclass(frozen=True)
class RuntimeConfig:
    """The machine. Part of a run's identity: results are bit for bit the same only under the same choices."""

    threads: int | Literal["auto"] = setting(
        "auto", "of torch and NumPy; auto: one, or every core for images of 36 pixels and more on a CPU"
    )
    kernels: Literal["auto", "numpy", "torch"] = setting(
        "auto", "what plain networks are computed with; auto: numpy on a CPU, which is quicker there, else torch"
    )
    compile: bool | Literal["auto"] = setting(
        "auto",
        "ppo's and dqn's loss by torch's compiler; auto: for such images on a CPU, if the run is long enough to repay"
        " it. Updates of dreamer, planet and tdmpc as one CUDA graph, and plans; auto: on CUDA",
    )
    tf32: bool = setting(
        False, "on CUDA: products of float32 matrices by tensor cores, from 10 bits of their mantissas; quicker"
    )

    def __post_init__(self) -> None:
        if self.threads != "auto" and self.threads < 1:
            raise ConfigError(f"runtime.threads={self.threads}: must be at least 1")


@dataclass(frozen=True)
class DebugConfig:
    """Looking for what is wrong. The trained weights are the same with and without it; the speed is not."""

    enabled: bool = setting(False, "check every number, measure every module, profile; `train --debug` sets it")
    profile_cycles: int = setting(1, "cycles that the trace in debug/ covers, after the first; 0: none", "cycles")

    def __post_init__(self) -> None:
        if self.profile_cycles < 0:
            raise ConfigError(f"debug.profile_cycles={self.profile_cycles}: cannot be negative")


@dataclass(frozen=True)
class RunConfig:
    """The whole of a run, resolved."""

    algorithm: Any = setting(doc="the algorithm and its own settings", factory=dict)
    environment: EnvironmentConfig = setting(doc="what the agents live in", factory=EnvironmentConfig)
    training: TrainingConfig = setting(doc="how long and in which phases", factory=TrainingConfig)
    evaluation: EvaluationConfig = setting(doc="measuring the policy", factory=EvaluationConfig)
    checkpoint: CheckpointConfig = setting(doc="saving the state of the run", factory=CheckpointConfig)
    logging: LoggingConfig = setting(doc="what is written while training", factory=LoggingConfig)
    runtime: RuntimeConfig = setting(doc="threads and the like", factory=RuntimeConfig)
    debug: DebugConfig = setting(doc="looking for what is wrong", factory=DebugConfig)
    seed: int = setting(0, "seed of everything random in the run")
    device: str = setting("auto", "cpu, cuda, cuda:1 …; auto: cuda where there is one")
    name: str = setting("", "a name for the run, shown by `cadenza list`")
    tags: tuple[str, ...] = setting((), "words to find the run by")
    experiment: str | None = setting(None, "the tuned experiment this config came from; null: untuned")
    from_environment: tuple[str, ...] = setting(
        (), "keys whose value came from an environment variable (`${oc.env:…}`): never published", sparse=True
    )
    schema_version: int = setting(SCHEMA_VERSION, "version of these settings on disk")

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: cannot be negative")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device={self.device}: must be auto, cpu, cuda or cuda:INDEX")
        if self.environment.groups == "auto" and isinstance(self.algorithm, AlgorithmSettings):
            groups = self.algorithm.default_groups
            object.__setattr__(self, "environment", replace(self.environment, groups=groups))

    @property
    def variant(self) -> str:
        """What stands after ENV in the spec: the name of a tuned experiment, else the algorithm's."""
        return variant(self.environment.id, str(self.algorithm.name), self.experiment)


def variant(environment: str, algorithm: str, experiment: str | None) -> str:
    """How the settings of a run were asked for in that environment."""
    env, _, name = (experiment or "").rpartition("/")
    return name if name and env == environment else algorithm
