"""The loop of a sweep: every trial is run once, as an ordinary run, also after crashes."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from cadenza.base import failpoints
from cadenza.engine.signals import Signals
from cadenza.errors import CadenzaError, LockedError, StorageError
from cadenza.lab.cleanup import runs_of_open_trials
from cadenza.lab.session import RunAttachments
from cadenza.lab.sweeps.jobs import Job
from cadenza.lab.sweeps.journal import Journal
from cadenza.lab.sweeps.local_processes import LocalProcesses
from cadenza.lab.sweeps.sweep_loop import Sweep, conclude, create_folder, predecessor
from cadenza.lab.sweeps.sweep_report import result, write_report
from cadenza.records.folder import RunFolder, run_ids
from cadenza.records.index import rows
from cadenza.tools.verify import compare
from harness.faulty_environment import FAULTY
from harness.files import safe
from harness.processes import PATIENCE
from harness.sweeping import BUDGET, InProcess, folders, make, outcomes, run


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out reports, which take longer than these runs."""
    monkeypatch.setattr(RunAttachments, "finish", lambda self, run: None)


GAMMAS = {"algorithm.gamma": [0.5, 0.9]}


def test_each_trial_has_an_ordinary_run_per_seed_and_the_sweep_itself_is_none(tmp_path: Path) -> None:
    made = make(sweep=GAMMAS, seeds=[3, 4])
    trials = run(made, tmp_path)
    listed = {row["run"]: row for row in rows(tmp_path, [f"tags=sweep:{made.id}"])}
    assert sorted(listed) == run_ids(tmp_path) == sorted(folder.id for folder in folders(trials, tmp_path))
    assert {(row["seed"], tuple(row["tags"])) for row in listed.values()} == {
        (seed, (f"sweep:{made.id}", f"trial:{number}")) for seed in (3, 4) for number in (1, 2)
    }
    for trial in trials:
        settings = [folder.settings() for folder in folders([trial], tmp_path)]
        assert {one["algorithm"]["gamma"] for one in settings} == {trial.params["algorithm.gamma"]}
        assert trial.values == {seed: listed[name]["return"] for seed, name in trial.runs.items()}
        assert trial.value == sum(trial.values.values()) / 2


def test_a_sweep_that_is_over_trains_nothing_when_called_again(tmp_path: Path) -> None:
    made, again = make(sweep=GAMMAS), InProcess()
    first = run(made, tmp_path)
    assert outcomes(run(made, tmp_path, again)) == outcomes(first)
    assert again.jobs == []


def test_more_trials_go_on_with_the_same_sweep(tmp_path: Path) -> None:
    space: dict[str, Any] = {"sweep": {"algorithm.gamma": {"min": 0.1, "max": 0.9}}, "method": "random"}
    first = run(make(**space, trials=1), tmp_path)
    engine = InProcess()
    more = run(make(**space, trials=2), tmp_path, engine)
    assert outcomes(more)[:1] == outcomes(first)
    assert [job.trial for job in engine.jobs] == [2]


PRUNED: dict[str, Any] = {
    "sweep": {"algorithm.learning_rate": {"min": 1e-3, "max": 1e-1, "log": True}},
    "method": "random",
    "trials": 2,
    "seeds": [0, 1],
    "pruning": {"rungs": [0.5], "warmup_trials": 1},
    "objective": {"metric": "eval/return_mean", "seeds": "worst"},
}


def test_a_crash_after_any_journal_entry_repeats_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it is started, the sweep crashes before or after its second entry in the journal."""
    made = make(**PRUNED)
    undisturbed = run(made, tmp_path / "whole")
    crashes = 0
    for place in ("sweep:note", "sweep:noted"):
        root, engines, over = tmp_path / place.replace(":", "-"), [], None
        while over is None:
            engines.append(InProcess())
            monkeypatch.setattr(failpoints, "armed", failpoints.parse(f"{place}@2:eio"))
            try:
                over = run(made, root, engines[-1])
            except OSError:
                crashes += 1
        assert outcomes(over) == outcomes(undisturbed)
        assert len(run_ids(root)) == len(run_ids(tmp_path / "whole"))
        for ours, theirs in zip(folders(over, root), folders(undisturbed, tmp_path / "whole"), strict=True):
            assert compare(ours, theirs) is None
    assert crashes > 9


def test_pruning_ends_trials_whose_mean_over_seeds_is_below_the_median(tmp_path: Path) -> None:
    trials = run(make(**PRUNED | {"trials": 3}), tmp_path)
    assert {trial.state for trial in trials} == {"finished", "pruned"}
    for trial in trials:
        before = [other.rungs[0] for other in trials if other.number < trial.number]
        assert (trial.state == "pruned") == bool(before and trial.rungs[0] < median(before))
        for folder in folders([trial], tmp_path):
            steps = folder.read_status()["env_steps"]
            assert steps == (BUDGET // 2 if trial.state == "pruned" else BUDGET)
        if trial.state == "pruned":
            assert trial.rungs == [trial.value] == [min(trial.values.values())]


class Killed(InProcess):
    """A backend that loses the process of each job a few times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def exit_code(self, job: Job) -> int:
        lost = [other for other in self.jobs if other.run == job.run]
        return -9 if len(lost) <= self.times else super().exit_code(job)


def test_a_lost_process_is_restarted_a_limited_number_of_times(tmp_path: Path) -> None:
    made = make(sweep=GAMMAS)
    assert [trial.state for trial in run(made, tmp_path / "a", Killed(2))] == ["finished", "finished"]
    given_up = run(made, tmp_path / "b", Killed(3))
    assert [trial.state for trial in given_up] == ["failed", "failed"]
    assert "killed 3 times" in given_up[0].message


class Idle(InProcess):
    """A backend that trains each run once and later only reports success."""

    def exit_code(self, job: Job) -> int:
        before = [other for other in self.jobs[:-1] if other.run == job.run]
        return 0 if before else super().exit_code(job)


def test_a_process_that_ends_well_without_an_end_of_its_run_is_not_started_for_ever(tmp_path: Path) -> None:
    first, second = run(
        make(**PRUNED | {"seeds": [0], "pruning": {"rungs": [0.5], "warmup_trials": 9}}), tmp_path, Idle()
    )
    assert first.state == second.state == "failed"
    assert "ended before the run did" in first.message
    assert len(first.rungs) == 1


def test_a_failed_trial_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    settings = {"environment.max_episode_steps": 8, "environment.kwargs.raise_at": [5, 100_000]}
    made = make(f"{FAULTY}:ppo", sweep=settings, seeds=[0, 1])
    engine = InProcess()
    failed, fine = run(made, tmp_path, engine)
    assert (failed.state, failed.value, fine.state) == ("failed", None, "finished")
    assert "seed 0" in failed.message
    assert [(job.trial, job.seed) for job in engine.jobs] == [(1, 0), (2, 0), (2, 1)]


@pytest.mark.parametrize("problem", [StorageError, LockedError])
def test_a_full_disk_or_a_run_in_use_ends_the_sweep_and_fails_no_trial(
    tmp_path: Path, problem: type[CadenzaError]
) -> None:
    made = make(sweep={"algorithm.gamma": [0.5]})

    class Hindered(InProcess):
        def exit_code(self, job: Job) -> int:
            job.log.path.write_text("error: not now\n")
            return problem.exit_code

    with pytest.raises(problem, match="not now"):
        run(made, tmp_path, Hindered())
    assert [trial.state for trial in run(made, tmp_path)] == ["finished"]


def test_failed_trials_can_be_retried_even_without_their_configs(tmp_path: Path) -> None:
    made = make(sweep={"algorithm.gamma": [0.5]})
    (given_up,) = run(made, tmp_path, Killed(3))
    assert given_up.state == "failed"
    assert runs_of_open_trials(tmp_path) == {}
    folder = create_folder(made, tmp_path)
    journal = Journal(folder.journal)
    journal.retry()
    journal.close()
    assert runs_of_open_trials(tmp_path) == {run: made.id for run in given_up.runs.values()}
    shutil.rmtree(folder.path / "configs")
    (again,) = run(made, tmp_path)
    assert (again.state, again.message, again.runs) == ("finished", "", given_up.runs)


class Robbed(InProcess):
    """A backend that deletes the rows of trial 1 when its run ends."""

    def exit_code(self, job: Job) -> int:
        code = super().exit_code(job)
        if job.trial == 1:
            job.folder.metrics.unlink()
        return code


def test_a_trial_without_its_metric_fails_and_the_others_continue(tmp_path: Path) -> None:
    robbed, fine = run(make(sweep=GAMMAS), tmp_path, Robbed())
    assert (robbed.state, fine.state) == ("failed", "finished")
    assert "metrics.jsonl is gone" in robbed.message


def test_a_metric_that_no_run_measures_is_named_with_the_nearest(tmp_path: Path) -> None:
    (trial,) = run(make(sweep={"algorithm.gamma": [0.5]}, objective="train/entrpy"), tmp_path)
    assert trial.state == "failed"
    assert "objective.metric=train/entrpy was never measured; did you mean 'train/entropy'?" in trial.message


def test_values_that_were_drawn_before_are_not_trained_again(tmp_path: Path) -> None:
    drawn = PRUNED | {"sweep": GAMMAS, "trials": 4, "seeds": [0]}
    engine = InProcess()
    trials = run(make(**drawn), tmp_path, engine)
    first = {trial.params["algorithm.gamma"]: trial for trial in reversed(trials)}
    assert {job.trial for job in engine.jobs} == {trial.number for trial in first.values()}
    for trial in trials:
        twin = first[trial.params["algorithm.gamma"]]
        assert outcomes([trial])[0][1:] == outcomes([twin])[0][1:]
        assert (trial.message == f"the same as trial {twin.number}") == (trial is not twin)


def test_a_signal_while_a_trial_is_drawn_is_handled(tmp_path: Path) -> None:
    signals, engine, made = Signals(), InProcess(), make(sweep=GAMMAS)

    class Interrupted(Sweep):
        def _next_job(self) -> Job | None:
            job = super()._next_job()
            signals.stop()
            return job

    folder = create_folder(made, tmp_path)
    journal = Journal(folder.journal)
    Interrupted(made, tmp_path, folder, journal, engine).run(signals)
    journal.close()
    assert engine.jobs == []
    assert [trial.state for trial in journal.trials.values()] == ["open"]


class Waiting(Job):
    """A job whose process ends when its standard input closes."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_a_signal_that_comes_while_a_process_starts_reaches_it(tmp_path: Path) -> None:
    engine = LocalProcesses(1)
    engine.stop(signal.SIGTERM)  # nothing runs yet
    engine.start(Waiting(1, 0, tmp_path, "run", safe(tmp_path / "config"), safe(tmp_path / "log")))
    engine._running[0][1].wait(PATIENCE)
    assert [code for _, code in engine.poll()] == [-signal.SIGTERM]


def test_a_changed_file_starts_a_new_sweep_and_names_the_old_one(tmp_path: Path) -> None:
    old, new, other = make(sweep=GAMMAS), make(sweep=GAMMAS, seeds=2), make(sweep=GAMMAS, name="other")
    Journal(create_folder(old, tmp_path).journal).close()
    assert predecessor(old, create_folder(old, tmp_path)) == predecessor(other, create_folder(other, tmp_path)) == ""
    message = predecessor(new, create_folder(new, tmp_path))
    assert message == f"a new sweep beside {old.id} (changed: seeds), which stays as it is"


def test_tpe_draws_the_same_trials_after_a_crash_from_the_journal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    from cadenza.lab.sweeps import tune

    monkeypatch.setattr(tune, "RANDOM_TRIALS", 1)
    space = {"algorithm.gamma": {"min": 0.1, "max": 0.9}, "algorithm.learning_rate": [1e-3, "lin_0.01"]}
    made = make(sweep=space, method="tpe", trials=3)
    whole = run(made, tmp_path / "whole")
    monkeypatch.setattr(failpoints, "armed", failpoints.parse("sweep:noted@8:eio"))
    with pytest.raises(OSError, match="failpoint"):
        run(made, tmp_path / "killed")
    assert outcomes(run(made, tmp_path / "killed")) == outcomes(whole)
    drawn = [made.space.draw(0, number) for number in range(1, 4)]
    assert [trial.params for trial in whole[:1]] == drawn[:1]
    assert all(trial.params != other for trial, other in zip(whole[1:], drawn[1:], strict=True))


def test_the_report_names_the_best_and_its_config_can_be_trained(tmp_path: Path) -> None:
    made = make(sweep={"algorithm.learning_rate": [1e-4, 1e-2], "algorithm.gamma": [0.5, 0.7, 0.9]})
    folder = create_folder(made, tmp_path)
    journal = Journal(folder.journal)
    sweep = Sweep(made, tmp_path, folder, journal, InProcess())
    sweep.run(Signals())
    best = conclude(sweep)
    page = write_report(sweep, ["cadenza", "sweep", "tried.yaml"]).read_text()
    summary = result(sweep)
    assert best is not None
    assert summary["best"]["trial"] == best.number
    assert best.value == max(trial.value or 0.0 for trial in journal.trials.values())
    assert summary["status"] == "finished"
    assert set(summary["importance"]) == set(made.space.dimensions)
    assert "history.png" in page
    assert f"cadenza show {RunFolder(tmp_path / best.runs[made.seeds[0]]).reference}\n" in page
    assert f"cadenza list --filter tags=sweep:{made.id} --runs-dir {tmp_path}\n" in page
    assert (folder.path / "parameters.png").stat().st_size > 10_000
    from cadenza.config.load import read

    assert read(folder.best).algorithm.gamma == best.params["algorithm.gamma"]


def test_when_every_trial_failed_the_first_reason_is_the_error(tmp_path: Path) -> None:
    made = make(f"{FAULTY}:ppo", sweep={"environment.kwargs.raise_at": [5, 6]})
    folder = create_folder(made, tmp_path)
    sweep = Sweep(made, tmp_path, folder, Journal(folder.journal), InProcess())
    sweep.run(Signals())
    with pytest.raises(CadenzaError, match="no trial has finished; trial 1: seed 0"):
        conclude(sweep)
