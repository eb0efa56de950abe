"""Try shipped experiments and environments for a moment: whether they work, not whether they learn."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from dataclasses import dataclass, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.config.algorithm_settings import AlgorithmSettings
from cadenza.config.convert import build, to_dict
from cadenza.config.load import load
from cadenza.config.schema import EnvironmentConfig, RunConfig
from cadenza.data.datasets import write_dataset
from cadenza.engine.launch import Result
from cadenza.envs.catalog import make
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, explanation
from cadenza.lab.session import resume, train
from cadenza.tools.export import EpisodeSelection, played
from cadenza.types import Acted, EnvSpec, Mode, Step, Tree

ENVS = 2
SIZES = ("vec_steps", "env_steps", "steps", "episodes")  # units of the settings that make a cycle long
POWERS = [1 << exponent for exponent in range(4, 20)]
UPDATES = 2  # the most of a setting counted in updates: how long a phase learns before the next begins


@dataclass(frozen=True)
class SmokeResult:
    """The outcome of trying one experiment or environment."""

    name: str
    status: str  # ok, failed or skipped
    seconds: float
    message: str = ""


def attempt(name: str, work: Callable[[], None]) -> SmokeResult:
    """Do the work and return its outcome: skipped if an extra is missing, failed after any other error."""
    start, status, message = time.monotonic(), "ok", ""
    try:
        with redirect_stderr(StringIO()):  # runs this small have every reason to warn
            work()
    except MissingExtraError as problem:
        status, message = "skipped", str(problem)
    except Exception as problem:
        status, message = "failed", explanation(problem)
    return SmokeResult(name, status, time.monotonic() - start, " ".join(message.split()))


def try_experiment(name: str, timesteps: int, root: Path) -> None:
    """Train in `root`, resume for one more cycle, and evaluate an episode."""
    config = shrunk(load(name), timesteps)
    if config.training.max_updates is not None and config.training.dataset is None:  # nothing to learn from
        config = replace(config, training=replace(config.training, dataset=str(random_episodes(config, root))))
    first = uninterrupted(train(config, root, ["cadenza", "smoke"], quiet=True))
    summary = first.summary()
    if not summary["updates"]:
        raise CadenzaError(f"nothing was learned from {summary['env_steps']} env_steps")
    budget = config.training.max_timesteps
    more = {"max_timesteps": summary["env_steps"] + 1} if budget else {"max_updates": summary["updates"] + 1}
    if not budget or summary["env_steps"] >= budget:  # else its last phase was over, and nothing is left to resume
        after = uninterrupted(resume(first.folder, **more, quiet=True)).summary()
        if after["env_steps"] <= summary["env_steps"] and after["updates"] <= summary["updates"]:
            raise CadenzaError(f"the run did not continue when it was resumed at step {summary['env_steps']}")
    from cadenza.lab.playback import evaluate_run

    evaluate_run(first.folder, episodes=1, seed=0, checkpoint="last")


def random_episodes(config: RunConfig, root: Path) -> Path:
    """Write a dataset of random actions, for experiments that need one and collect nothing."""
    env, out = make(config.environment), root / "random"
    env.close()
    write_dataset(
        out,
        played(RandomPolicy(env.spec), config, EpisodeSelection(ENVS)),
        config,
        env.spec,
        {"what": "random actions"},
    )
    return out


@dataclass(frozen=True)
class RandomPolicy:
    """A policy of random actions."""

    spec: EnvSpec

    def initial_carry(self, num_envs: int) -> Tree:
        return {}

    def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
        action = random_actions(self.spec.groups, step, mode.streams.numpy("expert"))
        return Acted(action, {name: {} for name in action}, carry)


def try_environment(id: str, timesteps: int) -> None:
    """Make random steps in two environments, resets included."""
    with closing(make_vector(EnvironmentConfig(id=id), EpisodeSeeds(0, TRAIN), num_envs=ENVS)) as env:
        random = np.random.default_rng(0)
        for _ in range(-(-timesteps // ENVS)):
            env.step(random_actions(env.spec.groups, env.current, random))


def shrunk(config: RunConfig, timesteps: int) -> RunConfig:
    """Return the config of a smaller run: few environments, short cycles, and episodes short enough that some end."""
    env = make(config.environment)
    env.close()
    envs, longest = min(ENVS, config.environment.num_envs), max(1, timesteps // (2 * ENVS))
    budgets = {
        key: min(budget, timesteps)
        for key in ("max_timesteps", "max_updates")
        if (budget := getattr(config.training, key)) is not None
    }
    limit = min(env.spec.max_episode_steps or longest, longest)
    return replace(
        config,
        algorithm=with_short_cycles(config.algorithm, env.spec, envs),
        environment=replace(config.environment, num_envs=envs, max_episode_steps=limit),
        training=replace(config.training, early_stop=None, **budgets),
        evaluation=replace(config.evaluation, every_steps=None, episodes=1, num_envs=1, video=False),
        logging=replace(config.logging, every_steps=1),
        # two threads that wait for each other on busy cores take ten times as long
        runtime=replace(config.runtime, threads=1),
    )


def with_short_cycles(algorithm: AlgorithmSettings, spec: EnvSpec, num_envs: int) -> AlgorithmSettings:
    """Return the settings with counts of steps and episodes reduced to the smallest power of two that is valid."""
    units = {field.name: field.metadata.get("unit") for field in fields(algorithm)}
    algorithm = algorithm.shrunk()
    values = {name: value for name in units if isinstance(value := getattr(algorithm, name), int | float)}
    for name, value in values.items():
        if units[name] == "updates":
            smaller = changed(algorithm, {name: min(value, UPDATES)})
            if smaller is not None and fits(smaller, spec, num_envs) >= fits(algorithm, spec, num_envs):
                algorithm = smaller
    sizes = {name: value for name, value in values.items() if units[name] in SIZES and can_shrink(algorithm, name)}
    for most in POWERS:
        small = changed(algorithm, {name: min(value, most) for name, value in sizes.items()})
        if small is not None and fits(small, spec, num_envs):
            return small
    return algorithm


def changed(algorithm: AlgorithmSettings, values: dict[str, Any]) -> AlgorithmSettings | None:
    """Return the settings with these values, or None if they are refused."""
    try:
        return build(type(algorithm), {**to_dict(algorithm), **values}, "algorithm")
    except ConfigError:
        return None


def can_shrink(algorithm: AlgorithmSettings, name: str) -> bool:
    """Return whether any smaller value is valid; settings of an absent part are refused whatever they are."""
    smaller = [most for most in POWERS if most < getattr(algorithm, name)]
    return any(changed(algorithm, {name: most}) is not None for most in smaller)


def fits(algorithm: AlgorithmSettings, spec: EnvSpec, num_envs: int) -> bool:
    """Return whether the settings are valid for the environment."""
    try:
        algorithm.check(spec, num_envs)
    except ConfigError:
        return False
    return True


def uninterrupted(result: Result) -> Result:
    """Return the result, unless a signal ended the run."""
    if result.signal:
        raise KeyboardInterrupt
    return result
