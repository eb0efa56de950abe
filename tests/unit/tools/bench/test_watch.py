from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cadenza.tools.bench import process
from cadenza.tools.bench.process import Recorder
from cadenza.tools.bench.tasks import BenchTask, PPOSettings, SACSettings

TASK = BenchTask(
    "Any-v0", 2, 40, PPOSettings(n_steps=4, batch_size=4, n_epochs=1)
)  # 5 iterations of 8 steps, 10 updates
WORK = {"env_steps": 40, "updates": 10, "parameters": 7}


class Clock:
    """A clock that advances one second at each reading."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(process, "time", made)
    return made


def stepped(task: BenchTask, reward: float = 1.0, length: int = 3) -> Recorder:
    """A contestant whose environments have constant rewards and episodes of fixed length."""
    watch = Recorder(task.order(), started=100.0)
    count = 0

    def step() -> Any:
        nonlocal count
        count += 1
        ended = np.full(2, count % length == 0)
        return None, np.full(2, reward), ended, np.zeros(2, bool), {}

    env = SimpleNamespace(step=step)
    watch.follow(env)
    for _ in range(task.timesteps // task.num_envs):
        env.step()
    watch.end()
    return watch


def test_the_end_of_each_iteration_is_marked() -> None:
    watch = stepped(TASK)
    assert watch.marks == [(101.0, 0), (102.0, 8), (103.0, 16), (104.0, 24), (105.0, 32)]


def test_the_watch_measures_rates_and_start() -> None:
    figures = stepped(TASK).figures(**WORK)
    assert figures["start_s"] == 1.0
    assert figures["env_steps_per_s"] == 40 / 5
    assert figures["steady_env_steps_per_s"] == (40 - 16) / 3  # after two iterations
    assert figures["peak_mb"] > 1
    assert figures["solved_s"] is None


def test_random_steps_before_learning_are_not_counted() -> None:
    settings = SACSettings(warmup_steps=20, train_every=4, gradient_steps=2)
    task = BenchTask("Any-v0", 2, 40, sac=settings)
    watch = stepped(task)
    assert watch.marks[5] == (106.0, 20)
    figures = watch.figures(env_steps=40, updates=10, parameters=7)
    assert figures["start_s"] == 1.0
    assert figures["env_steps_per_s"] == (40 - 20) / 5  # a second each: four more marks and the end
    assert figures["steady_env_steps_per_s"] == (40 - 28) / 3


def test_a_short_run_has_no_steady_rate() -> None:
    short = replace(TASK, timesteps=16)
    figures = stepped(short).figures(env_steps=16, updates=4, parameters=7)
    assert figures["steady_env_steps_per_s"] is None


@pytest.mark.parametrize(("key", "value"), [("env_steps", 48), ("updates", 9)])
def test_results_of_other_work_are_refused(key: str, value: int) -> None:
    with pytest.raises(RuntimeError, match="not the same work"):
        stepped(TASK).figures(**{**WORK, key: value})


def test_solved_is_when_a_hundred_episodes_are_good_enough() -> None:
    task = replace(TASK, timesteps=400, solved_at=3.0)
    watch = stepped(task)
    assert {total for *_, total in watch.episodes} == {3.0}
    figures = watch.figures(env_steps=400, updates=100, parameters=7)
    assert figures["solved_env_steps"] == 300  # two episodes every three vector steps
    assert figures["solved_s"] == watch.episodes[99][0] - 100.0
    unsolved = stepped(replace(task, solved_at=3.1)).figures(env_steps=400, updates=100, parameters=7)
    assert unsolved["solved_s"] is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux keeps a process to some cores")
def test_a_contestant_is_limited_to_its_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        process.keep_to(1)
        assert len(os.sched_getaffinity(0)) == 1
    finally:
        os.sched_setaffinity(0, before)
