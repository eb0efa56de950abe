"""Measure the parts of training alone, with the shapes and classes of a task: microseconds per env_step."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from itertools import cycle, islice
from math import lcm
from typing import Any

from cadenza.config.load import finish
from cadenza.config.schema import Hook, Phase, RunConfig
from cadenza.engine.build import ENGINE_HOOKS, assemble
from cadenza.engine.collector import Collector
from cadenza.engine.launch import check
from cadenza.engine.scheduler import Task
from cadenza.errors import CadenzaError, ConfigError
from cadenza.tools.bench.contestants import CADENZA, Installed, measure
from cadenza.tools.bench.peers.cadenza import config_of
from cadenza.tools.bench.tasks import BenchTask
from cadenza.types import Mode, PhaseInfo, Sealing

PARTS = ("stepping", "acting", "storing", "collecting", "updating", "sampling")
CHUNK = 64  # calls between two readings of the clock
MOST_VISITS = 1000  # visits to `collect`, at most, over which calls of an update hook are counted
FILLED = 20_000  # env_steps that a replay is filled with, or the run's, if that is fewer


class PartSpeeds:
    """An assembled run whose parts are measured one at a time; each method returns median seconds per env_step."""

    def __init__(self, config: RunConfig, seconds: float) -> None:
        self.seconds = seconds
        self.assembly = assemble(config, check(config), {})
        if self.assembly.env is None:
            self.assembly.close()
            raise ConfigError(f"{config.environment.id}:{config.algorithm.name} collects nothing")
        self.env, self.workflow = self.assembly.env, self.assembly.workflow
        task = self._task = visit(self.assembly.phases)
        self._store = self.assembly.stores[task.buffer]
        # a replay always has room, and an update takes nothing out of it
        self._keeps = isinstance(self._store, Sealing)
        self._empty = self._store.state_dict()
        self._collector = Collector(self.env, self.workflow)
        horizon = self.assembly.decisions["training.horizon"]
        # half-way, where not all actions are random any more
        self._phase = PhaseInfo(task.phase.name, task.phase.type, now=horizon // 2, horizon=horizon)
        self._mode = Mode(explore=True, phase=self._phase, streams=self.assembly.streams)
        self._steps = self._collect()  # env_steps of one visit to `collect`

    def close(self) -> None:
        """Close the environments."""
        self.assembly.close()

    def stepping(self) -> float:
        """Measure the environments, stepped as in training."""
        acted = [self._act().action for _ in range(CHUNK)]

        def work() -> None:
            for action in acted:
                self.env.step(action)
            self.env.episodes()

        return per_call(work, self.seconds) / (CHUNK * self.env.num_envs)

    def acting(self) -> float:
        """Measure the policy."""

        def work() -> None:
            for _ in range(CHUNK):
                self._act()

        return per_call(work, self.seconds) / (CHUNK * self.env.num_envs)

    def storing(self) -> float:
        """Measure adding steps to the store until an update could take them."""
        count = CHUNK if self._keeps else self._steps // self.env.num_envs
        steps = []
        step = deepcopy(self.env.current)
        for _ in range(min(count, CHUNK)):
            acted = self._act()
            after = deepcopy(self.env.step(acted.action))
            steps.append((step, acted, after))
            step = after

        def work() -> None:
            for arguments in islice(cycle(steps), count):
                self._store.add(*arguments)

        cost = per_call(work, self.seconds, self._clear) / (count * self.env.num_envs)
        self._clear()
        return cost

    def collecting(self) -> float:
        """Return the seconds per environment step of acting, stepping and storing together."""
        return per_call(self._collect, self.seconds, self._clear) / self._steps

    def updating(self) -> float:
        """Return the seconds per environment step of the update hooks, on a visit to `collect` or on a full replay."""
        self._fill()
        full = {} if self._keeps else self._store.state_dict()
        hooks, visits = self._hooks()

        def restore() -> None:
            if not self._keeps:
                self._store.load_state_dict(full)

        return per_call(lambda: self._update(hooks), self.seconds, restore) / (visits * self._steps)

    def sampling(self) -> float | None:
        """Return the seconds per environment step that updates spend on drawing batches; None without a replay."""
        sample = getattr(self._store, "sample", None)
        if sample is None:
            return None
        self._fill()
        hooks, visits = self._hooks()
        calls: list[tuple[Any, Any]] = []

        def recorded(*args: Any, **kwargs: Any) -> Any:
            calls.append((args, kwargs))
            return sample(*args, **kwargs)

        vars(self._store)["sample"] = recorded
        self._update(hooks)
        del vars(self._store)["sample"]

        def work() -> None:
            for args, kwargs in calls:
                sample(*args, **kwargs)

        return per_call(work, self.seconds) / (visits * self._steps)

    def _hooks(self) -> tuple[list[tuple[Hook, int]], int]:
        """Return the update hooks with their numbers of calls, and the visits to `collect` that make these due."""
        hooks = [hook for hook in self._task.phase.hooks if hook.name not in ENGINE_HOOKS]
        if not self._store.ready() or not hooks:
            raise ConfigError(f"phase {self._task.phase.name} does not update after one visit to collect")
        rates = [Fraction(hook.times if hook.ratio is None else hook.ratio * self._steps) for hook in hooks]
        rates = [rate.limit_denominator(MOST_VISITS) for rate in rates]
        visits = lcm(*(rate.denominator for rate in rates))
        return [(hook, int(rate * visits)) for hook, rate in zip(hooks, rates, strict=True)], visits

    def _update(self, hooks: list[tuple[Hook, int]]) -> None:
        for hook, due in hooks:
            while due > 0:
                due -= getattr(self.workflow, hook.name)(self._store, replace(self._phase, due=due)).calls

    def _fill(self) -> None:
        """Fill the store for an update: with a rollout, or a replay with random actions."""
        self._clear()
        if not self._keeps:
            self._collect()
            return
        steps = min(FILLED, self._phase.horizon)
        random = Task(replace(self._task.phase, actions="random"), Hook("collect", steps=steps), steps)
        self._collector.collect(random, self._store, self._mode, stop=lambda: False)

    def _act(self) -> Any:
        return self.workflow.act(self.env.current, self._collector.carry, self._mode)

    def _collect(self) -> int:
        return self._collector.collect(self._task, self._store, self._mode, stop=lambda: False).env_steps

    def _clear(self) -> None:
        if not self._keeps:
            self._store.load_state_dict(self._empty)


def visit(phases: tuple[Phase, ...]) -> Task:
    """Return the task of collecting in the first phase that also updates, else in the first that collects."""
    collects = [(phase, hook) for phase in phases for hook in phase.hooks if hook.name == "collect"]
    learning = [pair for pair in collects if any(hook.name not in ENGINE_HOOKS for hook in pair[0].hooks)]
    phase, hook = (learning or collects)[0]
    return Task(phase, hook, hook.episodes or hook.steps or 1)


def per_call(work: Callable[[], object], seconds: float, prepare: Callable[[], object] = lambda: None) -> float:
    """Return the median time of a call, over about so many seconds; `prepare` runs before each, untimed."""
    prepare()
    work()  # the first one warms up
    times: list[float] = []
    until = time.monotonic() + seconds
    while len(times) < 2 or time.monotonic() < until:
        prepare()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def costs(config: RunConfig, seconds: float) -> dict[str, float]:
    """Return the microseconds per env_step of each part."""
    with closing(PartSpeeds(config, seconds)) as parts:
        seconds_of = {name: getattr(parts, name)() for name in PARTS}
    return {name: cost * 1e6 for name, cost in seconds_of.items() if cost is not None}


def beside_whole(task: BenchTask, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure the parts alone and whole training in turn; return medians, and the fraction of the ideal speed.

    The ideal speed is that of stepping, acting and updating alone, each with the processor's caches to itself.
    Collecting and updating share the caches, as in training.
    """
    config = finish(config_of(task.order()))
    alone: list[dict[str, float]] = []
    whole: list[float] = []
    for _ in range(rounds):
        alone.append(costs(config, seconds))
        row = measure(Installed(CADENZA, sys.executable), task)
        if "error" in row:
            raise CadenzaError(row["error"])
        # the steady rate: the parts are warm, too
        whole.append(row["steady_env_steps_per_s"] or row["env_steps_per_s"])
    middle = {name: statistics.median(row[name] for row in alone) for name in alone[0]}
    ideal = 1e6 / (middle["stepping"] + middle["acting"] + middle["updating"])
    speed = statistics.median(whole)
    return {
        "microseconds": middle,
        "ideal_env_steps_per_s": ideal,
        "collecting_and_updating_env_steps_per_s": 1e6 / (middle["collecting"] + middle["updating"]),
        "whole_env_steps_per_s": speed,
        "fraction_of_ideal": speed / ideal,
    }
