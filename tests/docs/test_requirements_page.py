"""docs/requirements.md has every id once, and the commands, settings, calls, pages and tests that it names exist."""

from __future__ import annotations

import ast
import re
import shlex
from contextlib import suppress
from inspect import signature

import pytest

import cadenza
from cadenza.cli.main import COMMANDS
from cadenza.cli.main import load as load_command
from cadenza.config.load import load
from cadenza.errors import MissingExtraError
from harness.requirements_page import IDS, SOURCE, TESTS, page, read

ROOT = TESTS.parent
REQUIREMENTS = read()
SHOWN = sorted({text for entry in REQUIREMENTS.values() for text in entry.shown_by})
# commands whose spec and settings are those of a run
COMPOSED = ("train", "plan", "tune", "verify", "bench collect", "bench store")


def test_every_id_is_there_once_with_a_feature_and_what_shows_it_or_is_missing() -> None:
    assert len(IDS) == 230
    assert re.findall(r"^([GHLM]\d+):$", SOURCE.read_text(encoding="utf-8"), re.MULTILINE) == IDS
    for id, entry in REQUIREMENTS.items():
        assert entry.what, id
        assert entry.missing if not entry.shown_by else entry.test, id


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    assert written == page(), (
        "write it again: PYTHONPATH=tests python -m harness.requirements_page > docs/requirements.md"
    )


def test_every_test_exists() -> None:
    for id, entry in REQUIREMENTS.items():
        for name in entry.test:
            file, _, function = name.partition("::")
            path = TESTS / file if (TESTS / file).is_file() else ROOT / file
            assert path.is_file(), f"{id}: {name}"
            assert not function or f"\ndef {function}(" in path.read_text(encoding="utf-8"), f"{id}: {name}"


@pytest.mark.parametrize("text", [text for text in SHOWN if text.startswith("cadenza ")])
def test_every_command_has_its_options_and_settings(text: str) -> None:
    """The command is parsed and its config composed, and nothing is run."""
    name, *arguments = shlex.split(text.removeprefix("cadenza "))
    assert name in COMMANDS
    command = load_command(name)
    if hasattr(command, "commands"):
        name, command = f"{name} {arguments[0]}", command.commands[arguments.pop(0)]
    given = command.make_context(name, arguments).params
    spec, overrides = given.get("spec") or given.get("resume") or given.get("run"), list(given.get("overrides") or ())
    if name not in COMPOSED or spec.startswith("@") or given.get("config_dir") or given.get("multirun"):
        return
    if own := set(re.findall(r"\bmy_\w+|\w+(?=\.yaml)", text)):
        described = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
        assert all(f"\n# {module}." in described or f"{module}.json" in text for module in own), own
        return
    with suppress(MissingExtraError):  # a family that is not installed here
        load(spec, [override for override in overrides if override != "job"])


@pytest.mark.parametrize("text", [text for text in SHOWN if not text.startswith("cadenza ")])
def test_every_call_target_and_page_exists(text: str) -> None:
    if text.startswith("cadenza."):
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        name = ast.unparse(call.func).removeprefix("cadenza.")
        arguments = [ast.literal_eval(argument) for argument in call.args]
        assert name in cadenza.__all__
        signature(getattr(cadenza, name)).bind(*arguments, **{word.arg: word.value for word in call.keywords})
    elif text.startswith("make "):
        assert f"\n{text.removeprefix('make ')}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    else:
        assert (ROOT / text).is_file()
