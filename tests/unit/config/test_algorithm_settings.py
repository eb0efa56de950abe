"""Members of an algorithm's settings that the rest of cadenza uses, and the code that may use others."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import cadenza
from cadenza.config import registry
from cadenza.config.algorithm_settings import AlgorithmSettings, adopt
from cadenza.config.load import load
from cadenza.config.schema import EnvironmentConfig, RunConfig
from cadenza.config.setting import setting
from cadenza.errors import ConfigError
from cadenza.types import EnvSpec
from harness.memory import Memory

SOURCE = Path(cadenza.__file__).parent


@dataclass(frozen=True)
class Minimal:
    name: str = setting("minimal", "name of the variant")
    n_steps: int = setting(4, "steps between updates", "vec_steps")
    n_step: int = setting(3, "steps of a return", "steps")

    def check(self, env: EnvSpec, num_envs: int) -> None:
        pass


def test_settings_with_name_and_check_alone_get_the_other_members(forgotten: None) -> None:
    registry.register_algorithm("minimal", config=Minimal)(Memory)
    settings = load("toy/identity:minimal").algorithm
    assert isinstance(settings, Minimal)
    assert isinstance(settings, AlgorithmSettings)
    assert (settings.one_graph, settings.default_groups, settings.updates_per_env_step(8)) == (False, "auto", 0.0)
    assert settings.shrunk() == settings
    assert settings.for_one_environment(8) == Minimal(n_steps=32, n_step=3)


@dataclass(frozen=True)
class Searching(Minimal):
    name: str = setting("searching", "name of the variant")
    planner: Literal["none", "mppi"] = setting("none", "search for actions")
    samples: int = setting(8, "plans in a search", least=1, needs="planner=mppi")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["planner=mppi", "samples=0"], "algorithm.samples=0: must be at least 1"),
        (["samples=4"], "algorithm.samples=4: does nothing without planner=mppi"),
    ],
)
def test_bounds_and_needs_of_a_foreign_class_are_checked(forgotten: None, overrides: list[str], message: str) -> None:
    registry.register_algorithm("searching", config=Searching)(Memory)
    assert load("toy/identity:searching", ["algorithm.planner=mppi", "algorithm.samples=4"]).algorithm.samples == 4
    with pytest.raises(ConfigError) as refusal:
        load("toy/identity:searching", [f"algorithm.{change}" for change in overrides])
    assert str(refusal.value) == message


def test_members_of_a_foreign_class_are_not_replaced() -> None:
    @dataclass(frozen=True)
    class Foreign(Minimal):
        one_graph = True
        default_groups = "agent"

        def updates_per_env_step(self, num_envs: int) -> float:
            return 1 / num_envs

    adopt("foreign", Foreign)
    settings: Any = Foreign()
    assert (settings.one_graph, settings.updates_per_env_step(4), settings.shrunk()) == (True, 0.25, settings)
    config = RunConfig(algorithm=settings, environment=EnvironmentConfig(id="toy/trio"))
    assert config.environment.groups == "agent"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"check": lambda self, env: None}, r"has check\(self, env\), which must take \(self, env, num_envs\)"),
        ({"shrunk": lambda self, budget: self}, r"has shrunk\(self, budget\), which must take \(self\)"),
        (
            {"for_one_environment": 3},
            r"must have a method for_one_environment\(self, num_envs\), not a int of that nam",
        ),
    ],
)
def test_members_with_other_arguments_are_refused_at_registration(members: dict[str, Any], message: str) -> None:
    odd = type("Odd", (Minimal,), members)
    with pytest.raises(ConfigError, match=f"^algorithm odd: its settings 'Odd' {message}"):
        registry.register_algorithm("odd", config=odd)(Memory)


def test_agents_are_groups_where_they_learn_in_turn() -> None:
    assert load("toy/trio:happo").environment.groups == "agent"
    assert load("toy/trio:happo", ["environment.groups=one"]).environment.groups == "one"
    assert load("toy/trio:ippo").environment.groups == "auto"


def test_only_workflows_know_the_settings_of_an_algorithm() -> None:
    declared = {name for name in dir(AlgorithmSettings) if not name.startswith("_")} | {"name"}
    strangers = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {node.attr}"
        for path in SOURCE.rglob("*.py")
        if path.parent.name not in ("workflows", "peers")  # the algorithms of other libraries are other objects
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "algorithm"
        and node.attr not in declared
    ]
    assert strangers == []


def test_workflows_and_settings_are_not_searched_for_attributes_by_name() -> None:
    checks = {"config/algorithm_settings.py", "config/registry.py"}  # what is declared is checked there
    searches = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).as_posix() not in checks
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and ast.unparse(node.args[0]).split(".")[-1] in ("algorithm", "workflow")
        and isinstance(node.args[1], ast.Constant)  # names that come from fields or from `hooks` are declared
        and node.args[1].value != "__name__"
    ]
    assert searches == []
