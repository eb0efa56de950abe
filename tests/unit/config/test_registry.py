"""Algorithms and environments from outside cadenza."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cadenza.config import registry
from cadenza.config.load import load
from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.catalog import make
from cadenza.errors import ConfigError

MODULE = """
from dataclasses import dataclass
from cadenza.config.registry import Algorithm, register_algorithm
from cadenza.workflows.ppo_config import PPOConfig

@dataclass(frozen=True)
class MineConfig(PPOConfig):
    name: str = "mine"

@register_algorithm("mine", config=MineConfig, summary="mine alone")
class Mine:
    pass

entry = Algorithm("yours", "another's", "outside:MineConfig", "outside:Mine")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package outside cadenza, as pip would leave it."""
    (tmp_path / "outside.py").write_text(MODULE)
    metadata = tmp_path / "outside-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[cadenza.algorithms]\nmine = outside:Mine\nyours = outside:entry\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "ALGORITHMS", dict(registry.ALGORITHMS))
    monkeypatch.delitem(sys.modules, "outside", raising=False)
    return metadata


def test_entry_points_bring_algorithms(installed: Path) -> None:
    assert {"ppo", "mine", "yours"} <= set(registry.algorithms())
    assert registry.algorithm("mine").summary == "mine alone"
    assert load("toy/identity:mine").algorithm.name == "mine"


def test_an_entry_point_that_registers_nothing_is_named(installed: Path) -> None:
    (installed / "entry_points.txt").write_text("[cadenza.algorithms]\nother = outside\n")
    with pytest.raises(ConfigError, match="'outside' registers no algorithm called 'other'"):
        registry.algorithms()


def test_an_environment_in_the_current_folder_is_found_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lying_here.py").write_text("from cadenza.envs.toy import Identity as make\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    load("CartPole-v1:ppo")
    assert str(tmp_path) not in sys.path  # a stranger's folder is no place to import from
    assert make(EnvironmentConfig(id="lying_here:make")).spec.id == "lying_here:make"
    with pytest.raises(ConfigError, match="cannot import 'nowhere:x'"):
        make(EnvironmentConfig(id="nowhere:x"))
