from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cadenza.config.convert import to_dict
from cadenza.config.load import finish, load
from cadenza.config.schema import Hook, Phase
from cadenza.engine.scheduler import PhaseScheduler
from cadenza.errors import ConfigError, NotFoundError
from cadenza.tools.bench import process
from cadenza.tools.bench.contestants import CADENZA, PEERS, Contestant, find_installed, select_peers
from cadenza.tools.bench.peers.cadenza import config_of
from cadenza.tools.bench.tasks import ALGORITHMS, BenchTask, SACSettings, find, shipped
from cadenza.workflows.sac_config import SACConfig

TASKS = shipped()


@pytest.mark.parametrize("name", TASKS)
def test_a_task_survives_a_round_trip_through_its_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(to_dict(TASKS[name])))
    assert find(str(file)) == TASKS[name]


@pytest.mark.parametrize("name", TASKS)
def test_the_config_of_cadenza_contains_the_whole_task(name: str) -> None:
    task = TASKS[name]
    config = finish(config_of(task.order()))
    assert (config.environment.id, config.environment.num_envs) == (task.env, task.num_envs)
    assert config.algorithm.name == task.algorithm
    assert config.algorithm.gamma == task.settings.gamma
    assert not getattr(config.algorithm, "normalize_obs", False)  # a world model has no such setting
    assert config.experiment is None  # nothing of a tuned one
    assert (config.evaluation.every_steps, config.evaluation.at_end) == (None, False)


def test_cadenzas_ppo_has_the_settings_of_the_task() -> None:
    task = TASKS["ppo-cartpole"]
    algorithm = finish(config_of(task.order())).algorithm
    assert task.ppo is not None
    assert algorithm.minibatch(task.num_envs) == task.ppo.batch_size
    assert algorithm.actor.hidden_sizes == algorithm.critic.hidden_sizes == task.ppo.hidden_sizes


def test_cadenzas_dqn_is_the_tuned_experiment() -> None:
    ours = finish(config_of(TASKS["dqn-cartpole"].order())).algorithm
    assert ours == load("CartPole-v1:dqn").algorithm


def test_cadenzas_sac_is_the_plain_one() -> None:
    assert finish(config_of(TASKS["sac-halfcheetah"].order())).algorithm == SACConfig()


@pytest.mark.parametrize(
    ("name", "timesteps", "whole", "updates"),
    [
        ("ppo-cartpole", 1025, 2048, 2 * 4 * 10),
        ("dqn-cartpole", 20_000, 768 + 76 * 256, 76 * 128),
        ("dqn-cartpole", 1025, 768 + 2 * 256, 2 * 128),
        ("dqn-cartpole", 10, 768 + 256, 128),  # nothing would be learned before
        ("sac-halfcheetah", 4000, 4000, 3000),
        ("dreamer-cartpole", 160, 160, 32),
    ],
)
def test_only_complete_iterations_are_measured(name: str, timesteps: int, whole: int, updates: int) -> None:
    task = replace(TASKS[name], timesteps=timesteps)
    assert task.timesteps == whole
    assert task.order()["updates"] == updates


@pytest.mark.parametrize(("train_every", "gradient_steps"), [(1, 1), (3, 1), (3, 2), (6, 7), (49, 1), (256, 128)])
def test_cadenza_updates_as_often_as_asked(train_every: int, gradient_steps: int) -> None:
    settings = SACSettings(train_every=train_every, gradient_steps=gradient_steps, warmup_steps=0)
    algorithm = finish(config_of(BenchTask("Pendulum-v1", 1, 1000, sac=settings).order())).algorithm
    train = Phase("train", (Hook("collect", steps=train_every), Hook("update", ratio=algorithm.update_ratio)))
    scheduler = PhaseScheduler((train,))
    for _ in range(50):
        scheduler.advance(train_every, env_steps=train_every)
        task = scheduler.next()
        assert task is not None
        assert (task.hook.name, task.amount) == ("update", gradient_steps)
        scheduler.advance(gradient_steps)


def test_cadenzas_dreamer_has_the_settings_that_all_peers_support() -> None:
    algorithm = finish(config_of(TASKS["dreamer-cartpole"].order())).algorithm
    assert algorithm.updates_per_env_step(1) == 1.0
    assert (algorithm.model.cell, algorithm.model.norm, algorithm.stored_latents) == ("norm_gru", "layer", False)
    assert (algorithm.replay_value_scale, algorithm.optimizer.name, algorithm.optimizer.agc) == (0.0, "adam", 0.0)


@pytest.mark.parametrize(
    ("text", "problem", "word"),
    [
        ("{", ConfigError, "not JSON"),
        ('{"env": "CartPole-v1", "num_env": 8}', ConfigError, "did you mean 'num_envs'"),
        ('{"env": "CartPole-v1", "num_envs": 8, "timesteps": 100}', ConfigError, "the algorithm is missing: .* dqn"),
        (
            '{"env": "CartPole-v1", "num_envs": 8, "timesteps": 100, "dqn": {}, "sac": {}}',
            ConfigError,
            "dqn and sac are both given: settings under one of",
        ),
        (
            '{"env": "CartPole-v1", "num_envs": 1, "timesteps": 100, "dqn": {"gama": 1}}',
            ConfigError,
            "unknown key 'dqn.gama'; did you mean 'dqn.gamma'",
        ),
        (
            '{"env": "CartPole-v1", "num_envs": 1, "timesteps": 100, "sac": {"gradient_steps": 0}}',
            ConfigError,
            "sac.gradient_steps=0: must be at least 1",
        ),
        (
            '{"env": "CartPole-v1", "num_envs": 3, "timesteps": 100, "dqn": {}}',
            ConfigError,
            "dqn.train_every=4: must be a multiple of num_envs=3",
        ),
        (
            '{"env": "CartPole-v1", "num_envs": 1, "timesteps": 100, "sac": {"train_every": 64}}',
            ConfigError,
            "sac.warmup_steps=1000: must be a multiple of sac.train_every=64",
        ),
        (
            '{"env": "CartPole-v1", "num_envs": 1, "timesteps": 100, "dqn": {"target_every": 10}}',
            ConfigError,
            "dqn.target_every=10: must be a multiple of dqn.train_every=4",
        ),
        (
            '{"env": "CartPole-v1", "num_envs": 8, "timesteps": 100, "ppo": {"n_steps": 3, "batch_size": 7}}',
            ConfigError,
            "must divide the rollout of 8 x 3",
        ),
    ],
)
def test_invalid_task_files_name_the_key(text: str, problem: type[Exception], word: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(problem, match=word):
        find(str(file))


def test_unknown_tasks_and_peers_name_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'ppo-halfcheetah'"):
        find("ppo-halfcheeta")
    with pytest.raises(NotFoundError, match="no file"):
        find("nowhere.json")
    with pytest.raises(NotFoundError, match="did you mean 'skrl'"):
        select_peers("sb3,skr")


def test_peers_are_selected_by_name() -> None:
    assert select_peers("none") == []
    assert [peer.name for peer in select_peers("all")] == list(PEERS)
    assert [peer.name for peer in select_peers("skrl, sb3")] == ["skrl", "sb3"]


def test_the_first_interpreter_with_the_package_is_used(tmp_path: Path) -> None:
    absent = Contestant("absent", "no_such_package_anywhere", ("absent",), {})
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    installed, missing = find_installed([CADENZA, absent], [str(wrapper), sys.executable])
    assert [(one.contestant, one.python) for one in installed] == [(CADENZA, str(wrapper))]
    assert missing == [absent]


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_peer_folder").mkdir()
    monkeypatch.chdir(tmp_path)
    peer = Contestant("folder", "some_peer_folder", ("folder",), {})
    assert find_installed([peer], [sys.executable]) == ([], [peer])


def test_a_file_that_is_no_interpreter_is_refused() -> None:
    with pytest.raises(NotFoundError, match="--python /nowhere/python"):
        find_installed([CADENZA], ["/nowhere/python"])


def test_contestants_implement_the_algorithms_that_they_declare() -> None:
    for one in (CADENZA, *PEERS.values()):
        body = ast.parse(one.file.read_text()).body
        named = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
        defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        defined |= {target.id for target in named if isinstance(target, ast.Name)}
        assert defined & set(ALGORITHMS) == set(one.notes), one.name


def test_modules_of_peers_import_nothing_of_cadenza() -> None:
    for peer in PEERS.values():
        assert "cadenza" not in imported(peer.file), peer.name
    assert imported(Path(process.__file__)) <= set(sys.stdlib_module_names)


def imported(file: Path) -> set[str]:
    """Return the top-level packages that a file imports, without those for type checkers."""
    modules: set[str] = set()
    pending: list[ast.AST] = [ast.parse(file.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            modules |= {name.name.partition(".")[0] for name in node.names}
        if isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
        pending += ast.iter_child_nodes(node)
    return modules
