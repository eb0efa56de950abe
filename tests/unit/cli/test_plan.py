from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.base import resource_usage
from cadenza.config.load import load
from cadenza.data.replay import ReplayStore
from cadenza.engine.launch import check
from cadenza.records import episodes
from cadenza.records.folder import RunFolder
from cadenza.tools import object_memory
from cadenza.tools.demonstrate import demonstrate
from cadenza.tools.export import EpisodeSelection
from cadenza.tools.plan import measure_stores
from cadenza.tools.plan_measure import update_once
from cadenza.trees import leaves
from cadenza.watch.workflow_contents import WorkflowContents
from harness.command import cadenza, last, train
from harness.lab import Lab

# EpisodeSelection of 200 steps, always: what a checkpoint holds of running ones does not depend on how well it goes.
SETTINGS = [
    "Pendulum-v1:ppo",
    "environment.num_envs=4",
    "algorithm.n_steps=64",
    "algorithm.batch_size=64",
    "algorithm.n_epochs=2",
    "training.max_timesteps=3000",
    "evaluation.every_steps=1000",
    "evaluation.episodes=3",
    "logging.every_steps=500",
    "checkpoint.every_steps=1000",
]


def planned(*arguments: object, seconds: float = 0.1) -> dict[str, Any]:
    outcome = cadenza("plan", *arguments, "--seconds", seconds, "--json").succeeded()
    result = json.loads(outcome.out)
    assert isinstance(result, dict)
    return result


def sizes(folder: RunFolder) -> list[int]:
    paths = folder.checkpoints.glob("step-*")
    return [sum(file.stat().st_size for file in path.glob("*")) for path in paths]


def test_planned_disk_space_equals_that_of_a_run(tmp_path: Path) -> None:
    needs = planned(*SETTINGS)
    train(tmp_path, *SETTINGS).succeeded()
    folder = last(tmp_path)
    status, rows = folder.read_status(), folder.metrics.read_text().splitlines()
    assert needs["run"]["env_steps"] == status["env_steps"] == 3072
    assert needs["run"]["updates"] == status["updates"] == 96
    assert needs["run"]["cycles"] == 12
    assert needs["run"]["evaluations"] == sum("eval/return_mean" in row for row in rows) == 3
    actual = sizes(folder)
    assert needs["disk"]["checkpoint_bytes"] == pytest.approx(actual[-1], rel=0.05)
    assert max(actual) <= needs["disk"]["checkpoint_bytes_at_most"]
    assert len(actual) <= needs["disk"]["checkpoints_kept"] == 3
    assert sum(actual) <= needs["disk"]["checkpoints_bytes"]
    assert needs["disk"]["metrics_bytes"] == pytest.approx(folder.metrics.stat().st_size, rel=0.3)
    size = sum(path.stat().st_size for path in folder.episodes.path.iterdir())
    unfinished = (3072 - sum(episode.length for episode in episodes.load(folder))) * 4
    assert needs["disk"]["episodes_bytes"] == pytest.approx(size + unfinished, rel=0.05)
    assert 0 < needs["time"]["training_seconds"] < 600


def test_stores_and_networks_are_counted_exactly(lab: Lab) -> None:
    needs = planned(*SETTINGS)
    run = lab.start(load(SETTINGS[0], SETTINGS[1:]))
    run._do_next()  # collects: the store is full now, and its state is all of it
    full = run.stores["rollout"].state_dict()["arrays"]
    assert needs["memory"]["stores"] == {"rollout": sum(array.nbytes for _, array in leaves(full))}
    run._do_next()
    parameters = {id(p): p.numel() for p in WorkflowContents(run.workflow).parameters.values()}
    assert needs["memory"]["parameters"] == sum(parameters.values()) > 2 * 64 * 64
    assert needs["memory"]["gradients_bytes"] == 4 * sum(parameters.values())
    state = [leaf for _, leaf in leaves(run.workflow.state_dict()) if isinstance(leaf, torch.Tensor)]
    learned = needs["memory"]["networks_bytes"] + needs["memory"]["learning_bytes"]
    distinct = {tensor.data_ptr(): tensor.nbytes for tensor in state}  # a count of steps stands under several names
    assert 0 <= learned - sum(distinct.values()) < 64 * len(distinct)  # parameters begin at cache lines


def test_rows_collected_beside_a_dataset_are_counted(lab: Lab, tmp_path: Path) -> None:
    demonstrate(load("toy/fork:dreamer_v3"), "fork", tmp_path / "forks", EpisodeSelection(5))
    phases = "training.phases=[{name: learn, type: offline, hooks: [{name: update}]}]"
    short = ["training.max_updates=1", "algorithm.buffer_size=500", "algorithm.batch_size=2", "evaluation.at_end=false"]
    config = load(
        "toy/fork:dreamer_v3", [f"training.dataset={tmp_path / 'forks'}", phases, "algorithm.batch_length=4", *short]
    )
    planned = measure_stores(config, check(config))["replay"]
    run = lab.start(config)
    run.run()
    store = run.stores["replay"]
    assert isinstance(store, ReplayStore)
    assert (planned.memory, planned.renewed) == (store.bulk, store.revised_bulk)
    assert planned.renewed > 500 * 100


def test_a_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    planned(*SETTINGS, "--runs-dir", tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_plan_prints_a_readable_summary(tmp_path: Path) -> None:
    table = cadenza("plan", *SETTINGS, "--seconds", 0.1, "--runs-dir", tmp_path).succeeded().out
    for words in ("3,072 env_steps", "12 of 256 env_steps", "parameters", "rollout ", "env_steps/s", "free"):
        assert words in table


def test_a_cycle_too_long_to_wait_for_is_left_unfinished() -> None:
    needs = planned("Pendulum-v1:ppo", "algorithm.n_steps=1000000", "environment.num_envs=4", "algorithm.batch_size=1")
    assert needs["time"]["measured_cycles"] == 0
    assert needs["time"]["env_steps_per_second"] > 0
    assert needs["run"]["env_steps"] == 4_000_000
    assert needs["run"]["updates"] is None
    assert needs["disk"]["checkpoint_bytes"] < 1_000_000


def test_stores_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = planned(*SETTINGS)["memory"]["stores_bytes"]
    monkeypatch.setattr(resource_usage, "available_memory", lambda: store // 2)
    line = cadenza("plan", *SETTINGS, "--seconds", 0.1).refused(2, "store 'rollout'", "algorithm.n_steps=32 (not 64)")
    assert "environment.num_envs=2 (not 4)" in line
    assert line.endswith("; algorithm.buffer_on_disk=true maps it from a file")
    memory = planned(*SETTINGS, "algorithm.buffer_on_disk=true")["memory"]
    assert (memory["stores_bytes"], memory["mapped_bytes"]) == (0, store)
    monkeypatch.setattr(resource_usage, "available_memory", lambda: store)
    planned(*SETTINGS)


def test_stores_that_cannot_even_be_allocated_are_refused() -> None:
    huge = "algorithm.n_steps=1000000000000"
    line = cadenza("plan", "CartPole-v1:ppo", huge, "algorithm.batch_size=1").refused(2, "at least", "would fit")
    assert "algorithm.n_steps=" in line


def test_plan_refuses_the_same_specs_as_train() -> None:
    cadenza("plan", "CartPole-v1:ppo", "algorithm.gama=1").refused(2, "algorithm.gamma")


def test_the_spec_is_the_one_that_the_run_will_have() -> None:
    short = ["--seconds", "0.1", "algorithm.n_steps=8", "algorithm.batch_size=16", "environment.num_envs=2"]
    outcome = cadenza("plan", "CartPole-v1:ppo_lstm", *short, "--json").succeeded()
    assert json.loads(outcome.out.splitlines()[-1])["spec"] == "CartPole-v1:ppo_lstm"


def test_views_count_once_as_their_base_array() -> None:
    array, tensor = np.zeros((10, 4)), torch.zeros(6)
    holder = {"a": [array, array[2:4]], "b": (tensor, tensor[1:2], tensor.view(2, 3))}
    assert sorted(object_memory.blocks(holder).values()) == [24, 320]


def test_available_memory_is_measured() -> None:
    assert (resource_usage.available_memory() or 0) > 1 << 20


def test_the_page_cache_of_a_container_counts_as_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage, "CGROUP", tmp_path)
    for name, text in {"max": "1000", "current": "900", "stat": "anon 100\ninactive_file 700\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert resource_usage.available_memory() == 800
    (tmp_path / "memory.stat").unlink()
    assert resource_usage.available_memory() == 100
    assert (resource_usage.resident_memory() or 0) > 1 << 20


def test_untouched_pages_of_arrays_are_not_counted() -> None:
    array = np.zeros(64 << 20, np.uint8)
    array[: 16 << 20] = 1
    assert object_memory.touched(object_memory.blocks(array)) == pytest.approx(16 << 20, rel=0.15)
    with tempfile.TemporaryFile() as file:
        mapped = np.asarray(np.memmap(file, np.uint8, "w+", shape=(64 << 20,)))[8:]
    mapped[: 16 << 20] = 1
    assert object_memory.blocks(mapped) == {}
    assert list(object_memory.mapped(mapped).values()) == [64 << 20]
    assert object_memory.touched(object_memory.mapped(mapped)) == pytest.approx(16 << 20, rel=0.15)


def test_the_forecast_of_a_run_with_a_warm_up_equals_the_run(tmp_path: Path) -> None:
    settings = ["CartPole-v1:dqn", "algorithm.warmup_steps=500", "algorithm.train_every=50", "environment.num_envs=2"]
    settings += ["algorithm.update_ratio=0.1", "training.max_timesteps=3000", "evaluation.every_steps=1000"]
    needs = planned(*settings)["run"]
    assert (needs["env_steps_per_cycle"], needs["updates_per_cycle"], needs["cycles"]) == (50, 5, 60)
    train(tmp_path, *settings, "evaluation.episodes=2").succeeded()
    status, rows = last(tmp_path).read_status(), last(tmp_path).metrics.read_text().splitlines()
    assert (needs["env_steps"], needs["updates"]) == (status["env_steps"], status["updates"]) == (3000, 250)
    assert needs["evaluations"] == sum("eval/return_mean" in row for row in rows)


def test_offline_phases_are_measured_in_part_and_counted_in_full(tmp_path: Path) -> None:
    settings = ["Pendulum-v1:tdmpc", "algorithm.warmup_steps=60", "algorithm.pretrain_updates=40"]
    settings += ["algorithm.batch_size=8", "training.max_timesteps=90", "evaluation.every_steps=0"]
    needs = planned(*settings, "evaluation.at_end=false", seconds=1)
    assert needs["run"]["offline_updates"] == 40
    assert needs["time"]["training_seconds"] > 0
    train(tmp_path, *settings, "evaluation.at_end=false").succeeded()
    status = last(tmp_path).read_status()
    assert (needs["run"]["env_steps"], needs["run"]["updates"]) == (status["env_steps"], status["updates"]) == (90, 70)


def test_a_measurement_that_ends_too_soon_says_so() -> None:
    long = ["algorithm.warmup_steps=100000", "training.max_timesteps=200000"]
    outcome = cadenza("plan", "Pendulum-v1:tdmpc", *long, "--seconds", "0.1").succeeded()
    unknown = "phases pretrain, train could not be measured, so the run's time is unknown"
    assert outcome.warnings == [f"warning: {unknown}; --seconds N measures longer"]


def test_plan_and_train_warn_of_a_budget_that_ends_with_the_warm_up(tmp_path: Path) -> None:
    settings = ["Pendulum-v1:tdmpc", "algorithm.warmup_steps=60", "algorithm.pretrain_updates=40"]
    settings += ["training.max_timesteps=60", "evaluation.at_end=false"]
    outcome = cadenza("plan", *settings, "--seconds", "0.1", "--json").succeeded()
    needs, trained = json.loads(outcome.out), train(tmp_path, *settings).succeeded()
    status = last(tmp_path).read_status()
    assert (needs["run"]["env_steps"], needs["run"]["updates"]) == (status["env_steps"], status["updates"]) == (60, 0)
    assert outcome.warnings == trained.warnings == [f"warning: {text}" for text in needs["warnings"]]
    assert "ends before anything is learned: 60 steps come before phase pretrain" in outcome.warnings[0]


def test_a_run_that_ends_with_an_evaluation_is_planned_to_its_end(tmp_path: Path) -> None:
    settings = ["toy/glimpse:world_models", "algorithm.evolution.inside=dream", "algorithm.generations=3"]
    settings += ["algorithm.vision_updates=8", "algorithm.memory_updates=4", "algorithm.rollout_steps=500"]
    needs = planned(*settings, "evaluation.episodes=4", seconds=10)  # the whole run is over before
    train(tmp_path, *settings, "evaluation.episodes=4").succeeded()
    status, rows = last(tmp_path).read_status(), last(tmp_path).metrics.read_text().splitlines()
    assert (needs["run"]["env_steps"], needs["run"]["updates"]) == (status["env_steps"], status["updates"]) == (512, 15)
    assert needs["run"]["evaluations"] == sum("eval/return_mean" in row for row in rows) == 1
    assert (needs["run"]["rows"], needs["run"]["cycles"]) == (len(rows), 1 + 15 + 1)
    assert needs["time"]["training_seconds"] > 0
    assert needs["warnings"] == []


def test_what_was_collected_may_be_too_little_to_learn_from(lab: Lab) -> None:
    """When the measurement of a slow environment ends, the replay has no complete sequence yet."""
    run = lab.start(load("toy/glimpse:world_models", ["algorithm.batch_length=200"]))
    run.run(lambda clock: clock.env_steps > 0)  # one cycle: 64 rows of each environment
    before = run.workflow.state_dict()["networks"]["vision"]["encoder.0.weight"].clone()
    update_once(run)
    after = run.workflow.state_dict()["networks"]["vision"]["encoder.0.weight"]
    assert not torch.equal(before, after)  # V has learned, and M could not


def test_cfg_plan_and_the_run_agree_on_a_collect_without_an_amount(tmp_path: Path) -> None:
    phases = "training.phases=[{name: mine, hooks: [collect, update], duration_cycles: 60}]"
    output = cadenza("train", "Pendulum-v1:sac", phases, "--cfg").succeeded().out
    assert "steps: 1\n" in output[output.index("phases:") :]
    run = json.loads(cadenza("plan", "Pendulum-v1:sac", phases, "--json").succeeded().out.splitlines()[-1])["run"]
    assert (run["env_steps"], run["updates"]) == (60, 60)
    train(tmp_path, "Pendulum-v1:sac", phases, "evaluation.at_end=false", "evaluation.every_steps=0").succeeded()
    status = last(tmp_path).read_status()
    assert (status["env_steps"], status["updates"]) == (60, 60)
