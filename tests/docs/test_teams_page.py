"""The commands of docs/teams.md that set what single groups learn with run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from harness.command import last, train

PAGE = (Path(__file__).parents[2] / "docs" / "teams.md").read_text()
COMMANDS = re.findall(r"^cadenza (train .*algorithm\.groups=.*)$", PAGE, re.MULTILINE)


def test_the_page_has_commands_for_single_groups() -> None:
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_for_single_groups_trains(command: str, tmp_path: Path) -> None:
    arguments = shlex.split(command)[1:]
    train(tmp_path, *arguments, "pace=debug", "evaluation.every_steps=null", "--max-timesteps", "64").succeeded()
    assert last(tmp_path).read_status()["status"] == "finished"
