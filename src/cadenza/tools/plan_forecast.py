"""How long a run will be and how long it will take, phase by phase, from the ends of the few cycles that were measured.

A phase has its own length, the run's budget may cut it, and the whole is the sum. What nobody knows yet is nan, and so
is every sum that it is part of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor, inf, isfinite, isnan, nan

from cadenza.config.schema import Phase, RunConfig
from cadenza.engine.build import ENGINE_HOOKS
from cadenza.engine.clock import Clock, Every
from cadenza.engine.orchestrator import triggers_of

SLACK = 1e-9  # counts are whole numbers, their means per cycle are not: what a product of them may lack


@dataclass(frozen=True)
class Mark:
    """Where the run stood, and when."""

    seconds: float
    env_steps: int
    updates: int
    phase: int  # of the cycle that follows


@dataclass(frozen=True)
class Pace:
    """What one cycle of a phase comes to."""

    env_steps: float
    updates: float
    seconds: float


@dataclass(frozen=True)
class Span:
    """A phase that the run will reach, as long as it will be there."""

    phase: Phase
    pace: Pace
    cycles: float

    @property
    def trains(self) -> bool:
        return self.phase.type != "eval_only"

    @property
    def env_steps(self) -> float:
        return rounded(self.cycles * self.pace.env_steps)

    @property
    def updates(self) -> float:
        return rounded(self.cycles * self.pace.updates)

    @property
    def seconds(self) -> float:
        return self.cycles * self.pace.seconds


@dataclass(frozen=True)
class Forecast:
    """The whole run."""

    spans: list[Span]
    beyond: list[str]  # phases that the budget never lets it reach
    evaluations: float
    rows: float
    checkpoints: float  # those that are due, beside the first, the best and the last

    def total(self, count: str) -> float:
        return float(sum(getattr(span, count) for span in self.spans))

    @property
    def last(self) -> Span | None:
        """What it mostly does: the last phase that trains."""
        return next((span for span in reversed(self.spans) if span.trains), None)

    @property
    def offline_updates(self) -> float:
        """Those before the last phase that trains."""
        return sum(span.updates for span in self.spans if span.phase.type == "offline" and span is not self.last)

    @property
    def open(self) -> list[str]:
        """Phases of which too little was seen to tell how long they take."""
        return [span.phase.name for span in self.spans if isnan(span.seconds)]


def forecast(config: RunConfig, phases: Sequence[Phase], paces: Sequence[Pace]) -> Forecast:
    training, occasions = config.training, Occasions(config)
    spans: list[Span] = []
    for phase, pace in zip(phases, paces, strict=True):
        steps = left(training.max_timesteps, sum(span.env_steps for span in spans))
        updates = left(training.max_updates, sum(span.updates for span in spans))
        if (steps is not None and steps <= 0) or (updates is not None and updates <= 0):
            break
        spans.append(Span(phase, pace, cycles_of(phase, pace, steps, updates)))
        occasions.go_through(spans[-1])
    occasions.conclude()
    beyond = [phase.name for phase in phases[len(spans) :]]
    return Forecast(spans, beyond, occasions.evaluations, occasions.rows, occasions.checkpoints)


def left(budget: int | None, spent: float) -> float | None:
    return None if budget is None else budget - spent


def cycles_of(phase: Phase, pace: Pace, steps: float | None, updates: float | None) -> float:
    """Until its own length or what is left of the run's budget is reached, whichever is first."""
    limits = (
        (phase.duration_cycles, 1),
        (phase.duration_steps, pace.env_steps),
        (phase.duration_updates, pace.updates),
        (steps, pace.env_steps),
        (updates, pace.updates),
    )
    ends = [cycles_until(length, each) for length, each in limits if length is not None]
    return nan if any(map(isnan, ends)) else min(ends, default=inf)


def cycles_until(length: float, each: float) -> float:
    """How many cycles it takes to come so far; never, if they do not go there at all."""
    found = length / each if each else inf
    return ceil(found - SLACK) if isfinite(found) else found


def rounded(count: float) -> float:
    return round(count) if isfinite(count) else count


# paces


def paces_of(phases: Sequence[Phase], num_envs: int, marks: Sequence[Mark], stopped: Mark) -> list[Pace]:
    """Of each phase from its own cycles, whose ends were marked; where none ended, as far as its settings tell.

    `stopped` is where the measurement was left, perhaps within a cycle.
    """
    found = []
    for number, phase in enumerate(phases):
        cycles = [(begin, end) for begin, end in pairwise(marks) if begin.phase == number]
        if cycles:
            pace = measured_pace(phase, [cycles[0][0], *(end for _, end in cycles)])
        else:
            pace = expected_pace(phase, num_envs)
            if number == marks[-1].phase and not learns(phase) and stopped.env_steps > marks[-1].env_steps:
                collecting = (stopped.seconds - marks[-1].seconds) / (stopped.env_steps - marks[-1].env_steps)
                pace = replace(pace, seconds=pace.env_steps * collecting)
        found.append(pace)
    return found


def measured_pace(phase: Phase, marks: list[Mark]) -> Pace:
    first, last, cycles = marks[0], marks[-1], len(marks) - 1
    updates = (last.updates - first.updates) / cycles
    if not updates and learns(phase):  # it will make some, but who knows when
        updates = nan
    warm = marks[min(1, cycles - 1)]  # the first cycle warms up, where there are more
    seconds = (last.seconds - warm.seconds) / (cycles - min(1, cycles - 1))
    return Pace((last.env_steps - first.env_steps) / cycles, updates, seconds)


def expected_pace(phase: Phase, num_envs: int) -> Pace:
    """By its settings alone, which tell little about phases that collect and learn."""
    if phase.type == "eval_only":
        return Pace(0, 0, 0)
    if phase.type == "offline":
        return Pace(0, sum(hook.times for hook in phase.hooks if hook.name not in ENGINE_HOOKS), nan)
    collects = [hook for hook in phase.hooks if hook.name == "collect"]
    steps = sum(nan if hook.steps is None else ceil(hook.steps / num_envs) * num_envs for hook in collects)
    return Pace(steps, nan if learns(phase) else 0, nan)


def learns(phase: Phase) -> bool:
    return any(hook.name not in ENGINE_HOOKS for hook in phase.hooks)


# what happens at the ends of cycles


class Occasions:
    """Counts evaluations, rows and checkpoints as the Orchestrator makes them, with its own triggers."""

    def __init__(self, config: RunConfig) -> None:
        self.at_end = config.evaluation.at_end
        self.triggers = triggers_of(config)
        self.clock = Clock()
        self.evaluations = self.rows = self.checkpoints = 0.0
        self.place = 0.0  # cycles of training so far
        self.evaluated_at = self.logged_at = -1.0

    def go_through(self, span: Span) -> None:
        evaluations = span.cycles * sum(hook.name == "evaluate" for hook in span.phase.hooks)
        self.evaluations += evaluations
        self.rows += evaluations
        if isfinite(span.cycles) and isfinite(span.pace.env_steps):
            self._go_through_cycles(span)
        else:
            self.evaluations = self.rows = self.checkpoints = nan
        self.place += span.cycles if span.trains else 0
        if span.phase.hooks[-1].name == "evaluate":
            self.evaluated_at = self.logged_at = self.place

    def _go_through_cycles(self, span: Span) -> None:
        """From one cycle at whose end something is due to the next: there may be millions of them."""
        clock, begin, steps = self.clock, replace(self.clock), span.pace.env_steps
        updates = span.pace.updates if span.phase.type == "offline" else 0
        cycle = 0.0
        while True:
            due = (cycles_until_due(trigger, begin, steps, updates) for trigger in self.triggers.values())
            cycle = max(cycle + 1, min(due))
            if cycle > span.cycles:
                break
            clock.env_steps = begin.env_steps + floor(cycle * steps + SLACK)
            clock.offline_updates = begin.offline_updates + floor(cycle * updates + SLACK)
            self._end_cycle(self.place + cycle, measured=span.phase.hooks[-1].name == "evaluate")
        clock.env_steps = begin.env_steps + round(span.cycles * steps)
        clock.offline_updates = begin.offline_updates + round(span.cycles * updates)

    def _end_cycle(self, place: float, measured: bool) -> None:
        """`measured`: an evaluation was just made."""
        due = {name: trigger.due(self.clock) for name, trigger in self.triggers.items()}
        if due["evaluate"] and not measured:
            self.evaluations += 1
            self.evaluated_at = place
            due["log"] = True
        if due["log"]:
            self.rows += 1
            self.logged_at = place
        self.checkpoints += due["save"]
        for name, trigger in self.triggers.items():
            if due[name]:
                trigger.done(self.clock)

    def conclude(self) -> None:
        evaluates = self.at_end and self.evaluated_at != self.place
        self.evaluations += evaluates
        self.rows += evaluates or self.logged_at != self.place


def cycles_until_due(trigger: Every, begin: Clock, steps: float, updates: float) -> float:
    """How many cycles, of so many env_steps and updates offline, after the beginning of a phase."""
    by_steps = cycles_until(trigger.next_steps - begin.env_steps, steps) if trigger.steps else inf
    by_updates = cycles_until(trigger.next_updates - begin.offline_updates, updates) if trigger.updates else inf
    return min(by_steps, by_updates)
