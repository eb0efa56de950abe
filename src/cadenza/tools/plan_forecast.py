"""Forecast the length and duration of a run, phase by phase, from the few cycles that were measured.

A phase has its own length, the run's budget may cut it, and the whole is the sum of the phases. An unknown amount is
nan, and so is every sum that it is part of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor, inf, isfinite, isnan, nan

from cadenza.config.schema import Phase, RunConfig
from cadenza.engine.build import ENGINE_HOOKS
from cadenza.engine.clock import Clock
from cadenza.engine.orchestrator import triggers_of

SLACK = 1e-9  # counts are whole numbers but their means per cycle are not: the rounding error of their products


@dataclass(frozen=True)
class Mark:
    """A point of the run and when it was reached."""

    seconds: float
    env_steps: int
    updates: int
    phase: int  # of the cycle that follows


@dataclass(frozen=True)
class Pace:
    """The mean amounts of one cycle of a phase."""

    env_steps: float
    updates: float
    seconds: float


@dataclass(frozen=True)
class Span:
    """A phase that the run reaches, with the number of cycles it stays there."""

    phase: Phase
    pace: Pace
    cycles: float

    @property
    def trains(self) -> bool:
        return self.phase.type != "eval_only"

    def total(self, unit: str) -> float:
        """Return its cycles, env_steps, updates or seconds."""
        amount = self.cycles * (1 if unit == "cycles" else getattr(self.pace, unit))
        return round(amount) if unit != "seconds" and isfinite(amount) else amount


@dataclass(frozen=True)
class Forecast:
    """The whole run."""

    spans: list[Span]
    beyond: list[str]  # phases that the budget never lets it reach
    evaluations: float
    rows: float
    checkpoints: float  # those that are due, besides the first, the best and the last
    most_steps: float = inf  # an exact budget, which the last rollout ends with

    def total(self, unit: str) -> float:
        """Return the run's cycles, env_steps, updates or seconds."""
        total = float(sum(span.total(unit) for span in self.spans))
        return min(total, self.most_steps) if unit == "env_steps" else total

    @property
    def last(self) -> Span | None:
        """The last phase that trains, which is most of the run."""
        return next((span for span in reversed(self.spans) if span.trains), None)

    @property
    def offline_updates(self) -> float:
        """Updates of offline phases before the last phase that trains."""
        return sum(
            span.total("updates") for span in self.spans if span.phase.type == "offline" and span is not self.last
        )

    @property
    def open(self) -> list[str]:
        """Phases whose duration is unknown because too little of them was measured."""
        return [span.phase.name for span in self.spans if isnan(span.total("seconds"))]


def forecast(config: RunConfig, phases: Sequence[Phase], paces: Sequence[Pace]) -> Forecast:
    """Return the length of each phase that the budget reaches, and the number of evaluations, rows and checkpoints."""
    occasions = Occasions(config)
    spans: list[Span] = []
    for phase, pace in zip(phases, paces, strict=True):
        limits: list[tuple[float | None, float]] = [
            (phase.duration_cycles, 1.0),
            (phase.duration_steps, pace.env_steps),
        ]
        limits.append((phase.duration_updates, pace.updates))
        budgets = {"env_steps": config.training.max_timesteps, "updates": config.training.max_updates}
        rest = {
            unit: budget - sum(span.total(unit) for span in spans)
            for unit, budget in budgets.items()
            if budget is not None
        }
        if any(amount <= 0 for amount in rest.values()):
            break
        limits += [(amount, getattr(pace, unit)) for unit, amount in rest.items()]
        ends = [cycles_until(length, each) for length, each in limits if length is not None]
        spans.append(Span(phase, pace, nan if any(map(isnan, ends)) else min(ends, default=inf)))
        occasions.count(spans[-1])
    occasions.conclude()
    beyond = [phase.name for phase in phases[len(spans) :]]
    training, num_envs = config.training, config.environment.num_envs
    exact = ceil((training.max_timesteps or 0) / num_envs) * num_envs if training.exact_budget else inf
    return Forecast(spans, beyond, occasions.evaluations, occasions.rows, occasions.checkpoints, exact)


def cycles_until(length: float, each: float) -> float:
    """Return how many cycles of `each` reach `length`; inf if they make no progress."""
    cycles = length / each if each else inf
    return ceil(cycles - SLACK) if isfinite(cycles) else cycles


# paces


def paces_of(phases: Sequence[Phase], num_envs: int, marks: Sequence[Mark], stopped: Mark) -> list[Pace]:
    """Return the pace of each phase: from the marks at the ends of its cycles, else from its settings alone.

    `stopped` is where the measurement ended, perhaps within a cycle.
    """
    paces = []
    for number, phase in enumerate(phases):
        cycles = [(begin, end) for begin, end in pairwise(marks) if begin.phase == number]
        if cycles:
            pace = measured_pace(phase, [cycles[0][0], *(end for _, end in cycles)])
        else:
            pace = expected_pace(phase, num_envs)
            if number == marks[-1].phase and not learns(phase) and stopped.env_steps > marks[-1].env_steps:
                collecting = (stopped.seconds - marks[-1].seconds) / (stopped.env_steps - marks[-1].env_steps)
                pace = replace(pace, seconds=pace.env_steps * collecting)
        paces.append(pace)
    return paces


def measured_pace(phase: Phase, marks: list[Mark]) -> Pace:
    """Return the mean of the cycles between the marks; its seconds leave out the first cycle, which warms up."""
    first, last, cycles = marks[0], marks[-1], len(marks) - 1
    updates = (last.updates - first.updates) / cycles
    if not updates and learns(phase):  # some will come, but when is unknown
        updates = nan
    warm = min(1, cycles - 1)
    seconds = (last.seconds - marks[warm].seconds) / (cycles - warm)
    return Pace((last.env_steps - first.env_steps) / cycles, updates, seconds)


def expected_pace(phase: Phase, num_envs: int) -> Pace:
    """Return what the settings of a phase say of its pace: little, if it collects and learns."""
    if phase.type == "eval_only":
        return Pace(0, 0, 0)
    if phase.type == "offline":
        return Pace(0, sum(hook.times for hook in phase.hooks if hook.name not in ENGINE_HOOKS), nan)
    collects = [hook for hook in phase.hooks if hook.name == "collect"]
    steps = sum(nan if hook.steps is None else ceil(hook.steps / num_envs) * num_envs for hook in collects)
    return Pace(steps, nan if learns(phase) else 0, nan)


def learns(phase: Phase) -> bool:
    """Return whether the phase calls a hook of the workflow."""
    return any(hook.name not in ENGINE_HOOKS for hook in phase.hooks)


# evaluations, rows and checkpoints


class Occasions:
    """The number of evaluations, rows and checkpoints, counted with the Orchestrator's own triggers."""

    def __init__(self, config: RunConfig) -> None:
        self.at_end = config.evaluation.at_end
        self.triggers, self.clock = triggers_of(config), Clock()
        self.evaluations = self.rows = float(config.evaluation.at_start)
        self.checkpoints = 0.0
        self.cycle = 0.0  # cycles of training so far
        self.evaluated_at = self.logged_at = -1.0  # the cycle of the latest evaluation, of the latest row

    def count(self, span: Span) -> None:
        """Go through a span."""
        evaluations = span.cycles * sum(hook.name == "evaluate" for hook in span.phase.hooks)
        self.evaluations += evaluations
        self.rows += evaluations
        evaluates_last = span.phase.hooks[-1].name == "evaluate"
        if isfinite(span.cycles) and isfinite(span.pace.env_steps):
            self._count_due(span, evaluates_last)
        else:
            self.evaluations = self.rows = self.checkpoints = nan
        self.cycle += span.cycles if span.trains else 0
        if evaluates_last:
            self.evaluated_at = self.logged_at = self.cycle

    def _count_due(self, span: Span, evaluates_last: bool) -> None:
        """Jump from one cycle at whose end something is due to the next: there may be millions of cycles."""
        clock, begin, steps = self.clock, replace(self.clock), span.pace.env_steps
        updates = span.pace.updates if span.phase.type == "offline" else 0

        def advance(cycles: float, integer: Callable[[float], int]) -> None:
            clock.env_steps = begin.env_steps + integer(cycles * steps + SLACK)
            clock.offline_updates = begin.offline_updates + integer(cycles * updates + SLACK)

        cycle = 0.0
        while (cycle := max(cycle + 1, self._next_due(begin, steps, updates))) <= span.cycles:
            advance(cycle, floor)
            due = {name for name, trigger in self.triggers.items() if trigger.due(clock)}
            if "evaluate" in due and not evaluates_last:
                self.evaluations += 1
                self.evaluated_at = self.cycle + cycle
                due.add("log")
            if "log" in due:
                self.rows += 1
                self.logged_at = self.cycle + cycle
            self.checkpoints += "save" in due
            for name in due:
                self.triggers[name].rearm(clock)
        advance(span.cycles, round)

    def _next_due(self, begin: Clock, steps: float, updates: float) -> float:
        """Return the number of cycles after which a trigger is due, at so many steps and offline updates each."""
        ends = [inf]
        for trigger in self.triggers.values():
            ends += [cycles_until(trigger.next_steps - begin.env_steps, steps)] * bool(trigger.steps)
            ends += [cycles_until(trigger.next_updates - begin.offline_updates, updates)] * bool(trigger.updates)
        return min(ends)

    def conclude(self) -> None:
        """Count the evaluation and the row at the end of the run."""
        evaluates = self.at_end and self.evaluated_at != self.cycle
        self.evaluations += evaluates
        self.rows += evaluates or self.logged_at != self.cycle
