"""Names of options with every version of typer, and results of `train`."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import typer.models

import cadenza.cli
from cadenza import __main__ as program
from cadenza.cli.main import EXAMPLES
from cadenza.cli.main import load as load_command
from cadenza.cli.output import folded_table, print_table, visible
from cadenza.cli.seeds import Seeds, last_result
from cadenza.cli.train import amount
from cadenza.config.convert import walk
from cadenza.config.foreign_names import our_names
from cadenza.config.load import load
from cadenza.config.schema import Phase, RunConfig
from cadenza.lab.sweeps.wandb_agent import PARAMETERS, SWEEP
from harness import command


def test_an_option_with_a_metavar_declares_its_flag() -> None:
    """typer 0.27 mistakes such a metavar for the flag and turns it into `--FORMAT`."""
    count = 0
    for module in pkgutil.iter_modules(cadenza.cli.__path__, "cadenza.cli."):
        for function in vars(importlib.import_module(module.name)).values():
            if not inspect.isfunction(function) or function.__module__ != module.name:
                continue
            try:
                hints = get_type_hints(function, include_extras=True)
            except NameError:  # no command: typer, too, must find every name
                continue
            for name, hint in hints.items():
                for option in getattr(hint, "__metadata__", ()):
                    if isinstance(option, typer.models.OptionInfo):
                        count += 1
                        alike = (option.metavar or "").lower() == name
                        has_flag = option.param_decls or option.default is not ...  # in Annotated, the first is there
                        assert has_flag or not alike, f"{function.__name__}: {name}"
    assert count > 100


@pytest.mark.parametrize("text", ["100000", "100_000", "1e5", "100k", "0.1M"])
def test_amounts_are_written_as_people_write_them(text: str) -> None:
    assert amount(text) == 100_000


@pytest.mark.parametrize(("text", "value"), [("4.1M", 4_100_000), ("16.1k", 16_100), ("1.1e3", 1100), ("-1", -1)])
def test_fractions_of_a_unit_are_exact(text: str, value: int) -> None:
    assert amount(text) == value


@pytest.mark.parametrize("text", ["1.5", "x", "", "-", "k", "nan", "snan", "inf", "1e999", "1e999999999", "1.0001k"])
def test_an_amount_that_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a whole number"):
        amount(text)


def test_an_amount_that_must_be_positive_is_refused() -> None:
    command.cadenza("smoke", "--timesteps", "-3").refused(2, "--timesteps", "must be at least 1")
    command.cadenza("train", "toy/identity:ppo", "--max-timesteps", "-1").refused(2, "training.max_timesteps=-1")
    for arguments in (("sweep", "none.yaml"), ("tune", "toy/identity:ppo")):
        command.cadenza(*arguments, "--max-timesteps", "0").refused(2, "--max-timesteps", "must be at least 1")


def test_a_budget_means_what_the_command_does_with_it() -> None:
    meanings = {"train": "Stop after N", "resume": "Set a new budget of N", "sweep": "Default: the file's"}
    for name, meaning in meanings.items():
        help = " ".join(str(option.help) for option in load_command(name).params if "max_" in str(option.name))
        assert meaning in help


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("CartPole-v1:ppo", "--lr", "1"),
            "no option --lr: settings are written without dashes, algorithm.learning_rate",
        ),
        (("CartPole-v1:ppo", "--gamma", "1"), "algorithm.gamma=VALUE"),
        (("CartPole-v1:ppo", "--ent-coef", "1"), "algorithm.entropy_coef=VALUE"),
        (("Pendulum-v1:sac", "--ent-coef", "1"), "algorithm.temperature=VALUE"),
        (("Pendulum-v1:tdmpc", "--temperature", "1"), "algorithm.planning.temperature=VALUE"),
        (("--algo", "ppo", "--env", "CartPole-v1"), "one argument, as in `cadenza train CartPole-v1:ppo`"),
        (("CartPole-v1:ppo", "--sed", "1"), "--seed"),
        (("CartPole-v1:ppo", "lr=1"), "did you mean 'algorithm.learning_rate'?"),
        (("CartPole-v1:ppo", "algorithm.clip_coef=1"), "did you mean 'algorithm.clip_range'?"),
        (("CartPole-v1:ppo", "n_rollout_threads=1"), "did you mean 'environment.num_envs'?"),
        (("CartPole-v1:dqn", "algorithm.learning_starts=1"), "did you mean 'algorithm.warmup_steps'?"),
        (("Pendulum-v1:sac", "algorithm.ent_coef=1"), "did you mean 'algorithm.temperature'?"),
        (("--list-envs", "CartPole"), "no option --list-envs: `cadenza envs [FILTER]` lists the environments"),
        (("--config-name=fast",), "no option --config-name: SPEC names it without an option, `cadenza train NAME`"),
        (("--config_id", "CartPole-v1:ppo"), "no option --config_id: SPEC names it"),
        (("--resume", "x"), "no option --resume: `cadenza resume RUN` continues a run"),
        (("+experiment=CartPole-v1/pp",), "did you mean 'CartPole-v1/ppo'?"),
    ],
)
def test_names_of_other_libraries_lead_to_ours(arguments: tuple[str, ...], message: str) -> None:
    command.cadenza("train", *arguments).refused(2, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--run-id", "x"), "a new run makes its own id, --name names it; `cadenza resume RUN` continues one"),
        (("play", "--run-id", "x"), "RUN is written without an option, `cadenza play @last`"),
        (("compare", "--run", "x"), "RUN is written without an option, `cadenza compare @last`"),
        (("plan", "--config", "x"), "`cadenza plan NAME` or `cadenza plan FILE`"),
        (("sweep", "--config", "x"), "FILE is written without an option, `cadenza sweep FILE`"),
        (("evaluate", "--config", "x"), "the run's own config is used, `cadenza evaluate RUN`"),
    ],
)
def test_an_option_of_other_programs_is_answered_for_the_command(arguments: tuple[str, ...], message: str) -> None:
    command.cadenza(*arguments).refused(2, message)


def test_every_foreign_name_stands_for_a_setting() -> None:
    algorithms = ("ppo", "sac", "dqn", "tdmpc")
    data = [{"algorithm": {"name": name}} for name in algorithms]
    keys = {key for one in data for key, _, _ in walk(RunConfig, data=one)} | {key for key, _, _ in walk(Phase)}
    ours = {one for targets in our_names().values() for one in targets}
    assert [one for one in ours if not {one, f"algorithm.{one}"} & keys] == []


def test_a_command_without_its_spec_or_run_says_what_to_try() -> None:
    for example in EXAMPLES:
        load(example)
    command.cadenza("train").refused(2, "SPEC is missing", *EXAMPLES, "cadenza envs")
    command.cadenza("evaluate").refused(2, "RUN is missing", "@last", "cadenza list")


@pytest.mark.parametrize("name", ["list", "top", "cleanup"])
def test_a_file_in_place_of_the_folder_of_runs_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.touch()
    options = ("--keep-best", "1") if name == "cleanup" else ()
    command.cadenza(name, *options, "--runs-dir", file).refused(2, f"--runs-dir {file}: it is a file")


def test_an_interrupt_while_the_command_line_is_imported_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "cadenza.cli.main":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "cadenza.cli.main")
    with pytest.raises(SystemExit) as left:
        program.main()
    assert left.value.code == 130


def test_hidden_commands_are_not_suggested() -> None:
    outcome = command.cadenza("trail")
    assert outcome.code == 2
    assert "'train'" in outcome.err
    assert "'trial'" not in outcome.err


def test_control_characters_in_names_are_escaped() -> None:
    assert visible("evil\x1b[2J\x1b]0;t\x07 a\u00a0b\nc") == r"evil\x1b[2J\x1b]0;t\x07 a\xa0b c"
    assert visible("Größe ≥ 1") == "Größe ≥ 1"


def test_a_failed_seed_has_no_result_even_if_its_environment_printed_json() -> None:
    assert last_result("hello\n") is last_result("") is last_result("[1]\n") is None
    assert last_result('hello\n{"run": "a"}\n') == {"run": "a"}


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for a training is a shell script")
def test_a_seed_may_write_anything_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = tmp_path / "training"
    training.write_text("#!/bin/sh\nprintf '\\377 from a library\\n' >&2\necho '{\"run\": \"a\"}'\n")
    training.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(training))
    assert Seeds(quiet=False, jobs=2).train(1) == (0, {"run": "a"})
    assert capsys.readouterr().err == "seed 1: \\xff from a library\n"


def test_several_seeds_under_a_wandb_agent_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "sweep.yaml"
    settings.write_text("wandb_version: 1\nalgorithm.gamma: {value: 0.9}\n")
    monkeypatch.setenv(SWEEP, "s")
    monkeypatch.setenv(PARAMETERS, str(settings))
    refused = command.cadenza("train", "toy/identity:ppo", "--seed", "1,2", "--runs-dir", tmp_path)
    assert refused.code == 2
    assert "make the seed a parameter of the sweep" in refused.err


def test_a_folded_table_breaks_sentences_and_no_names(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    rows = [("mpe", "mpe/simple_speaker_listener_v4", "particles that move and talk, in games for teams (MPE2)")]
    Console(width=60).print(folded_table(("family", "for example", "what"), rows, (), 60))
    lines = capsys.readouterr().out.splitlines()
    assert any("mpe/simple_speaker_listener_v4" in line for line in lines)
    assert max(map(len, lines)) <= 60


def test_a_folded_table_keeps_numbers_and_folds_ids_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    head, numbers = ("run", "status", "return", "time"), ("return", "time")
    rows = [("CartPole-v1-ppo-s1-20261119-215451-8712", "finished", "223.8", "0:00:02")]
    for room in (66, 50):  # in less, a row is a paragraph
        Console(width=room).print(folded_table(head, rows, numbers, room))
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines())) <= room
        assert all(text in printed for text in ("status", "return", "finished", "223.8", "0:00:02"))
        assert (rows[0][0] in printed) == (room == 66)


def test_a_row_is_a_paragraph_where_no_table_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    name = "CartPole-v1-ppo-s1-20261119-215451-8712"
    print_table(
        ("run", "status", "env_steps", "time"), [(name, "finished", "20,224", "0:00:02")], ("env_steps", "time")
    )
    assert capsys.readouterr().out.splitlines() == [name, "  status finished, env_steps 20,224,", "  time 0:00:02", ""]
