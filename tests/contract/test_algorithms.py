"""Every registered algorithm in every toy environment it accepts: trains, resumes bit for bit, repeats itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.load import load
from cadenza.config.registry import algorithms
from cadenza.config.schema import RunConfig
from cadenza.envs import toy
from cadenza.envs.catalog import make
from cadenza.errors import ConfigError
from cadenza.monitor.console import Console
from cadenza.orchestration.build import assemble, build
from cadenza.orchestration.orchestrator import Orchestrator
from cadenza.records.folder import RunFolder, create
from cadenza.records.metrics import read
from cadenza.records.verify import compare

SHORT = ["training.max_timesteps=600", "environment.num_envs=2", "evaluation.episodes=2", "evaluation.every_steps=300"]
SMALL = {"ppo": ["algorithm.n_steps=32", "algorithm.n_epochs=2"]}
ENVIRONMENTS = [name for name in toy.ids("toy") if name != "toy/faulty"]


def config_for(algorithm: str, environment: str) -> RunConfig:
    config = load(f"{environment}:{algorithm}", [*SHORT, *SMALL.get(algorithm, [])])
    env = make(config.environment)
    env.close()
    try:
        config.algorithm.check(env.spec, config.environment.num_envs)
    except ConfigError as refusal:
        pytest.skip(f"not for {algorithm}: {refusal}")
    return config


class Lab:
    """Runs in folders of their own, closed at the end of the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened: list[Any] = []

    def start(self, config: RunConfig, name: str) -> Orchestrator:
        return self.open(config, create(self.root / name, config, ["test"]), {})

    def open(self, config: RunConfig, folder: RunFolder, decisions: dict[str, Any]) -> Orchestrator:
        assembly = assemble(config, decisions)
        self.opened.append(assembly)
        return build(assembly, folder, Console(quiet=True, total=None))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    for assembly in lab.opened:
        assembly.close()


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("algorithm", sorted(algorithms()))
def test_resumes_bit_for_bit_from_any_boundary(lab: Lab, algorithm: str, environment: str) -> None:
    config = config_for(algorithm, environment)
    whole = lab.start(config, "whole")
    whole.run()
    first = lab.start(config, "parts")
    first.run(until=200)
    second = lab.open(config, first.folder, first.folder.read_decisions())
    found = second.checkpoints.newest(pytest.fail)
    assert found is not None
    second.load_state(found[1])
    # leave in the middle of a cycle, as a signal would
    task = second.scheduler.next()
    assert task is not None
    second._do(replace(task, amount=max(1, task.amount // 2)))
    second.save()
    third = lab.open(config, first.folder, first.folder.read_decisions())
    found = third.checkpoints.newest(pytest.fail)
    assert found is not None
    third.load_state(found[1])
    third.run()
    assert whole.clock.env_steps == third.clock.env_steps >= 600
    assert compare(whole.folder, third.folder) is None


@pytest.mark.parametrize("algorithm", sorted(algorithms()))
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


@pytest.mark.parametrize("algorithm", sorted(algorithms()))
def test_evaluating_does_not_disturb_training(lab: Lab, algorithm: str) -> None:
    config = config_for(algorithm, "toy/pair")
    silent = replace(config, evaluation=replace(config.evaluation, every_steps=None, at_end=False))
    often, never = lab.start(config, "often"), lab.start(silent, "never")
    often.run()
    never.run()
    a, b = (read(run.folder.metrics)[-1] for run in (often, never))
    assert a["digest/weights"] == b["digest/weights"]
    assert a["digest/experience"] == b["digest/experience"]
