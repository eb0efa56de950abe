"""Raised budgets, weights from other runs and runs that name code, through the command line."""

from __future__ import annotations

import json
import os
import platform
import signal
from pathlib import Path

import pytest

from cadenza.base import failpoints
from cadenza.records.checkpoint import Checkpoints
from cadenza.records.folder import RunFolder
from cadenza.records.metrics import read
from cadenza.tools.verify import compare
from harness.command import TOY, cadenza, copied, last, train
from harness.processes import call


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A finished run, the last of its folder."""
    return copied(whole, tmp_path)


def answer(root: Path, *arguments: str) -> dict[str, object]:
    out = cadenza(*arguments, "--runs-dir", str(root), "--json").succeeded().out
    result: dict[str, object] = json.loads(out.splitlines()[-1])
    return result


def test_a_run_with_a_raised_budget_can_be_verified(tmp_path: Path) -> None:
    train(tmp_path, *TOY, "algorithm.learning_rate=lin_0.01").succeeded()
    assert read(last(tmp_path).metrics)[-2]["train/learning_rate"] > 0
    status = last(tmp_path).read_status()
    more = answer(tmp_path, "resume", "@last", "--max-timesteps", "3000", "--quiet")
    assert more["env_steps"] == 3072
    assert float(str(more["seconds"])) > status["seconds"]  # time spent adds up over processes
    rates = [row["train/learning_rate"] for row in read(last(tmp_path).metrics)]
    assert rates[-1] == 0  # the schedule's horizon is the first budget: its end value holds
    answered = answer(tmp_path, "verify", "@last")
    assert (answered["identical"], answered["first_difference"]) == (True, None)


def test_the_status_of_a_resumed_run_has_its_process_and_folder(run: RunFolder, tmp_path: Path) -> None:
    run.update_status(pid=1, host="elsewhere", dir="/elsewhere")  # a folder that came from another machine
    answer(tmp_path, "resume", "@last", "--max-timesteps", "3000", "--quiet")
    status = run.read_status()
    assert (status["pid"], status["host"], status["dir"]) == (os.getpid(), platform.node(), str(run.path.absolute()))


def test_a_budget_in_updates_can_be_raised(tmp_path: Path) -> None:
    train(tmp_path, *TOY[:-2], "--max-updates", "8", "algorithm.learning_rate=lin_0.01").succeeded()
    assert last(tmp_path).read_decisions()["training.unit"] == "updates"
    assert last(tmp_path).read_decisions()["training.horizon"] == 8
    assert answer(tmp_path, "resume", "@last", "--max-updates", "16", "--quiet")["updates"] == 16
    assert answer(tmp_path, "verify", "@last")["identical"] is True


def test_a_budget_that_changes_nothing_is_refused(run: RunFolder, tmp_path: Path) -> None:
    resume = ["resume", "@last", "--runs-dir", str(tmp_path)]
    cadenza(*resume, "--max-updates", "9999").refused(2, "would end at once", "2048 of training.max_timesteps")
    phases = "training.phases=[{name: a, hooks: [collect, update], duration_cycles: 2}]"
    train(tmp_path, *TOY[:-2], phases, "training.max_timesteps=null").succeeded()
    cadenza(*resume, "--max-timesteps", "9999").refused(2, "phases are over")


def test_a_budget_without_any_update_is_warned_of(tmp_path: Path) -> None:
    short = ["toy/identity:dqn", "algorithm.warmup_steps=64", "evaluation.every_steps=0", "evaluation.at_end=false"]
    warning = "training.max_timesteps=64 ends before anything is learned: 64 steps come before phase train"
    assert train(tmp_path, *short, "--max-timesteps", "64").succeeded().warnings == [f"warning: {warning}"]
    assert train(tmp_path, *short, "--max-timesteps", "128").succeeded().warnings == []
    collect, learn = "[{name: collect, steps: 32}]", "[{name: collect, steps: 32}, update]"
    warmup = f"{{name: warmup, actions: random, hooks: {collect}, duration_cycles: 2}}"
    phases = f"training.phases=[{warmup}, {{name: train, hooks: {learn}}}]"
    assert train(tmp_path, *short, phases, "--max-timesteps", "64").succeeded().warnings == [f"warning: {warning}"]


def test_a_raised_budget_survives_a_kill_right_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = "training.early_stop={at_least: -1}"
    train(tmp_path, *TOY, stop).succeeded()
    assert last(tmp_path).read_status()["env_steps"] == 512
    answer(tmp_path, "resume", "@last", "--device", "cpu", "--quiet")
    assert last(tmp_path).read_status()["env_steps"] == 512  # another name for the device is no longer budget
    assert call(["resume", "@last", "--max-timesteps", "4096"], tmp_path, "run:task@1")[0] == -signal.SIGKILL
    assert answer(tmp_path, "resume", "@last", "--quiet")["env_steps"] == 1024  # on to the next evaluation


# written when more is given: best, manifest.json, config.yaml, decisions.json, status.json, then a checkpoint
@pytest.mark.parametrize("point", [*(f"atomic:before_rename@{hit}+" for hit in range(1, 6)), "ckpt:before_fsync@1+"])
def test_a_raised_budget_survives_a_full_disk_right_after_it(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, *TOY, "training.early_stop={at_least: -1}").succeeded()
    more = ["resume", "@last", "--max-timesteps", "4096", "--quiet"]
    monkeypatch.setattr(failpoints, "armed", failpoints.parse(f"{point}:enospc"))
    cadenza(*more, "--runs-dir", str(tmp_path)).refused(74, "No space left on device")
    monkeypatch.setattr(failpoints, "armed", None)
    is_stored = "4096" in last(tmp_path).config.read_text()
    assert answer(tmp_path, *(more[:2] if is_stored else more), "--quiet")["env_steps"] == 1024
    assert answer(tmp_path, "verify", "@last")["identical"] is True


def test_runs_that_end_with_an_evaluation_phase_can_be_verified(tmp_path: Path) -> None:
    phases = (
        "training.phases=[{name: a, hooks: [collect, update], duration_steps: 512},"
        "{name: b, type: eval_only, hooks: [evaluate], duration_cycles: 3}]"
    )
    train(tmp_path, *TOY[:-2], phases, "training.max_timesteps=null").succeeded()
    assert answer(tmp_path, "verify", "@last")["identical"] is True


def test_best_is_restored_after_a_kill_between_the_save_and_its_pointer(tmp_path: Path) -> None:
    quick = [*TOY, "checkpoint.every_steps=0", "evaluation.every_steps=128"]
    train(tmp_path / "whole", *quick).succeeded()
    whole = last(tmp_path / "whole")
    for hit in (2, 3):
        root = tmp_path / str(hit)
        assert call(["train", *quick], root, f"ckpt:after_rename@{hit}")[0] == -signal.SIGKILL
        assert call(["resume", "@last"], root)[0] == 0
        assert compare(whole, last(root)) is None
        assert (last(root).checkpoints / "best").read_text() == (whole.checkpoints / "best").read_text()


def test_resume_after_a_kill_says_how_much_is_done_again(tmp_path: Path) -> None:
    rare = [*TOY, "checkpoint.every_steps=1024", "evaluation.every_steps=4096"]
    assert call(["train", *rare], tmp_path, "run:task@26")[0] == -signal.SIGKILL
    reached = read(last(tmp_path).metrics)[-1]["env_steps"]
    said = cadenza("resume", "@last", "--runs-dir", tmp_path).succeeded().err
    assert f"resumed at step 1024; {reached - 1024} env_steps after it were not saved and are done again" in said
    assert "done again" not in cadenza("resume", "@last", "--runs-dir", tmp_path).succeeded().err


def test_resuming_a_finished_run_changes_nothing(run: RunFolder, tmp_path: Path) -> None:
    rows = read(run.metrics)
    assert answer(tmp_path, "resume", "@last", "--quiet")["status"] == "finished"
    assert read(run.metrics) == rows


def test_a_run_with_init_from_can_be_verified(run: RunFolder, tmp_path: Path) -> None:
    train(tmp_path, *TOY, "--init-from", run.id, "--seed", "5").succeeded()
    borrower = last(tmp_path)
    first = Checkpoints.from_run(run)
    weights = first.load(first.resolve("best"), "workflow")["workflow"]["networks"]["agent"]["actor.0.weight"]
    assert borrower.read_config().training.init_from == str(run.path.resolve())
    assert answer(tmp_path, "verify", "@last")["identical"] is True
    borrowed = borrower.read_decisions()["training.init_from"]
    assert borrowed == first.resolve("best")
    train(tmp_path, *TOY, "--init-from", run.id, "--seed", "5", "algorithm.learning_rate=1e-12").succeeded()
    still = Checkpoints.from_run(last(tmp_path))
    initial = still.load(still.resolve("last"), "workflow")["workflow"]["networks"]["agent"]["actor.0.weight"]
    assert (initial - weights).abs().max() < 1e-6


def test_weights_that_do_not_fit_are_refused(run: RunFolder, tmp_path: Path) -> None:
    outcome = train(tmp_path, *TOY, "--init-from", run.id, "algorithm.actor.hidden_sizes=[8]")
    outcome.refused(2, "do not fit this config: algorithm.actor.hidden_sizes is [", "] there and [8] here; actor.")
    outcome = train(tmp_path, "toy/identity:dqn", "--init-from", run.id)
    line = outcome.refused(2, f"the weights of run {run.id}, of ppo, do not fit this config: Unexpected key(s)")
    assert len(line) < 400
    assert len(list(tmp_path.glob("toy_*"))) == 1


def test_a_users_own_code_is_executed_and_a_strangers_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ["gymnasium.envs.classic_control.cartpole:CartPoleEnv:ppo", *TOY[1:]]
    train(tmp_path, *spec, "environment.max_episode_steps=50").succeeded()
    run = last(tmp_path)
    assert answer(tmp_path, "evaluate", "@last")["episodes"] == 20
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "someone else"))
    for command in ("evaluate", "resume", "verify"):
        refused = cadenza(command, str(run.path), "--runs-dir", str(tmp_path)).refused(2, "CartPoleEnv", "--trust")
        assert run.id in refused
    assert answer(tmp_path, "evaluate", "@last", "--trust")["episodes"] == 20


def test_a_strangers_config_cannot_run_a_command(run: RunFolder, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    config = run.config.read_text().replace("id: toy/identity", "id: os:system")
    run.config.path.write_text(config.replace("kwargs: {}", f"kwargs: {{command: touch {canary}}}"))
    assert "os:system" in run.config.read_text()
    assert str(canary) in run.config.read_text()
    for command in ("evaluate", "resume", "verify"):
        cadenza(command, run.id, "--runs-dir", str(tmp_path)).refused(2, "os:system", "--trust")
    assert not canary.exists()


def test_a_changed_setting_in_the_run_folder_is_refused(run: RunFolder, tmp_path: Path) -> None:
    run.config.path.write_text(run.config.read_text().replace("gamma: 0.99", "gamma: 0.5"))
    arguments = ["resume", run.id, "--max-timesteps", "4096", "--runs-dir", str(tmp_path)]
    cadenza(*arguments).refused(2, "was changed after the run began", "--init-from")
    run.config.path.write_text(run.config.read_text().replace("gamma: 0.5", "gamma: 0.99"))
    cadenza(*arguments, "--quiet").succeeded()
    cadenza("evaluate", run.id, "--runs-dir", str(tmp_path)).succeeded()  # the longer budget is a change of our own


def test_a_run_on_a_missing_device_names_the_option_to_resume_it(run: RunFolder, tmp_path: Path) -> None:
    run.write_decisions(run.read_decisions() | {"device": "cuda:98"})
    arguments = ["resume", run.id, "--max-timesteps", "4096", "--runs-dir", str(tmp_path), "--quiet"]
    cadenza(*arguments).refused(2, "cuda:98", "--device cpu")
    assert "no longer bit for bit" in cadenza(*arguments, "--device", "cpu").succeeded().err
    assert run.read_decisions()["device"] == "cpu"


def test_a_damaged_signing_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    (home / "cadenza").mkdir(parents=True)
    (home / "cadenza" / "key").write_bytes(b"")
    spec = ["gymnasium.envs.classic_control.cartpole:CartPoleEnv:ppo", *TOY[1:]]
    train(tmp_path, *spec).refused(2, "key", "damaged")
