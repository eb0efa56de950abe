"""Algorithms and environments from outside cadenza."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, make_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from cadenza import train
from cadenza.config import registry
from cadenza.config.load import load
from cadenza.config.schema import EnvironmentConfig
from cadenza.config.spec import split
from cadenza.envs.catalog import listing, make
from cadenza.errors import CadenzaError, ConfigError, NotFoundError
from cadenza.types import Acted, Updated
from harness.command import cadenza
from harness.lab import Lab
from harness.memory import Memory, MemoryConfig

MODULE = """
from dataclasses import dataclass
import gymnasium
from gymnasium import spaces
from cadenza.config.registry import Algorithm, Family, register_algorithm
from cadenza.workflows.ppo_config import PPOConfig

@dataclass(frozen=True)
class MineConfig(PPOConfig):
    name: str = "mine"

@register_algorithm("mine", config=MineConfig, summary="mine alone")
class Mine:
    pass

entry = Algorithm("yours", "another's", "outside:MineConfig", "outside:Mine")

class Plain:
    Config = MineConfig

class Cliff(gymnasium.Env):
    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)
    def __init__(self, height=1):
        self.height = height
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}
    def step(self, action):
        return 1, float(self.height), True, False, {}

class Bad(Cliff):
    def __init__(self):
        raise OSError("no camera")

family = Family("caves", "dark places", "outside_caves")
lost = Family("caves", "dark places", "nowhere")
"""
CAVES = """
from cadenza.envs.families.gym import Gym
from outside import Cliff

def ids(family):
    return ["caves/deep-v1", "caves/deep-v2"]

def make(config, render=False):
    return Gym(Cliff(), config)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None) -> Path:
    """A package outside cadenza, as pip would leave it."""
    (tmp_path / "outside.py").write_text(MODULE)
    (tmp_path / "outside_caves.py").write_text(CAVES)
    metadata = tmp_path / "outside-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[cadenza.algorithms]\nmine = outside:Mine\nyours = outside:entry\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("outside", "outside_caves"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return metadata


def test_entry_points_bring_algorithms(installed: Path) -> None:
    assert registry.load_algorithms() == {}
    assert {"ppo", "mine", "yours"} <= set(registry.ALGORITHMS)
    assert registry.algorithm("mine").summary == "mine alone"
    assert load("toy/identity:mine").algorithm.name == "mine"


def test_an_entry_point_that_is_broken_hides_no_other(installed: Path) -> None:
    (installed / "entry_points.txt").write_text("[cadenza.algorithms]\nother = outside\nyours = outside:entry\n")
    outcome = cadenza("algorithms").succeeded()
    assert "yours" in outcome.out
    assert outcome.err == "note: entry point 'outside' registers no algorithm called 'other'\n"


def test_environments_that_cannot_be_made_are_listed_as_such(installed: Path) -> None:
    points = {"caves": "lost", "mine/gone": "Nothing", "mine/bad": "Bad", "mine/cliff": "Cliff"}
    lines = [f"{name} = outside:{what}" for name, what in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[cadenza.environments]", *lines]))
    outcome = cadenza("envs", "mine", "--json").succeeded()
    rows = {row["id"]: row for row in json.loads(outcome.out)["environments"]}
    assert (rows["mine/cliff"]["observation"], rows["mine/cliff"]["error"]) == ("Discrete(3)", None)
    assert rows["mine/bad"]["error"] == "environment mine/bad cannot be made (OSError: no camera)"
    assert "outside:Nothing' in cadenza.environments cannot be loaded" in rows["mine/gone"]["error"]
    assert outcome.err.splitlines() == [f"note: {rows[id]['error']}" for id in ("mine/bad", "mine/gone")]
    for id, message in (
        ("CartPoole-v1", "unknown environment 'CartPoole-v1'; did you mean 'CartPole-v1'"),
        ("mine/gone", "outside:Nothing' in cadenza.environments cannot be loaded"),
        ("caves/deep", "cannot import 'nowhere:ids'"),
    ):
        with pytest.raises(CadenzaError, match=message):
            make(EnvironmentConfig(id=id))


def test_wrappers_of_other_packages_are_looked_for_once(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (installed / "entry_points.txt").write_text("[cadenza.wrappers]\nUpsideDown = harness.user_wrappers:Doubled\n")
    searches: list[dict[str, str]] = []

    def counted(**query: str) -> Any:
        searches.append(query)
        return entry_points(**query)

    monkeypatch.setattr(registry, "entry_points", counted)
    for names in (("SignReward",), ("UpsideDown", "TimeAwareObservation"), ("UpsideDown",)):
        make(EnvironmentConfig(id="CartPole-v1", wrappers=names))
        assert len(searches) == (0 if names == ("SignReward",) else 1)


def test_an_environment_in_the_current_folder_is_found_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lying_here.py").write_text("from cadenza.envs.toys.toy import Identity as make\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    load("CartPole-v1:ppo")
    assert str(tmp_path) not in sys.path  # a stranger's folder is no place to import from
    assert make(EnvironmentConfig(id="lying_here:make")).spec.id == "lying_here:make"
    with pytest.raises(ConfigError, match="cannot import 'nowhere:x'"):
        make(EnvironmentConfig(id="nowhere:x"))


def test_entry_points_bring_environments_and_families(installed: Path) -> None:
    points = "[cadenza.environments]\nmine/cliff = outside:Cliff\ncaves = outside:family\n"
    (installed / "entry_points.txt").write_text(points)
    env = make(EnvironmentConfig(id="mine/cliff", kwargs={"height": 4}))
    env.reset(0)
    assert env.step({"agent": np.array([1])}).reward["agent"].tolist() == [4.0]
    assert make(EnvironmentConfig(id="caves/deep")).spec.id == "caves/deep-v2"
    assert [(row["id"], row["family"]) for row in listing("cliff")][-1] == ("mine/cliff", "mine")
    assert [row["id"] for row in listing("caves")] == ["caves/deep-v1", "caves/deep-v2"]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("[cadenza.environments]\nmine/x = outside:Nothing\n", "'mine/x = outside:Nothing' in cadenza.environments"),
        ("[cadenza.environments]\nmine/x = outside:__name__\n", "neither a Family nor a function"),
        ("[cadenza.algorithms]\nother = elsewhere:Other\n", "No module named 'elsewhere'"),
    ],
)
def test_entry_points_that_lead_nowhere_are_named(installed: Path, points: str, message: str) -> None:
    (installed / "entry_points.txt").write_text(points)
    with pytest.raises(ConfigError, match=message):
        load("mine/x:other" if "mine/x" in points else "toy/identity:other")
    load("toy/identity:ppo")  # what is not asked for cannot hurt


def test_an_algorithm_by_its_import_path(installed: Path) -> None:
    config = load("toy/identity:outside:Plain", ["algorithm.gamma=0.5"])
    assert (config.algorithm.name, config.algorithm.gamma) == ("outside:Plain", 0.5)
    assert load("outside:Cliff:outside:Plain").environment.id == "outside:Cliff"
    assert load("toy/identity:ppo", ["algorithm.name=outside:Plain"]).algorithm.name == "outside:Plain"
    with pytest.raises(ConfigError, match=r"'outside:Cliff' must be a workflow class that names its settings: Config"):
        load("toy/identity:outside:Cliff")
    with pytest.raises(ConfigError, match="cannot import 'outside:Plan'"):
        load("toy/identity:outside:Plan")


@pytest.mark.parametrize(
    ("spec", "env", "variant"),
    [
        ("CartPole-v1:ppo", "CartPole-v1", "ppo"),
        ("my.envs:make:ppo", "my.envs:make", "ppo"),
        ("my_envs:make:pppo", "my_envs:make", "pppo"),
        ("CartPole-v1:my.algorithms:Mine", "CartPole-v1", "my.algorithms:Mine"),
        ("CartPole:algorithms:Mine", "CartPole", "algorithms:Mine"),
        ("toy/nowhere:algorithms:Mine", "toy/nowhere", "algorithms:Mine"),
        ("my_envs:make:algorithms:Mine", "my_envs:make", "algorithms:Mine"),
    ],
)
def test_names_and_import_paths_in_a_spec(spec: str, env: str, variant: str) -> None:
    assert split(spec) == (env, ":", variant)


def test_misspelled_names_beside_import_paths_are_still_recognised(installed: Path) -> None:
    with pytest.raises(NotFoundError, match="unknown algorithm 'pppo'; did you mean 'ppo'"):
        load("outside:Cliff:pppo")
    with pytest.raises(NotFoundError, match="unknown environment 'CartPoole-v1'; did you mean 'CartPole-v1'"):
        load("CartPoole-v1:outside:Plain")


def register(workflow: type, config: type) -> None:
    registry.register_algorithm("unfinished", config=config)(workflow)


def test_what_a_workflow_lacks_is_named(installed: Path, lab: Lab) -> None:
    class Unfinished:
        hooks = ("update", "dream")

        def update(self) -> None: ...

        def act(self) -> None: ...

    register(Unfinished, MemoryConfig)
    lacks = "state_dict, load_state_dict, stores, phases, initial_carry, load_weights, dream"
    with pytest.raises(ConfigError, match=rf"algorithm unfinished: Unfinished lacks the method\(s\) {lacks}$"):
        lab.start(load("toy/identity:unfinished"))
    register(type("NoHooks", (Memory,), {"hooks": "update"}), MemoryConfig)
    with pytest.raises(ConfigError, match="lacks hooks, a tuple of the names of its update methods"):
        lab.start(load("toy/identity:unfinished"))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"explain": lambda self, steps: None}, r"Odd\.explain\(self, steps\) must take \(self, steps, carry, mode\)"),
        ({"explain": None}, r"Odd\.explain must be a method \(self, steps, carry, mode\), not a NoneType"),
        ({"deployed": lambda self: None}, r"Odd\.deployed\(self\) must take \(self, group\)"),
        ({"imagine": lambda self, drawn, known, generator: None}, "Odd has imagine and lacks imagines"),
    ],
)
def test_optional_methods_with_other_arguments_are_refused(members: dict[str, Any], message: str) -> None:
    odd = type("Odd", (Memory,), members)
    with pytest.raises(ConfigError, match=f"^algorithm odd: {message}"):
        registry.register_algorithm("odd", config=MemoryConfig)(odd)


@pytest.mark.parametrize(
    ("member", "answer", "message"),
    [
        ("phases", (), r"Wrong\.phases\(\) names no phase, so nothing would be trained"),
        ("update", None, r"Wrong\.update must return Updated\(updates, metrics\), not NoneType"),
        ("update", Updated(1, {"train/x": np.zeros(3)}), r"metric 'train/x' must be one number, not \[3\]"),
        ("update", Updated(1, {"train/x": "low"}), "metric 'train/x' must be one number, not str"),
        (
            "act",
            Acted({"agent": np.full((4, 1), 0.7, np.float32)}, {"agent": {}}, {}),
            "the algorithm's actions are of float32, where group 'agent' acts in int64",
        ),
    ],
)
def test_what_a_workflow_answers_wrongly_is_named(
    member: str, answer: Any, message: str, installed: Path, tmp_path: Path
) -> None:
    register(type("Wrong", (Memory,), {member: lambda *_: answer}), MemoryConfig)
    settings: dict[str, Any] = {"training.max_timesteps": 64, "environment.num_envs": 4}
    with pytest.raises(ConfigError, match=f"^{message}$"):
        train("toy/identity:unfinished", runs_dir=tmp_path, **settings)


def test_what_an_algorithms_settings_lack_is_named(installed: Path) -> None:
    class Loose:
        name = "loose"

    @dataclass(frozen=True)
    class Nameless:
        size: int = 3

    @dataclass(frozen=True)
    class Unchecked:
        name: str = "unchecked"

    for config, message in (
        (Loose, "'Loose' must be a frozen dataclass"),
        (Nameless, "'Nameless' lacks the field name"),
        (Unchecked, "'Unchecked' lacks the method check"),
    ):
        with pytest.raises(CadenzaError, match=f"algorithm unfinished: its settings {message}"):
            register(Memory, config)


@pytest.mark.parametrize(
    ("kind", "default", "message"),
    [
        (int, None, "=null: must be a whole number$"),
        (Literal["a", "b"], "c", "='c': must be one of a, b$"),
        (float, float("inf"), "=inf: must be finite$"),
        (list[int], [64], r": the type of a setting cannot be list\[int\] \(it can be int, "),
        (Path, Path("here"), ": the type of a setting cannot be Path "),
    ],
)
def test_settings_that_a_stored_run_could_not_read_back_are_refused(
    kind: Any, default: Any, message: str, installed: Path
) -> None:
    own = field(default_factory=lambda: default)
    register(Memory, make_dataclass("Own", [("extra", kind, own)], bases=(MemoryConfig,), frozen=True))
    with pytest.raises(ConfigError, match=f"^algorithm.extra{message}"):
        load("toy/identity:unfinished")


def test_settings_without_words_can_be_explained(installed: Path) -> None:
    from cadenza.config.explain import explain

    @dataclass(frozen=True)
    class Silent(MemoryConfig):
        size: int = 3

    register(Memory, Silent)
    explanation = explain("algorithm.size", "toy/identity:unfinished", ["algorithm.size=4"])
    assert (explanation.value, explanation.default, explanation.doc, explanation.unit) == (4, 3, "", "")
