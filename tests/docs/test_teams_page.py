"""The commands of docs/teams.md that set what single groups learn with, and its example, run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from harness.command import last, train
from harness.page_snippets import run_page

FILE = Path(__file__).parents[2] / "docs" / "teams.md"
PAGE = FILE.read_text()
COMMANDS = re.findall(r"^cadenza (train .*algorithm\.groups=.*)$", PAGE, re.MULTILINE)


def test_the_page_has_commands_for_single_groups() -> None:
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_for_single_groups_trains(command: str, tmp_path: Path) -> None:
    arguments = shlex.split(command)[1:]
    train(tmp_path, *arguments, "pace=debug", "evaluation.every_steps=null", "--max-timesteps", "64").succeeded()
    assert last(tmp_path).read_status()["status"] == "finished"


def test_the_example_of_a_factor_of_ones_own_trains(tmp_path: Path) -> None:
    run_page(FILE, tmp_path)
    assert len(list((tmp_path / "runs").glob("toy_trio-*"))) == 1
