from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs import in_process
from cadenza.envs.in_process import InProcess
from cadenza.envs.ledger import EVAL, TRAIN, EpisodeSeeds
from cadenza.envs.native import CartPole
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import STEP, make_vector
from cadenza.envs.workers import Workers
from cadenza.errors import CheckpointError, ConfigError
from cadenza.types import GroupSpec, Step
from harness.worker_processes import worker_processes

SEEDS = EpisodeSeeds(1, TRAIN)


def chain(num_envs: int = 3, **settings: Any) -> InProcess:
    env = make_vector(EnvironmentConfig(id="toy/chain", vectorize="in_process", **settings), SEEDS, num_envs=num_envs)
    assert isinstance(env, InProcess)
    return env


def forward(env: Any) -> Any:
    return env.step({"agent": np.ones((env.num_envs, 1), np.int64)})


def test_a_step_stays_valid_during_the_next_call() -> None:
    env = chain()
    for _ in range(12):
        step = forward(env)
        copies = [
            step.obs["agent"].copy(),
            step.final_obs["agent"].copy(),
            step.reward["agent"].copy(),
            step.is_first.copy(),
        ]
        forward(env)
        arrays = [step.obs["agent"], step.final_obs["agent"], step.reward["agent"], step.is_first]
        for one, two in zip(copies, arrays, strict=True):
            assert np.array_equal(one, two)


def test_final_obs_is_obs_while_no_episode_ends() -> None:
    env = chain(1, max_episode_steps=50)
    env.reset(0)
    step = env.step({"agent": np.zeros((1, 1), np.int64)})
    assert step.final_obs["agent"] is step.obs["agent"]


def test_episodes_are_returned_once_and_numbered_from_zero() -> None:
    env = make_vector(EnvironmentConfig(id="toy/identity"), EpisodeSeeds(1, EVAL, first_env=10), num_envs=2)
    for _ in range(40):
        env.step({"agent": env.current.obs["agent"].copy()})
    episodes = env.episodes()
    assert [(e.env, e.number, e.length, e.total) for e in episodes] == [
        (10, 0, 16, 16.0),
        (11, 0, 16, 16.0),
        (10, 1, 16, 16.0),
        (11, 1, 16, 16.0),
    ]
    assert [e.seed for e in episodes] == [EpisodeSeeds(1, EVAL)(e.env, e.number) for e in episodes]
    assert env.episodes() == []


def test_reset_starts_the_numbered_episode_and_drops_the_running_one() -> None:
    env = chain()
    forward(env)
    step = env.reset(7)
    assert step is env.current
    assert step.is_first.all()
    assert not step.reward["agent"].any()
    env.episodes()
    while len(episodes := env.episodes()) == 0:
        forward(env)
    assert {(e.number, e.seed) for e in episodes} == {(7, SEEDS(e.env, 7)) for e in episodes}
    assert all(e.length == e.total for e in episodes)


def test_long_episodes_keep_all_their_actions() -> None:
    env = make_vector(EnvironmentConfig(id="CliffWalking-v1", max_episode_steps=700), SEEDS, num_envs=2)
    rng = np.random.default_rng(0)
    actions = rng.choice([0, 3], (1500, 2, 1))  # up and left: never the goal
    for action in actions:
        env.step({"agent": action})
    episodes = env.episodes()
    assert [e.length for e in episodes] == [700] * 4
    for episode in episodes:
        start = 700 * episode.number
        assert np.array_equal(episode.actions["agent"], actions[start : start + 700, episode.env])


def test_a_state_of_another_number_of_environments_is_refused() -> None:
    with pytest.raises(CheckpointError, match="has 3 environments, this run has 2"):
        chain(2).load_state_dict(chain(3).state_dict())


def test_auto_chooses_the_native_version_where_it_pays_and_records_why() -> None:
    decisions: dict[str, Any] = {}
    few: dict[str, Any] = {}
    many: dict[str, Any] = {}
    other: dict[str, Any] = {}
    assert isinstance(make_vector(EnvironmentConfig(id="CartPole-v1"), SEEDS, num_envs=1, decisions=few), InProcess)
    assert isinstance(make_vector(EnvironmentConfig(id="CartPole-v1"), SEEDS, num_envs=8, decisions=many), CartPole)
    assert isinstance(make_vector(EnvironmentConfig(id="Acrobot-v1"), SEEDS, decisions=other), InProcess)
    decided = [entry["environment.vectorize"] for entry in (few, many, other)]
    assert [entry["value"] for entry in decided] == ["in_process", "native", "in_process"]
    assert all(entry["reason"] for entry in decided)
    assert isinstance(make_vector(EnvironmentConfig(id="CartPole-v1"), SEEDS, num_envs=8, decisions=few), InProcess)
    assert isinstance(
        make_vector(EnvironmentConfig(id="CartPole-v1", vectorize="in_process"), SEEDS, decisions=decisions), InProcess
    )
    assert decisions == {}


def test_impossible_vectorize_settings_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"environment\.vectorize=native: Acrobot-v1"):
        make_vector(EnvironmentConfig(id="Acrobot-v1", vectorize="native"), SEEDS)
    with pytest.raises(ConfigError, match=r"environment\.vectorize=gymnasium: toy/pair"):
        make_vector(EnvironmentConfig(id="toy/pair", vectorize="gymnasium"), SEEDS)


def test_workers_are_restored_by_replay_in_a_new_vector() -> None:
    def make() -> Workers:
        env = make_vector(EnvironmentConfig(id="toy/pair", vectorize="workers", workers=2), SEEDS, num_envs=5)
        assert isinstance(env, Workers)
        return env

    def act(step: Any) -> dict[str, Any]:
        return {"runner": step.obs["runner"].argmin(-1), "shooter": -step.obs["shooter"][..., 1:3]}

    old, new = make(), make()
    try:
        for _ in range(7):
            old.step(act(old.current))
        new.load_state_dict(old.state_dict())
        for _ in range(25):
            for field in ("obs", "active"):
                one, two = getattr(old.current, field), getattr(new.current, field)
                assert all(one[group].tobytes() == two[group].tobytes() for group in one)
            assert old.current.state.tobytes() == new.current.state.tobytes()
            action = {group: array.copy() for group, array in act(old.current).items()}
            old.step(action)
            new.step(action)
        assert [e.total for e in old.episodes()] == [e.total for e in new.episodes()]
    finally:
        old.close()
        new.close()


def test_no_environment_code_imports_torch() -> None:
    modules = ["catalog", "vector", "workers", "worker_main", "native", "random_actions"]
    modules += ["families.gym", "families.gymnasium_vector", "toys.toy"]
    code = (
        "import sys\n"
        + "".join(f"import cadenza.envs.{name}\n" for name in modules)
        + "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_foreign_alarms_reach_their_handler() -> None:
    heard = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
    try:
        env = chain()
        os.kill(os.getpid(), signal.SIGALRM)
        forward(env)
        env.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == [signal.SIGALRM]


def test_a_hang_that_nothing_interrupts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(in_process, "_interrupt", lambda: None)  # as in native code
    monkeypatch.setattr(in_process, "_suspect", None)
    monkeypatch.setattr(sys.stderr, "write", said.put)
    dog = in_process.Watchdog([1, 3, STEP], timeout_seconds=0.004)
    words = said.get(timeout=10)
    dog.close()
    assert words.startswith("warning: environment 3 hangs, and nothing interrupts native code")


def test_workers_use_one_linear_algebra_thread() -> None:
    env = make_vector(EnvironmentConfig(id="Pendulum-v1", num_envs=2, vectorize="workers", workers=2), SEEDS)
    try:
        variables = [process.environ() for process in worker_processes()]
        assert len(variables) == 2
        for library in ("OMP", "MKL", "OPENBLAS"):
            assert {one[f"{library}_NUM_THREADS"] for one in variables} == {"1"}
    finally:
        env.close()


def test_random_multidiscrete_actions_respect_masks() -> None:
    group = GroupSpec(("agent",), spaces.Discrete(2), spaces.MultiDiscrete([3, 2], start=[1, 5]))
    shape, mask = (200, 1), np.array([False, True, True, False, True])
    arrays: dict[str, Any] = {
        "obs": {},
        "final_obs": {},
        "reward": {},
        "died": {},
        "terminated": None,
        "truncated": None,
    }
    masks = {"agent": np.tile(mask, (*shape, 1))}
    step = Step(**arrays, is_first=None, active={"agent": np.ones(shape, bool)}, mask=masks)
    drawn = random_actions({"agent": group}, step, np.random.default_rng(0))["agent"]
    assert {tuple(action) for action in drawn[:, 0].tolist()} == {(2, 6), (3, 6)}
