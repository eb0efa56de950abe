"""Forecasts of runs from synthetic marks and from those of real runs, compared with the runs."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from cadenza.config.load import load
from cadenza.config.schema import Hook, Phase, RunConfig
from cadenza.engine.clock import Clock, Every
from cadenza.engine.events import Evaluated, Event, Row
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.tools.plan import memory_warning, warnings_of
from cadenza.tools.plan_forecast import Forecast, Mark, Occasions, Pace, Span, forecast, paces_of
from cadenza.tools.plan_measure import SAMPLE, can_skip
from harness.datasets import SMALL_DQN
from harness.lab import Lab

COLLECT, UPDATE, EVALUATE = Hook("collect", steps=100), Hook("update"), Hook("evaluate")
WARMUP = Phase("warmup", (Hook("collect", steps=600),), actions="random", duration_cycles=1)
PRETRAIN = Phase("pretrain", (UPDATE,), "offline", duration_updates=40)
TRAIN = Phase("train", (COLLECT, Hook("update", ratio=0.5)))
EVALUATION = Phase("evaluation", (EVALUATE,), "eval_only", duration_cycles=1)


def configured(**training: Any) -> RunConfig:
    config = load(
        "Pendulum-v1:ppo", ["evaluation.every_steps=0", "logging.every_steps=1000000", "checkpoint.every_steps=0"]
    )
    return replace(config, training=replace(config.training, **{"max_timesteps": None, "max_updates": None} | training))


def expected(config: RunConfig, phases: tuple[Phase, ...], marks: list[Mark], stopped: Mark | None = None) -> Forecast:
    return forecast(config, phases, paces_of(phases, 1, marks, stopped or marks[-1]))


def cycles(begin: Mark, count: int, env_steps: int, updates: int, seconds: float, then: int) -> list[Mark]:
    """Return marks at the ends of `count` cycles of a phase that is followed by another one."""
    result = []
    for number in range(1, count + 1):
        phase = begin.phase if number < count else then
        at = (begin.seconds + number * seconds, begin.env_steps + number * env_steps, begin.updates + number * updates)
        result.append(Mark(*at, phase))
    return result


def totals(result: Forecast) -> tuple[float, ...]:
    return tuple(result.total(count) for count in ("env_steps", "updates", "cycles", "seconds"))


def test_a_run_that_ends_with_an_evaluation_is_counted_like_any_other() -> None:
    phases = (
        Phase("rollouts", (COLLECT,), duration_steps=250),
        Phase("vision", (UPDATE,), "offline", duration_updates=300),
        Phase("controller", (UPDATE,), "offline", duration_updates=20),
        EVALUATION,
    )
    marks = [Mark(0, 0, 0, 0)]
    marks += cycles(marks[-1], 3, 100, 0, seconds=1, then=1)
    marks += cycles(marks[-1], 5, 0, 1, seconds=0.5, then=2)
    marks += cycles(marks[-1], 2, 0, 1, seconds=2, then=2)
    result = expected(configured(max_timesteps=30_000), phases, marks)
    assert totals(result) == (300, 320, 3 + 300 + 20 + 1, 3 + 150 + 40)
    assert (result.evaluations, result.rows, result.offline_updates) == (1, 1, 300)  # the end is not evaluated twice
    assert result.last is not None
    assert result.last.pace == Pace(0, 1, 2)
    assert warnings_of(configured(), phases, result) == []


def test_costs_after_a_partial_measurement_are_counted_once() -> None:
    phases, config = (WARMUP, PRETRAIN, TRAIN), configured(max_updates=200)
    marks = [Mark(0, 0, 0, 0), Mark(6, 600, 0, 1)]
    marks += cycles(marks[-1], 5, 0, 1, seconds=1, then=2)
    unseen = expected(config, phases, marks, stopped=Mark(20, 650, 5, 2))
    assert [isnan(total) for total in totals(unseen)] == [True] * 4
    assert (unseen.open, unseen.offline_updates) == (["train"], 40)
    assert warnings_of(config, phases, unseen) == [
        "phase train could not be measured, so the run's time is unknown; --seconds N measures longer"
    ]
    marks += cycles(marks[-1], 3, 100, 50, seconds=10, then=2)
    result = expected(config, phases, marks)
    assert totals(result) == (600 + 400, 40 + 200, 1 + 40 + 4, 6 + 40 + 40)
    assert (result.open, result.beyond) == ([], [])


def test_a_budget_that_the_warm_up_uses_up_ends_the_forecast_there() -> None:
    phases, config = (
        (replace(WARMUP, hooks=(Hook("collect", steps=60),)), PRETRAIN, TRAIN),
        configured(max_timesteps=60),
    )
    result = expected(config, phases, [Mark(0, 0, 0, 0), Mark(1, 60, 0, 1)])
    assert totals(result) == (60, 0, 1, 1)
    assert result.beyond == ["pretrain", "train"]
    assert warnings_of(config, phases, result) == [
        "training.max_timesteps=60 ends before anything is learned: 60 steps come before phase pretrain"
    ]


@pytest.mark.parametrize(("updates", "expected_updates"), [(3, 3), (5, 5), (40, SAMPLE)])
def test_a_partial_measurement_is_never_longer_than_the_phase(updates: int, expected_updates: int) -> None:
    phases = (WARMUP, replace(PRETRAIN, duration_updates=updates), replace(TRAIN, duration_cycles=2), EVALUATION)
    scheduler, tasks = PhaseScheduler(phases), []
    while not scheduler.over:
        task = scheduler.next()
        assert task is not None
        collects = task.hook.name == "collect"
        if collects or task.phase is phases[1]:
            tasks.append(task.phase.name)
        scheduler.advance(task.amount, env_steps=task.amount * collects, updates=task.amount * (not collects))
        while scheduler.at_boundary and can_skip(scheduler, main=2):
            scheduler.skip()
    assert tasks == ["warmup", *["pretrain"] * expected_updates, "train", "train"]
    marks = [Mark(0, 0, 0, 0), Mark(1, 600, 0, 1)]
    marks += cycles(marks[-1], expected_updates, 0, 1, seconds=1, then=2)
    assert expected(configured(max_timesteps=600), phases, marks).total("updates") == 0
    assert expected(configured(max_timesteps=601), phases, marks).spans[1].total("updates") == updates


def test_phases_beyond_the_budget_are_reported() -> None:
    phases, config = (WARMUP, PRETRAIN, TRAIN, EVALUATION), configured(max_updates=20)
    result = expected(config, (*phases[:2], replace(TRAIN, duration_steps=300), EVALUATION), [Mark(0, 0, 0, 0)])
    assert (result.total("env_steps"), result.total("updates"), result.total("cycles")) == (600, 20, 21)
    assert warnings_of(config, phases, result) == [
        "the budget ends before phases train, evaluation",
        "phases warmup, pretrain could not be measured, so the run's time is unknown; --seconds N measures longer",
    ]


def test_lengths_known_from_settings_need_no_measurement() -> None:
    """Only the collection has begun, in pieces that 16 environments make a little longer."""
    phases = (replace(WARMUP, hooks=(COLLECT,), duration_cycles=3), PRETRAIN, EVALUATION)
    paces = paces_of(phases, 16, [Mark(0, 0, 0, 0)], Mark(2, 32, 0, 0))
    assert paces[0] == Pace(112, 0, 7)
    result = forecast(configured(max_timesteps=10_000), phases, paces)
    assert [result.total(count) for count in ("env_steps", "updates", "cycles")] == [336, 40, 44]
    assert (result.evaluations, result.open) == (1, ["pretrain"])


def test_updates_that_are_not_due_yet_are_not_forecast_as_zero() -> None:
    marks = [Mark(0, 0, 0, 0), *cycles(Mark(0, 0, 0, 0), 3, 100, 0, seconds=1, then=0)]
    result = expected(configured(max_timesteps=1000), (TRAIN,), marks)
    assert (result.total("env_steps"), result.total("seconds"), result.open) == (1000, 10, [])
    assert isnan(result.total("updates"))
    assert expected(configured(max_updates=1000), (TRAIN,), marks).open == ["train"]


@pytest.mark.parametrize(
    ("interval", "each", "count", "after", "fires"),
    [(1000, 256, 12, 0, 3), (1000, 256, 12, 1000, 2), (100, 256, 12, 0, 12), (0, 256, 12, 0, 0), (None, 1, 9, 0, 0)],
)
def test_crossings_are_those_of_the_clock(interval: Any, each: int, count: int, after: int, fires: int) -> None:
    trigger, clock, fired = Every(interval, after=after), Clock(), 0
    for _ in range(count):
        clock.env_steps += each
        if trigger.due(clock):
            trigger.rearm(clock)
            fired += 1
    assert fired == fires
    config = configured()
    evaluation = replace(config.evaluation, every_steps=interval, warmup_steps=after, at_end=False)
    occasions = Occasions(replace(config, evaluation=evaluation))
    occasions.count(Span(TRAIN, Pace(each, 1, 1), count))
    assert occasions.evaluations == fires


GATHER = "{name: gather, buffer: replay, hooks: [{name: collect, steps: 8}], duration_steps: 60}"
LEARN = "{name: learn, type: offline, buffer: replay, hooks: [{name: update, times: 3}], duration_updates: 50}"
LOOK = "{name: look, type: eval_only, buffer: replay, hooks: [evaluate], duration_cycles: 2}"
GO_ON = "{name: train, buffer: replay, hooks: [{name: collect, steps: 8}, {name: update, ratio: 0.25}%s]%s}"


class Counting(Every):
    times = 0

    def rearm(self, clock: Clock) -> None:
        super().rearm(clock)
        self.times += 1


@pytest.mark.parametrize("budget", ["training.max_timesteps=500", "training.max_updates=90"])
@pytest.mark.parametrize(
    "phases",
    [
        (GO_ON % ("", ""),),
        (GATHER, LEARN, GO_ON % ("", "")),
        (GATHER, LOOK, LEARN, GO_ON % (", evaluate", ", duration_cycles: 7"), LOOK),
        (GATHER, LEARN, GO_ON % ("", ", duration_updates: 31"), GATHER, LEARN),
        (GATHER, LEARN, LOOK, GO_ON % ("", ", duration_steps: 1000"), LOOK),
    ],
)
def test_a_forecast_from_a_runs_own_marks_equals_the_run(phases: tuple[str, ...], budget: str, lab: Lab) -> None:
    names = [text.replace("{name: ", f"{{name: {number}-", 1) for number, text in enumerate(phases)]
    settings = [f"training.phases=[{', '.join(names)}]", "training.max_timesteps=null", budget, "evaluation.episodes=2"]
    settings += ["evaluation.every_steps=50", "evaluation.every_updates=20", "evaluation.warmup_steps=100"]
    settings += ["logging.every_steps=30", "logging.every_updates=7", "checkpoint.every_steps=110"]
    config = load("toy/identity:dqn", [*SMALL_DQN, *settings, "checkpoint.every_updates=9"])
    run = lab.start(config)
    run.triggers["save"] = due = Counting(110, 9)
    events: list[Event] = []
    marks: list[Mark] = []
    run.listeners.append(events.append)

    def note(clock: Clock) -> bool:
        marks.append(Mark(len(marks), clock.env_steps, clock.updates, run.scheduler.index))
        return False

    run.run(note)
    result = forecast(
        config, run.scheduler.phases, paces_of(run.scheduler.phases, run.config.environment.num_envs, marks, marks[-1])
    )
    assert totals(result)[:3] == (run.clock.env_steps, run.clock.updates, run.clock.cycles)
    assert result.evaluations == sum(isinstance(event, Evaluated) for event in events) == run.clock.evaluations
    assert result.rows == sum(isinstance(event, Row) for event in events)
    assert result.checkpoints == due.times
    assert len(result.beyond) == len(phases) - 1 - marks[-2].phase


def test_a_run_that_needs_more_memory_than_there_is_is_told_of_gradients_in_parts() -> None:
    short = {"total_bytes": 5 << 30, "available_bytes": 2 << 30, "stores_bytes": 1 << 30}
    warning = memory_warning(configured(), short)
    assert warning is not None
    assert warning.startswith(
        "the run needs about 5 GiB of memory, 2 GiB are available: algorithm.accumulate=4 computes"
    )
    full = memory_warning(configured(), short | {"stores_bytes": 4 << 30})
    assert full is not None
    assert "its stores are 4 GiB of it; algorithm.accumulate=4" in full
    assert memory_warning(configured(), short | {"available_bytes": 6 << 30}) is None
    assert memory_warning(configured(), short | {"total_bytes": None}) is None
