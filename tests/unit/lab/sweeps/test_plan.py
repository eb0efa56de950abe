"""From a sweep file to a plan: errors are found before anything runs; configs equal those of the command line."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadenza.config.load import load, override
from cadenza.envs import vector
from cadenza.errors import CadenzaError, CheckpointError
from cadenza.lab.sweeps import conduct
from cadenza.lab.sweeps import sweep_plan as planning
from cadenza.lab.sweeps.journal import Journal
from cadenza.lab.sweeps.local_processes import LocalProcesses
from cadenza.lab.sweeps.sweep_file import SweepFile, read, read_space, shipped
from cadenza.lab.sweeps.sweep_loop import create_folder
from cadenza.lab.sweeps.sweep_plan import Resolver, plan
from cadenza.lab.sweeps.wandb_agent import agent_overrides
from cadenza.records.lock import RunLock
from harness.command import cadenza
from harness.files import safe

SPEC = "CartPole-v1:ppo"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tried.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sweeep: {a: [1]}", "unknown key 'sweeep'; did you mean 'sweep'?"),
        ("sweep: {algorithm.gama: [0.9, 0.99]}", "unknown key 'algorithm.gama'; did you mean 'algorithm.gamma'?"),
        ("sweep: {algorithm.gamma: [0.9, high]}", "algorithm.gamma='high': must be a number"),
        ("sweep: {algorithm.gamma: {min: 0.9, max: 0.99}}", "a grid needs a list"),
        ("sweep: {algorithm.gamma: {min: 0.9, max: 1.5}}\nmethod: tpe\ntrials: 2", "algorithm.gamma=1.5: must be in"),
        ("sweep: {algorithm.gamma: [0.9]}\nmethod: random", "trials is missing"),
        ("sweep: {algorithm.gamma: [0.9]}\ntrials: 3", "a grid has every combination"),
        ("sweep: {algorithm.gamma: [0.9]}\nobjective: eval/retrun_mean", "did you mean 'eval/return_mean'?"),
        ("sweep: {algorithm.gamma: [0.9]}\nobjective: {direction: max}", "did you mean 'maximize'?"),
        ("sweep: {algorithm.gamma: [0.9]}\nseeds: [1, 1]", "must differ"),
        ("sweep: {algorithm.gamma: [0.9]}\nseeds: 0", "seeds=0: must be at least 1"),
        ("sweep: {algorithm.gamma: [0.9]}\nseeds: -3", "seeds=-3: must be at least 1"),
        ("sweep: {algorithm.batch_size: [64, 96], algorithm.n_steps: 32}", "algorithm.batch_size=96"),
        (
            "sweep: {algorithm.gamma: [0.9]}\nmethod: random\ntrials: 2\npruning: true\nmax_timesteps: 9000",
            "lower evaluation.every_steps=10000",
        ),
    ],
)
def test_invalid_sweep_files_are_refused_in_one_line_before_anything_runs(
    tmp_path: Path, text: str, words: str
) -> None:
    path = written(tmp_path, f"base: {SPEC}\n{text}")
    cadenza("sweep", path, "--runs-dir", tmp_path / "runs").refused(2, words)
    assert not (tmp_path / "runs").exists()


def test_a_file_without_a_base_or_with_an_unknown_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CadenzaError, match="base is missing"):
        read(written(tmp_path, "sweep: {algorithm.gamma: [0.9]}"))
    with pytest.raises(CadenzaError, match="did you mean 'cartpole_grid'"):
        read(Path("cartpole_gird"))


def test_a_base_may_be_a_file_beside_the_sweeps(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"spec: {SPEC}\nalgorithm.gamma: 0.7\n")
    said = read(written(tmp_path, "base_config: mine.yaml\nsweep: {algorithm.n_epochs: [1, 2]}\nseeds: 2"))
    made = plan(said)
    assert made.config(1, {"algorithm.n_epochs": 2}, 5).algorithm.gamma == 0.7
    assert made.seeds == (1, 2)


PARAMS: list[dict[str, Any]] = [
    {"algorithm.gamma": 0.9, "algorithm.learning_rate": "lin_0.01"},
    {"algorithm.actor": {"hidden_sizes": [8]}, "environment.kwargs": {"sutton_barto_reward": True}},
    {"training.early_stop.at_least": 100},
    {"algorithm.clip_range": {"schedule": "linear", "start_value": 0.2, "end_value": 0.1}},
    {"environment.kwargs.sutton_barto_reward": True, "algorithm.actor.hidden_sizes": [4, 4]},
]


@pytest.mark.parametrize("params", PARAMS)
def test_the_fast_path_to_a_config_gives_the_same_config(params: dict[str, Any]) -> None:
    given = ["training.early_stop={metric: eval/return_mean}"]
    expected = load(SPEC, [*given, *(override(key, value) for key, value in params.items())])
    assert Resolver(SPEC, given, None).config(params) == expected


def test_settings_that_refer_to_others_follow_them(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"spec: {SPEC}\nalgorithm.gamma: 0.7\nalgorithm.gae_lambda: ${{algorithm.gamma}}\n"
    )
    assert Resolver(str(tmp_path / "mine.yaml"), [], None).config({"algorithm.gamma": 0.9}).algorithm.gae_lambda == 0.9


@pytest.mark.parametrize("gamma", ["0.9", "${algorithm.gae_lambda}"])
def test_a_trial_belongs_to_the_project_of_its_file(
    gamma: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    (tmp_path / "mine.yaml").write_text(f"spec: {SPEC}\nlogging.wandb: offline\nalgorithm.gamma: {gamma}\n")
    trial = Resolver(str(tmp_path / "mine.yaml"), [], None).config({"algorithm.n_epochs": 2})
    assert trial.logging.wandb_project == "mine"


def test_hydra_is_asked_once_for_many_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "load", None)
    space = {"algorithm.gamma": {"min": 0.9, "max": 0.99}, "algorithm.n_epochs": [1, 2]}
    made = plan(SweepFile(base=SPEC, sweep=space, method="random", trials=50, name="many"))
    assert len({made.config(1, params, 0).algorithm.gamma for params in made.predetermined}) == 50


def test_the_identity_of_a_sweep_ignores_only_trials_and_jobs() -> None:
    said: dict[str, Any] = {"base": SPEC, "sweep": {"algorithm.gamma": [0.9, 0.99]}, "method": "random", "name": "x"}
    ids = [
        plan(SweepFile(**said | more)).id
        for more in (
            {"trials": 2},
            {"trials": 3, "parallel_jobs": 4},
            {"trials": 2, "max_timesteps": 7},
            {"trials": 2, "seeds": (4,)},
        )
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_sweeps_are_valid(name: str) -> None:
    if name == "cartpole_grid":
        plan(read(Path(name)))
    else:
        spec = "Pendulum-v1:sac" if name == "sac" else f"CartPole-v1:{name}"
        plan(read_space(None, spec, None, trials=3))


def test_a_space_file_may_contain_only_keys(tmp_path: Path) -> None:
    said = read_space(written(tmp_path, "algorithm.gamma: [0.9, 0.99]\n"), SPEC, None, trials=4, seeds=[1, 2])
    assert (said.method, said.trials, said.base, said.seeds) == ("tpe", 4, SPEC, (1, 2))


def test_a_space_says_how_many_trials_and_may_not_have_another_base(tmp_path: Path) -> None:
    text = "sweep: {algorithm.gamma: [0.9, 0.99]}\n"
    assert read_space(written(tmp_path, text), SPEC, None).trials == 30
    assert read_space(written(tmp_path, f"{text}trials: 3\nbase: {SPEC}"), SPEC, None).trials == 3
    assert read_space(written(tmp_path, f"{text}trials: 3"), SPEC, None, trials=5).trials == 5
    with pytest.raises(CadenzaError, match=f"base=Acrobot-v1:dqn is not the {SPEC} that is tuned"):
        read_space(written(tmp_path, f"{text}base_config: Acrobot-v1:dqn"), SPEC, None)


def test_tpe_needs_no_sound_base_where_trials_are_sound() -> None:
    space = {"algorithm.n_steps": [5, 10], "algorithm.batch_size": [5, 10], "environment.num_envs": 1}
    file = SweepFile(base=SPEC, sweep=space, method="tpe", trials=3, name="x")
    assert plan(file, ["algorithm.batch_size=64"]).total == 3
    with pytest.raises(CadenzaError, match="does not divide the rollout"):
        plan(replace(file, sweep={**space, "algorithm.batch_size": [7, 9]}))


def test_when_every_trial_has_failed_there_is_a_report_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of jobs is limited to the number of runs, and a sweep in use is refused."""
    path = written(tmp_path, f"base: {SPEC}\nsweep: {{algorithm.gamma: [0.5]}}\nparallel_jobs: 8\nseeds: 2")
    folder = create_folder(plan(read(path)), tmp_path)
    journal = Journal(folder.journal)
    journal.end_trial(journal.add_trial(1, {"algorithm.gamma": 0.5}), "failed", None, message="it broke")
    journal.close()
    opened: list[int] = []
    monkeypatch.setattr(conduct, "open_backend", lambda on, jobs: opened.append(jobs) or LocalProcesses(jobs))
    command = ["sweep", path, "--runs-dir", tmp_path, "--quiet"]
    cadenza(*command).refused(70, "no trial has finished; trial 1: it broke", str(folder.report))
    assert "it broke" in folder.report.read_text()
    assert opened == [2]
    with RunLock(folder.path):
        cadenza(*command).refused(73, f"sweep {folder.path.name} is in use by process")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on files")
def test_a_partial_write_leaves_the_journal_unchanged(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "journal.jsonl"
    journal = Journal(safe(path))
    trial = journal.add_trial(1, {"a": 0.5})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            journal.add_run(trial, 3, "run-1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert trial.runs == {}
    journal.add_run(trial, 3, "run-1")
    journal.close()
    again = Journal(safe(path))
    again.close()
    assert again.trials == {1: trial}


def test_the_journal_drops_only_an_incomplete_last_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(safe(path))
    trial = journal.add_trial(1, {"a": 0.5})
    journal.add_run(trial, 3, "run-1")
    journal.close()
    with path.open("a") as file:
        file.write('{"event": "told", "tri')
    again = Journal(safe(path))
    assert again.trials == {1: trial}
    again.end_trial(again.trials[1], "finished", 2.0, {3: 2.0})
    again.close()
    last = Journal(safe(path))
    assert (last.trials[1].runs, last.trials[1].value) == ({3: "run-1"}, 2.0)
    last.close()


@pytest.mark.parametrize("line", ["[]", '{"event": "told"}', "[" * 100_000], ids=lambda line: line[:9])
def test_a_damaged_line_of_the_journal_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(CheckpointError, match="line 1: damaged"):
        Journal(safe(path))


def test_what_a_wandb_agent_asks_for_is_merged_below_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "wandb_version: 1\n\nalgorithm.learning_rate:\n  value: lin_0.01\ntraining.max_timesteps:\n  value: 100\n"
    )
    assert agent_overrides({"WANDB_SWEEP_PARAM_PATH": str(path)}) == []
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc123")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(path))
    told = cadenza("train", SPEC, "algorithm.learning_rate=0.5", "--max-timesteps", 50, "--cfg").succeeded()
    assert "max_timesteps: 50" in told.out
    assert "start_value: 0.01" in told.out
    assert "algorithm.learning_rate='lin_0.01'" in told.err


def test_processors_are_divided_among_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)), raising=False)
    monkeypatch.delenv(vector.CORES, raising=False)
    assert [vector.share_of_cores(jobs) for jobs in (1, 4, 50)] == [12, 3, 1]
    environ = vector.limited_to(3, {"MKL_NUM_THREADS": "2"})
    assert (environ[vector.CORES], environ["OMP_NUM_THREADS"]) == ("3", "3")
    assert environ["MKL_NUM_THREADS"] == "2"  # what the user has set stays
    monkeypatch.setenv(vector.CORES, "3")
    assert vector.cores() == 3
