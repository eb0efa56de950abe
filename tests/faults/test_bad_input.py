"""Invalid input: one line that says what, where and what is allowed; the documented exit code; no files left."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.families import FAMILIES, Family
from cadenza.records.folder import RunFolder
from harness.command import TOY, cadenza, copied, last, resume, train

MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "key": (["CartPole-v1:ppo", "algorithm.gama=0.9"], ["'algorithm.gama'", "did you mean 'algorithm.gamma'?"]),
    "environment": (["CartPol-v1:ppo"], ["'CartPol-v1'", "did you mean 'CartPole-v1'?", "cadenza envs"]),
    "variant": (["CartPole-v1:pppo"], ["'pppo'", "did you mean 'ppo'?"]),
    "no variant": (["CartPole-v1"], ["CartPole-v1:VARIANT", "ppo"]),
    "experiment": (["CartPole-v1/pppo"], ["did you mean 'CartPole-v1/ppo'?"]),
    "type": (["CartPole-v1:ppo", "algorithm.gamma=high"], ["algorithm.gamma='high'", "must be a number"]),
    "batch": (["CartPole-v1:ppo", "algorithm.batch_size=48"], ["algorithm.batch_size=48", "does not divide", "256"]),
    "batch as a fraction": (["CartPole-v1:ppo", "algorithm.batch_size=0.3"], ["algorithm.batch_size=0.3", "256"]),
    "action space": (["harness.odd_spaces:Words:ppo"], ["Text actions", "MultiDiscrete", "Box"]),
    "action mask": (["harness.odd_spaces:Misled:ppo"], ["action mask of 2 entries", "MultiDiscrete([2 3])"]),
    "import path": (["harness.odd_spaces:Pears:ppo"], ["harness.odd_spaces:Pears"]),
    "module": (["no_such_module:Env:ppo"], ["no_such_module"]),
    "environment argument": (["CartPole-v1:ppo", "environment.kwargs={x: 1}"], ["environment.kwargs.x", "takes no"]),
    "hook": (
        ["CartPole-v1:ppo", "training.phases=[{hooks: [collect, updat]}]"],
        ["unknown hook 'updat'", "did you mean 'update'?"],
    ),
    "buffer": (
        ["CartPole-v1:ppo", "training.phases=[{hooks: [collect, update], buffer: rolout}]"],
        ["unknown buffer 'rolout'", "did you mean 'rollout'?"],
    ),
    "device": (["CartPole-v1:ppo", "device=tpu"], ["device=tpu", "cpu, cuda"]),
    "device that is not there": (["CartPole-v1:ppo", "device=cuda:99"], ["device=cuda:99", "device=cpu"]),
    "seed": (["CartPole-v1:ppo", "--seed", "one"], ["--seed", "'one'", "1,2,3"]),
    "negative seed": (["CartPole-v1:ppo", "--seed", "1,-2"], ["--seed", "negative"]),
    "seed twice": (["CartPole-v1:ppo", "--seed", "1,1"], ["--seed", "twice"]),
    "jobs": (["CartPole-v1:ppo", "--seed", "1,2", "--jobs", "0"], ["--jobs"]),
    "budget": (["CartPole-v1:ppo", "--max-timesteps", "0"], ["training.max_timesteps=0", "at least 1"]),
    "budget that is no number": (["CartPole-v1:ppo", "--max-timesteps", "ten"], ["--max-timesteps", "whole number"]),
    "no such file": (["nothing.yaml"], ["no file 'nothing.yaml'"]),
    "option": (["CartPole-v1:ppo", "--tags", "x"], ["--tags", "--tag", "cadenza train --help"]),
    "init-from": (["CartPole-v1:ppo", "--init-from", "none"], ["'none'"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_arguments_of_train_are_refused_in_one_line(mistake: str, tmp_path: Path) -> None:
    arguments, words = MISTAKES[mistake]
    train(tmp_path / "runs", *arguments).refused(2, *words)
    assert not (tmp_path / "runs").exists()


FILES = {
    "bad YAML": ("a: [1\nb: 2\n", ["spec.yaml", "line 2"]),
    "two equal keys": ("seed: 1\nseed: 2\n", ["spec.yaml", "line 2", "'seed' is given twice"]),
    "no settings": ("- 1\n", ["spec.yaml", "must hold settings"]),
    "a newer schema": ("schema_version: 99\n", ["schema_version=99", "newer"]),
    "an object": ("seed: !!python/object/apply:os.getcwd []\n", ["spec.yaml", "python/object"]),
    "a target": (
        "spec: toy/identity:ppo\nalgorithm: {_target_: os.getcwd}\n",
        ["'os:getcwd' must be a workflow class"],
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_invalid_config_files_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    text, words = FILES[case]
    (tmp_path / "spec.yaml").write_text(text)
    train(tmp_path / "runs", tmp_path / "spec.yaml").refused(2, *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["resume", "evaluate", "show", "verify", "report"])
def test_a_mistyped_run_names_the_nearest(whole: RunFolder, command: str) -> None:
    typed = whole.id.replace("identity", "idendity")
    outcome = cadenza(command, typed, "--runs-dir", whole.path.parent)
    outcome.refused(2, f"'{typed}'", f"did you mean '{whole.id}'?")


RUN_MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "checkpoint": (["evaluate", "@last", "--checkpoint", "7"], ["'7'", "best, last"]),
    "episodes": (["evaluate", "@last", "--episodes", "0"], ["--episodes"]),
    "budget": (["resume", "@last", "--max-timesteps", "0"], ["training.max_timesteps=0"]),
    "device": (["resume", "@last", "--device", "tpu"], ["device=tpu", "cpu, cuda"]),
    "device that is not there": (["resume", "@last", "--device", "cuda:99"], ["device=cuda:99"]),
    "pointer": (["resume", "@lst"], ["'@lst'", "did you mean '@last'?"]),
    "name longer than any file's": (["show", "x" * 5000], ["no run 'xxx"]),
    "best of nothing": (["resume", "@best:CartPole-v1:ppo"], ["CartPole-v1:ppo"]),
    "spec to verify": (["verify", "--resume", "CartPol-v1:ppo"], ["did you mean 'CartPole-v1'?"]),
    "nothing to verify": (["verify"], ["--resume"]),
    "filter": (["list", "--filter", "sed=1"], ["'sed'", "did you mean 'seed'?"]),
    "column": (["list", "--sort", "retrun"], ["'retrun'", "did you mean 'return'?"]),
}


@pytest.mark.parametrize("mistake", RUN_MISTAKES)
def test_invalid_arguments_of_commands_on_runs_are_refused_in_one_line(whole: RunFolder, mistake: str) -> None:
    arguments, words = RUN_MISTAKES[mistake]
    before = contents(whole.path)
    cadenza(*arguments, "--runs-dir", whole.path.parent).refused(2, *words)
    assert contents(whole.path) == before


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files but the one that names the last holder of the lock."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}
    return {str(path): content for path, content in files.items()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian", "CartPole-v1:ppo"], ["'trian'", "'train'"]),
        (["train"], ["SPEC is missing", "cadenza train --help"]),
        (["config"], ["cadenza config --help"]),
        (["config", "explain", "algorithm.gama"], ["did you mean 'algorithm.gamma'?"]),
        (["config", "migrate", "nothing.yaml"], ["no file 'nothing.yaml'"]),
        (["envs", "cartpool"], ["'cartpool'", "did you mean 'CartPole-v1'?"]),
    ],
)
def test_invalid_arguments_of_other_commands_are_refused_in_one_line(arguments: list[str], words: list[str]) -> None:
    cadenza(*arguments).refused(2, *words)


def test_a_missing_extra_names_the_line_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(FAMILIES, "absent", Family("absent", "never here", "harness.absent_family", extra="absent"))
    train(tmp_path / "runs", "absent/thing:ppo").refused(69, "absent", "pip install 'cadenza[absent]'")
    assert not (tmp_path / "runs").exists()


def test_an_impossible_runs_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    train(file, *TOY).refused(74, str(file), "it is a file", "--runs-dir")
    train(file / "below", *TOY).refused(74, str(file / "below"), "Not a directory")
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_a_deleted_current_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for arguments in (["list"], ["doctor"], ["plan", TOY[0]], ["train", *TOY]):
        cadenza(*arguments).refused(74, "the current folder has been deleted")


def test_weights_that_do_not_fit_are_refused(whole: RunFolder) -> None:
    root = whole.path.parent
    train(root, *TOY, "algorithm.actor.hidden_sizes=[8]", "--init-from", whole.id).refused(
        2, whole.id, "algorithm.actor.hidden_sizes is [64, 64] there"
    )
    assert last(root) == whole


def test_a_run_of_a_newer_version_is_refused(whole: RunFolder, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "runs")
    folder.config.path.write_text(folder.config.read_text().replace("schema_version: 2", "schema_version: 99"))
    for command in ("resume", "evaluate", "verify"):
        cadenza(command, "@last", "--runs-dir", tmp_path / "runs").refused(2, "schema_version=99", "newer")


def test_a_budget_already_spent_is_refused_and_changes_nothing(whole: RunFolder, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "runs")
    outcome = resume(tmp_path / "runs", "@last", "--max-timesteps", "1024")
    outcome.refused(2, "would end at once", "2048 of training.max_timesteps")
    assert folder.config.read_text() == whole.config.read_text()
    assert folder.read_decisions() == whole.read_decisions()
    resume(tmp_path / "runs", "@last").succeeded()
