"""Every registered algorithm in every toy environment it accepts: trains, resumes bit for bit, repeats itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cadenza.config.load import load
from cadenza.config.registry import algorithms
from cadenza.config.schema import RunConfig
from cadenza.envs import toy
from cadenza.errors import ConfigError
from cadenza.orchestration.launch import check
from cadenza.orchestration.scheduler import Task
from cadenza.orchestration.verify import compare
from cadenza.records.metrics import read
from harness.lab import Lab

NAMES = sorted(algorithms())
SHORT = ["training.max_timesteps=600", "environment.num_envs=2", "evaluation.episodes=2", "evaluation.every_steps=300"]
SMALL = {"ppo": ["algorithm.n_steps=32", "algorithm.n_epochs=2"]}
ENVIRONMENTS = [name for name in toy.ids("toy") if name != "toy/faulty"]


def halved(task: Task | None) -> Task | None:
    return task and replace(task, amount=max(1, task.amount // 2))


def config_for(algorithm: str, environment: str) -> RunConfig:
    config = load(f"{environment}:{algorithm}", [*SHORT, *SMALL.get(algorithm, [])])
    try:
        check(config)
    except ConfigError as refusal:
        pytest.skip(f"not for {algorithm}: {refusal}")
    return config


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("algorithm", NAMES)
def test_resumes_bit_for_bit_from_any_boundary(lab: Lab, algorithm: str, environment: str) -> None:
    config = config_for(algorithm, environment)
    whole = lab.start(config, "whole")
    whole.run()
    first = lab.start(config, "parts")
    first.run(until=lambda clock: clock.env_steps >= 200)
    second = lab.resume(first)
    # leave in the middle of a cycle, as a signal would
    whole_task = second.scheduler.next
    second.scheduler.next = lambda: halved(whole_task())  # type: ignore[method-assign]
    second._do_next()
    second.save()
    third = lab.resume(first)
    third.run()
    assert whole.clock.env_steps == third.clock.env_steps >= 600
    assert compare(whole.folder, third.folder) is None


@pytest.mark.parametrize("algorithm", NAMES)
def test_the_same_seed_gives_the_same_run_and_another_does_not(lab: Lab, algorithm: str) -> None:
    config = config_for(algorithm, "toy/identity")
    runs = [lab.start(replace(config, seed=seed), name) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    for run in runs:
        run.run()
    a, b, c = (run.folder for run in runs)
    assert compare(a, b) is None
    difference = compare(a, c)
    assert difference is not None
    assert difference["row"] == 0


@pytest.mark.parametrize("algorithm", NAMES)
def test_evaluating_does_not_disturb_training(lab: Lab, algorithm: str) -> None:
    config = config_for(algorithm, "toy/pair")
    silent = replace(config, evaluation=replace(config.evaluation, every_steps=None, at_end=False))
    often, never = lab.start(config, "often"), lab.start(silent, "never")
    often.run()
    never.run()
    a, b = (read(run.folder.metrics)[-1] for run in (often, never))
    assert a["digest/weights"] == b["digest/weights"]
    assert a["digest/experience"] == b["digest/experience"]
