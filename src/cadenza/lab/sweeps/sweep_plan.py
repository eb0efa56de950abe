"""The plan of a sweep: every config is resolved and checked before anything starts."""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from cadenza.base.json_text import canonical
from cadenza.config.convert import to_dict, walk
from cadenza.config.load import finish, load, override, resolve, with_project
from cadenza.config.schema import RunConfig
from cadenza.engine.launch import check, with_absolute_path
from cadenza.errors import ConfigError
from cadenza.lab.sweeps.space import Params, Space, parse
from cadenza.lab.sweeps.sweep_file import SweepFile
from cadenza.records.trust import require_trust_of_file
from cadenza.types import EnvSpec

RANDOM_TRIALS = 8  # of tpe, before it has results to learn from
# each changes several settings: Hydra composes them
CHOICES = ("algorithm", "algorithm.name", "environment", "experiment")
# may change between two starts of a sweep; of the base, its config counts
VARIABLE = ("trials", "parallel_jobs", "base")


class Resolver:
    """The configs of a spec under changing settings.

    Hydra composes the spec once. It is needed again only if settings refer to others, or for a choice such as
    `algorithm`, which changes several settings.
    """

    def __init__(self, spec: str, overrides: Sequence[str], config_dir: Path | None) -> None:
        self.spec, self.overrides, self.config_dir = spec, list(overrides), config_dir
        composed = resolve(spec, overrides, config_dir, trace=True)
        self.data = composed.data
        self.base = composed.config
        self.hints = {key: hint for key, hint, _ in walk(RunConfig, data=self.data)}
        self.independent = "${" not in str([layer.data for layer in composed.layers])

    def config(self, params: Mapping[str, Any]) -> RunConfig:
        """Return the config with these settings, by dotted key."""
        refers = not self.independent or "${" in str(params)
        if refers or any(key not in self.hints or key in CHOICES for key in params):
            changes = [override(key, value) for key, value in params.items()]
            return load(self.spec, [*self.overrides, *changes], self.config_dir)
        data = copy.deepcopy(self.data)
        for key, value in params.items():
            _set(data, key, value)
        return with_project(finish(data), self.spec)

    def kinds(self) -> dict[str, tuple[bool, bool]]:
        """Return for each setting whether it takes whole numbers, and whether it takes others."""
        options = {key: get_args(hint) or (hint,) for key, hint in self.hints.items()}
        return {key: (int in types, float in types) for key, types in options.items()}


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key in nested mappings; a mapping is merged into an existing one."""
    *parents, leaf = key.split(".")
    for name in parents:
        below = data.get(name)
        data[name] = data = below if isinstance(below, dict) else {}
    before = data.get(leaf)
    if isinstance(before, dict) and isinstance(value, dict):
        data[leaf] = {**before, **value}
    else:
        data[leaf] = copy.deepcopy(value)


@dataclass(frozen=True)
class Plan:
    """A sweep that is ready to start: every config that is known beforehand has been built once."""

    file: SweepFile
    resolver: Resolver
    space: Space
    seeds: tuple[int, ...]
    predetermined: tuple[Params, ...]  # the values of each trial; empty if they depend on results of others (tpe)

    @cached_property
    def id(self) -> str:
        """The name, and a hash of everything that distinguishes sweeps.

        Numbers of trials and of jobs do not count: they may change between two starts.
        """
        settings = {key: value for key, value in to_dict(self.file).items() if key not in VARIABLE}
        order = list(self.file.sweep)  # determines the order of a grid's trials
        digest = hashlib.sha256(canonical([settings, order, to_dict(self.resolver.base)]).encode()).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9._-]', '_', self.file.name)}-{digest[:8]}"

    @property
    def total(self) -> int:
        """The number of trials."""
        return self.file.trials or len(self.predetermined)

    def config(self, number: int, params: Params, seed: int) -> RunConfig:
        """Return the config of one seed of a trial."""
        config = with_absolute_path(self.resolver.config({**self.space.fixed, **params, "seed": seed}))
        tags = (*config.tags, f"sweep:{self.id}", f"trial:{number}")
        return replace(config, name=f"{self.file.name} {number}", tags=tags)

    def rungs(self, config: RunConfig) -> list[tuple[str, int]]:
        """Return the points where a trial may be pruned, each as a unit and an amount."""
        if isinstance(self.file.pruning, bool):
            return []
        training = config.training
        unit, budget = "env_steps", training.max_timesteps
        if budget is None:
            unit, budget = "updates", training.max_updates
        return [(unit, round(part * (budget or 0))) for part in self.file.pruning.rungs]


def plan(file: SweepFile, overrides: Sequence[str] = (), config_dir: Path | None = None, trust: bool = False) -> Plan:
    """Return the plan of a sweep; refuse a sweep that could not run.

    Checked are the values of each list, the ends of each range, and every trial that is known beforehand.
    """
    require_trust_of_file(file.base, trust)
    budget = [] if file.max_timesteps is None else [override("training.max_timesteps", file.max_timesteps)]
    resolver = Resolver(file.base, [*budget, *overrides], config_dir)
    space = parse(file.sweep, resolver.kinds())
    predetermined: list[Params] = []
    if file.method == "grid":
        predetermined = list(space.grid())
    elif file.method == "random":
        predetermined = [space.draw(file.sampler_seed, number) for number in range(1, (file.trials or 0) + 1)]
    result = Plan(file, resolver, space, file.seeds or (resolver.base.seed,), tuple(predetermined))
    specs: dict[str, EnvSpec] = {}

    def build(params: Params) -> None:
        resolver.config({**space.fixed, **params})

    def check_trial(params: Params) -> None:
        config = result.config(0, params, result.seeds[0])
        try:
            check_with_specs(config, specs)
        except ConfigError as problem:
            settings = ", ".join(f"{key}={value}" for key, value in params.items())
            raise ConfigError(f"{settings}: {problem}" if settings else str(problem)) from None

    examples = predetermined[:1] or [space.draw(file.sampler_seed, number) for number in range(1, RANDOM_TRIALS + 1)]
    for corner in space.corners():  # it may be valid together with the values of a trial, though not alone
        _first_valid([corner, *({**params, **corner} for params in examples)], build)
    for params in predetermined:
        check_trial(params)
    _check_pruning(result, _first_valid(examples, check_trial))
    return result


def _first_valid(candidates: Sequence[Params], attempt: Callable[[Params], object]) -> Params:
    """Return the first candidate that passes; if none does, raise the error of the first."""
    problems = []
    for params in candidates:
        try:
            attempt(params)
            return params
        except ConfigError as problem:
            problems.append(problem)
    raise problems[0]


def check_with_specs(config: RunConfig, specs: dict[str, EnvSpec]) -> None:
    """Check a config like `launch.check`, building one environment for all configs with equal environment settings."""
    key = canonical(to_dict(config.environment))
    if key not in specs:
        specs[key] = check(config)
    config.algorithm.check(specs[key], config.environment.num_envs)


def _check_pruning(result: Plan, params: Params) -> None:
    """Refuse pruning if nothing is evaluated between the last rung and the end of a run."""
    config = result.resolver.config({**result.space.fixed, **params})
    rungs, evaluation = result.rungs(config), config.evaluation
    if not rungs or not result.file.objective.metric.startswith("eval/"):
        return
    unit, last = rungs[-1]
    key = "every_steps" if unit == "env_steps" else "every_updates"
    budget = config.training.max_timesteps if unit == "env_steps" else config.training.max_updates
    every = getattr(evaluation, key)
    if not every or every * math.ceil(last / every) >= (budget or 0):
        raise ConfigError(
            f"pruning: nothing is evaluated between {unit} {last} and the end; lower evaluation.{key}={every}"
        )
