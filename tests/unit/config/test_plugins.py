from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cadenza
from cadenza.config import plugins, registry
from cadenza.config.convert import build
from cadenza.config.load import load
from cadenza.config.schema import RunConfig
from cadenza.engine.build import assemble
from cadenza.engine.launch import check
from cadenza.errors import ConfigError, NotFoundError
from cadenza.records.trust import code_named

PARTS = """
import gymnasium
import torch

import cadenza
from cadenza.workflows.ppo import PPO
from cadenza.workflows.ppo_config import PPOConfig

cadenza.register_algorithm("my_ppo", config=PPOConfig)(PPO)
cadenza.register_environment("mine/pole")(lambda: gymnasium.make("CartPole-v1"))
cadenza.register_optimizer("my_adam")(torch.optim.Adam)


@cadenza.register_schedule("steady")
def steady(now, horizon):
    return 0.001


@cadenza.register_sink("silent")
def silent(warn):
    return lambda event: None


@cadenza.register_estimator("myopic")
def myopic(reward, value, next_value, ends, gamma, lam):
    return reward - value


@cadenza.register_network("flat")
class Flat(torch.nn.Module):
    def __init__(self, space):
        super().__init__()
        self.features = space.shape[0]

    def forward(self, obs):
        return obs["vector"]
"""
MORE = """
from harness import own_parts

cadenza.register_dynamics("gated")(own_parts.Gated)
cadenza.register_decoder("numbers")(own_parts.Numbers)
cadenza.register_head("laplace")(own_parts.Laplace)
cadenza.register_planner("best")(own_parts.best_sample)
"""
CONFIG = """
plugins: [my_parts]
spec: mine/pole:my_ppo
algorithm: {optimizer: {name: my_adam}, learning_rate: steady, torso: {encoder: flat}, advantage: myopic}
logging: {sinks: [silent]}
training: {max_timesteps: 1024}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module that registers parts; what it registers is forgotten afterwards."""
    (tmp_path / "my_parts.py").write_text(PARTS)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    tables: list[dict[str, Any]] = [registry.ALGORITHMS, registry.ENVIRONMENTS, *plugins._registered.values()]
    before = [dict(table) for table in tables]
    yield tmp_path
    sys.modules.pop("my_parts", None)
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which knows of no decorator yet."""
    return subprocess.run([sys.executable, "-m", "cadenza", *arguments], capture_output=True, text=True, env=os.environ)


def test_decorated_parts_in_yaml_train_and_resume_in_another_process(folder: Path) -> None:
    trained = command("train", "mine.yaml", "--quiet", "--runs-dir", "runs")
    assert trained.returncode == 0, trained.stderr
    resumed = command("resume", "@last", "--max-timesteps", "2048", "--quiet", "--runs-dir", "runs")
    assert resumed.returncode == 0, resumed.stderr
    config = cadenza.Run.find("@last", "runs").folder.read_config()
    assert (config.plugins, config.algorithm.name) == (("my_parts",), "my_ppo")


def test_decorated_parts_on_the_command_line(folder: Path) -> None:
    config = load("mine/pole:my_ppo", ["plugins=[my_parts]", "algorithm.optimizer.name=my_adam"])
    assert (config.environment.id, config.algorithm.optimizer.name) == ("mine/pole", "my_adam")


def test_plugins_of_the_command_line_replace_those_of_a_file(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="mine/pole"):
        load("mine.yaml", ["plugins=[]"])
    assert "my_parts" not in sys.modules
    assert load("mine.yaml", ["++plugins=[my_parts]"]).plugins == ("my_parts",)


def test_decorated_parts_of_algorithms(folder: Path) -> None:
    (folder / "my_parts.py").write_text(f"{PARTS}\n{MORE}")
    mine = ["plugins=[my_parts]"]
    tdmpc = load("Pendulum-v1:tdmpc2", [*mine, "algorithm.dynamics=gated", "algorithm.planner=best"]).algorithm
    assert (tdmpc.dynamics.name, tdmpc.planner.name) == ("gated", "best")
    config = load("Pendulum-v1:dreamer_v3", [*mine, "algorithm.decoder=numbers", "algorithm.returns=myopic"])
    assert (config.algorithm.decoder.name, config.algorithm.returns.name) == ("numbers", "myopic")
    config = load("Pendulum-v1:ppo", [*mine, "algorithm.head=laplace"])
    decisions: dict[str, Any] = {}
    assemble(config, check(config), decisions).close()
    assert decisions["runtime.kernels.reason"] == "runtime.kernels: torch: no hand-written kernel knows laplace"


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ("[my_prts]", "plugins: cannot import 'my_prts': No module named 'my_prts'"),
        ("['my parts']", "plugins: 'my parts' must be the name of a module"),
        ("my_parts", "plugins='my_parts': must be a list of words"),
        ("[a", "'plugins=[a' cannot be read ("),
        ("{a", "'plugins={a' cannot be read ("),
    ],
)
def test_mistakes_are_one_line(modules: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load("CartPole-v1:ppo", [f"plugins={modules}"])
    assert str(caught.value).startswith(message)


def test_a_module_that_fails_is_named(folder: Path) -> None:
    (folder / "my_parts.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="plugins: cannot import 'my_parts': ZeroDivisionError"):
        build(RunConfig, {"plugins": ["my_parts"], "algorithm": {"name": "ppo"}})


def test_a_strangers_plugins_are_code() -> None:
    assert code_named({"plugins": ["os"], "algorithm": {"name": "ppo"}}) == ["os"]


def test_name_that_a_module_lacks_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="has no attribute 'RAdm'; did you mean 'RAdam'"):
        plugins.load("optimizer", "torch.optim:RAdm")
