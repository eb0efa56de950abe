"""From a sweep file to what will be run: every config resolved and checked before anything begins."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from cadenza.base.json_text import canonical
from cadenza.config.convert import to_dict, walk
from cadenza.config.load import finish, load, override, resolve
from cadenza.config.schema import RunConfig
from cadenza.engine.launch import check, found_from_anywhere
from cadenza.errors import ConfigError
from cadenza.lab.sweeps.space import Params, Space, parse
from cadenza.lab.sweeps.sweep_file import SweepFile
from cadenza.records.trust import require_trust_of_file
from cadenza.types import EnvSpec

RANDOM_TRIALS = 8  # of tpe, before there is anything to learn from
CHOICES = ("algorithm", "algorithm.name", "environment", "experiment")  # change more than one setting: left to Hydra
VARIABLE = ("trials", "parallel_jobs", "base")  # may change on the way; of the base its config counts


class Resolver:
    """Configs of a spec under changing settings. Where nothing refers to anything else, Hydra is needed only once."""

    def __init__(self, spec: str, overrides: Sequence[str], config_dir: Path | None) -> None:
        self.spec, self.overrides, self.config_dir = spec, list(overrides), config_dir
        composed = resolve(spec, overrides, config_dir, trace=True)
        self.data = composed.data
        self.base = finish(copy.deepcopy(self.data))
        self.hints = {key: hint for key, hint, _ in walk(RunConfig, data=self.data)}
        self.independent = "${" not in str([layer.data for layer in composed.layers])

    def config(self, params: Mapping[str, Any]) -> RunConfig:
        if not self.independent or any(key not in self.hints or key in CHOICES for key in params):
            given = [override(key, value) for key, value in params.items()]
            return load(self.spec, [*self.overrides, *given], self.config_dir)
        data = copy.deepcopy(self.data)
        for key, value in params.items():
            _place(data, key, value)
        return finish(data)

    def kinds(self) -> dict[str, tuple[bool, bool]]:
        """Of each setting, whether it takes whole numbers, and whether others, too."""
        options = {key: get_args(hint) or (hint,) for key, hint in self.hints.items()}
        return {key: (int in found, float in found) for key, found in options.items()}


def _place(data: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for name in parents:
        below = data.get(name)
        data[name] = data = below if isinstance(below, dict) else {}
    there = data.get(leaf)
    data[leaf] = {**there, **value} if isinstance(there, dict) and isinstance(value, dict) else copy.deepcopy(value)


@dataclass(frozen=True)
class Plan:
    """A sweep that can begin: every config it is known to need has been made once."""

    file: SweepFile
    resolver: Resolver
    space: Space
    seeds: tuple[int, ...]
    known: tuple[Params, ...]  # what each trial tries, where that does not depend on the results of others

    @cached_property
    def id(self) -> str:
        """Equal for sweeps that are the same, however many trials or jobs they have: these may change on the way."""
        said = {key: value for key, value in to_dict(self.file).items() if key not in VARIABLE}
        order = list(self.file.sweep)  # that of a grid's trials
        digest = hashlib.sha256(canonical([said, order, to_dict(self.resolver.base)]).encode()).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9._-]', '_', self.file.name)}-{digest[:8]}"

    @property
    def total(self) -> int:
        return self.file.trials or len(self.known)

    def config(self, number: int, params: Params, seed: int) -> RunConfig:
        """The run of one seed of a trial."""
        config = found_from_anywhere(self.resolver.config({**self.space.fixed, **params}))
        tags = (*config.tags, f"sweep:{self.id}", f"trial:{number}")
        return replace(config, seed=seed, name=f"{self.file.name} {number}", tags=tags)

    def rungs(self, config: RunConfig) -> list[tuple[str, int]]:
        """Where a trial is looked at: a unit and an amount of it."""
        if isinstance(self.file.pruning, bool):
            return []
        training = config.training
        unit, budget = "env_steps", training.max_timesteps
        if budget is None:
            unit, budget = "updates", training.max_updates
        return [(unit, round(part * (budget or 0))) for part in self.file.pruning.rungs]


def plan(file: SweepFile, overrides: Sequence[str] = (), config_dir: Path | None = None, trust: bool = False) -> Plan:
    """Refuses what could not run: each list's values, each range's ends, and every trial that is known beforehand."""
    if not trust:
        require_trust_of_file(file.base)
    budget = [] if file.max_timesteps is None else [override("training.max_timesteps", file.max_timesteps)]
    resolver = Resolver(file.base, [*budget, *overrides], config_dir)
    space = parse(file.sweep, resolver.kinds())
    known: list[Params] = []
    if file.method == "grid":
        known = list(space.grid())
    elif file.method == "random":
        known = [space.draw(file.sampler_seed, number) for number in range(1, (file.trials or 0) + 1)]
    made = Plan(file, resolver, space, file.seeds or (resolver.base.seed,), tuple(known))
    specs: dict[str, EnvSpec] = {}

    def resolve(params: Params) -> None:
        resolver.config({**space.fixed, **params})

    def try_out(params: Params) -> None:
        config = made.config(0, params, made.seeds[0])
        try:
            check_known(config, specs)
        except ConfigError as problem:
            raise ConfigError(f"{_said(params)}{problem}") from None

    first = known[:1] or [space.draw(file.sampler_seed, number) for number in range(1, RANDOM_TRIALS + 1)]
    for corner in space.corners():  # trials may go with it where the base alone does not
        _any_sound([corner, *({**params, **corner} for params in first)], resolve)
    for params in known:
        try_out(params)
    _check_pruning(made, _any_sound(first, try_out))
    return made


def _any_sound(candidates: Sequence[Params], attempt: Callable[[Params], object]) -> Params:
    """The first that passes; where none does, what is wrong with the first of all."""
    problems = []
    for params in candidates:
        try:
            attempt(params)
            return params
        except ConfigError as problem:
            problems.append(problem)
    raise problems[0]


def check_known(config: RunConfig, specs: dict[str, EnvSpec]) -> None:
    """As `check`, with one environment for all configs that agree about it."""
    key = canonical(to_dict(config.environment))
    if key not in specs:
        specs[key] = check(config)
    config.algorithm.check(specs[key], config.environment.num_envs)


def _check_pruning(made: Plan, params: Params) -> None:
    config = made.resolver.config({**made.space.fixed, **params})
    rungs, evaluation = made.rungs(config), config.evaluation
    if not rungs or not made.file.objective.metric.startswith("eval/"):
        return
    unit, last = rungs[-1]
    key = "every_steps" if unit == "env_steps" else "every_updates"
    budget = config.training.max_timesteps if unit == "env_steps" else config.training.max_updates
    every = getattr(evaluation, key)
    if not every or every * -(-last // every) >= (budget or 0):
        raise ConfigError(
            f"pruning: nothing is evaluated between {unit} {last} and the end; lower evaluation.{key}={every}"
        )


def _said(params: Params) -> str:
    return f"{', '.join(f'{key}={value}' for key, value in params.items())}: " if params else ""
