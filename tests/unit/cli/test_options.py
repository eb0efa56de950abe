"""Names of options with every version of typer, and results of `train`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import get_type_hints

import pytest
import typer.models

import cadenza.cli
from cadenza.cli.output import visible
from cadenza.cli.seeds import last_result
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


def test_control_characters_in_names_are_escaped() -> None:
    assert visible("evil\x1b[2J\x1b]0;t\x07 a\u00a0b\nc") == r"evil\x1b[2J\x1b]0;t\x07 a\xa0b c"
    assert visible("Größe ≥ 1") == "Größe ≥ 1"


def test_a_failed_seed_has_no_result_even_if_its_environment_printed_json() -> None:
    assert last_result("hello\n") is last_result("") is last_result("[1]\n") is None
    assert last_result('hello\n{"run": "a"}\n') == {"run": "a"}


def test_several_seeds_under_a_wandb_agent_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "sweep.yaml"
    settings.write_text("wandb_version: 1\nalgorithm.gamma: {value: 0.9}\n")
    monkeypatch.setenv(SWEEP, "s")
    monkeypatch.setenv(PARAMETERS, str(settings))
    refused = command.cadenza("train", "toy/identity:ppo", "--seed", "1,2", "--runs-dir", tmp_path)
    assert refused.code == 2
    assert "make the seed a parameter of the sweep" in refused.err
