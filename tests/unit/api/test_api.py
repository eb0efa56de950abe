"""The Python interface."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import cadenza
from cadenza import api
from cadenza.base.formatting import number
from cadenza.config.load import load, override
from cadenza.envs.ledger import EVAL, EpisodeSeeds
from cadenza.envs.toys.toy import DictIdentity
from cadenza.errors import ConfigError, EnvironmentFault, NotFoundError
from cadenza.types import Acted, Mode, Step, Tree
from harness.memory import Memory, MemoryConfig

SMALL: dict[str, Any] = {
    "algorithm.n_steps": 16,
    "algorithm.n_epochs": 1,
    "evaluation.episodes": 2,
    "training.max_timesteps": 256,
}


def test_a_trained_run_is_found_and_loaded(tmp_path: Path) -> None:
    run = cadenza.train("CartPole-v1:ppo", runs_dir=tmp_path, **SMALL, seed=3, tags=["a b", "it's"])
    assert run.result["status"] == "finished"
    assert run.result["env_steps"] == 256
    assert run.metrics[-1]["env_steps"] == 256
    policy = cadenza.load(run.id, runs_dir=tmp_path)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    action = policy(obs)
    assert action in (0, 1)
    assert policy(obs) == action
    assert {policy(obs, explore=True) for _ in range(50)} == {0, 1}
    assert [match.id for match in cadenza.runs(runs_dir=tmp_path, seed=3)] == [run.id]
    assert cadenza.runs(runs_dir=tmp_path, seed=4) == []


def test_values_of_any_kind_are_passed_on(tmp_path: Path) -> None:
    schedule = {"schedule": "linear", "start_value": 0.1, "end_value": 0.05}
    changes: dict[str, Any] = {
        "algorithm.learning_rate": schedule,
        "environment.kwargs": {"n": 3},
        "algorithm.target_kl": None,
    }
    run = cadenza.train("toy/identity:ppo", runs_dir=tmp_path, **SMALL, **changes, name="x=y, {z}")
    config = run.folder.read_config()
    assert config.algorithm.learning_rate.end_value == 0.05
    assert config.environment.kwargs == {"n": 3}
    assert config.name == "x=y, {z}"


def test_settings_accept_numpy_and_torch_scalars_and_paths(tmp_path: Path) -> None:
    kwargs = {"a": np.arange(2), "b": torch.tensor(0.5), "c": tmp_path, "k:v, x": np.bool_(True)}
    config = load("toy/identity:ppo", [override("seed", np.int64(3)), override("environment.kwargs", kwargs)])
    assert config.seed == 3
    assert config.environment.kwargs == {"a": [0, 1], "b": 0.5, "c": str(tmp_path), "k:v, x": True}
    code: dict[str, Any] = {"algorithm.torso.encoder": Memory}
    with pytest.raises(ConfigError, match=r"^algorithm.torso.encoder: <class '.*Memory'> is no value for a setting"):
        cadenza.train("CartPole-v1:ppo", runs_dir=tmp_path, **code)


def test_load_accepts_a_run_or_a_path_and_a_checkpoint_number(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("spec: CartPole-v1:ppo\n")
    run = cadenza.train(file, runs_dir=tmp_path / "runs", **SMALL)
    steps = [0.1, 0.2, 0.3, 0.4]
    assert cadenza.load(run, checkpoint=256)(steps) == cadenza.load(run.folder.path, checkpoint="last")(steps)
    drawn: Any = np.int64(2)
    assert run.evaluate(1, drawn, checkpoint=256)["episodes"] == 1
    bounds: list[tuple[dict[str, Any], str]] = [
        ({"episodes": 0}, "evaluation.episodes=0: must be at least 1"),
        ({"seed": -1}, "seed=-1: must be at least 0"),
        ({"timeout_seconds": -1}, "evaluation.timeout_seconds=-1: must be at least 0"),
        ({"episodes": "two"}, "evaluation.episodes='two': must be a whole number"),
    ]
    for arguments, message in bounds:
        with pytest.raises(ConfigError, match=f"^{message}$"):
            run.evaluate(**arguments)
    with pytest.raises(NotFoundError, match="no checkpoint '7'"):
        cadenza.load(run, checkpoint=7)
    with pytest.raises(ConfigError, match="limit=-1: must be at least 1"):
        cadenza.runs(tmp_path / "runs", limit=-1)


def test_a_policy_for_continuous_actions_and_dict_observations(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"algorithm.batch_size": 1}
    run = cadenza.train("Pendulum-v1:ppo", runs_dir=tmp_path, **SMALL, **changes)
    env = gymnasium.make("Pendulum-v1")
    assert cadenza.load(run.id, runs_dir=tmp_path)(env.reset(seed=0)[0]).shape == (1,)
    run = cadenza.train("toy/dict:ppo", runs_dir=tmp_path, **SMALL)
    assert cadenza.load(run.id, runs_dir=tmp_path)(DictIdentity().observation_space.sample()) in (0, 1)


def test_a_policy_plays_as_it_was_evaluated(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"algorithm.normalize_obs": "rolling"}
    run = cadenza.train("CartPole-v1:ppo", runs_dir=tmp_path, **SMALL, **changes, name="mine")
    measured = run.evaluate(episodes=2, seed=5)
    policy = run.load()
    env = policy.make_env()
    for index in range(2):
        seed = EpisodeSeeds(5, EVAL)(index, 0)
        policy.reset()
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total, over = total + float(reward), terminated or truncated
        assert total == measured["returns"][index]


def test_an_exploring_policy_uses_the_final_schedules_of_training(tmp_path: Path) -> None:
    ends = {"start_value": 1.0, "end_value": 0.0, "start": 0, "end": 100}  # env_steps
    changes: dict[str, Any] = {"algorithm.epsilon": ends, "training.max_timesteps": 512}
    run = cadenza.train("CartPole-v1:dqn", runs_dir=tmp_path, **changes)
    policy, obs = run.load(), np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    assert {policy(obs, explore=True) for _ in range(20)} == {policy(obs)}


def test_a_policy_remembers_until_it_is_reset(tmp_path: Path, forgotten: None) -> None:
    class Counting(Memory):
        """A workflow that acts by the parity of the steps in its memory."""

        def act(self, step: Step, carry: Tree, mode: Mode) -> Acted:
            acted = super().act(step, carry, mode)
            return acted._replace(action={"agent": acted.carry["steps"].numpy().astype(int)[:, None] % 2})

    cadenza.register_algorithm("counting", config=MemoryConfig)(Counting)
    changes: dict[str, Any] = {"training.max_timesteps": 64}
    run = cadenza.train("toy/identity", Counting, runs_dir=tmp_path, **changes)
    assert run.folder.read_config().algorithm.name == "counting"
    policy = run.load()
    assert [policy(0) for _ in range(5)] == [1, 0, 1, 0, 1]
    policy.reset()
    assert [policy(0) for _ in range(3)] == [1, 0, 1]


def test_a_policy_respects_masks_and_bounds(tmp_path: Path) -> None:
    run = cadenza.train("toy/masked:ppo", runs_dir=tmp_path, **SMALL)
    for allowed in range(4):
        assert run.load()([0.0], mask=[action == allowed for action in range(4)]) == allowed
    run = cadenza.train("toy/identity_box:ppo", runs_dir=tmp_path, **SMALL)
    policy = run.load()
    drawn = [float(policy([0.5], explore=True)[0]) for _ in range(50)]
    assert max(map(abs, drawn)) == 1.0  # clipped, as in training


def test_a_mistake_is_one_short_exception_that_names_the_nearest(tmp_path: Path) -> None:
    mistakes: dict[str, Any] = {"algorithm.gama": 0.98, "quite": True, "max_timestep": 5, "seed": "x"}
    for (key, value), message in zip(
        mistakes.items(),
        (
            "unknown key 'algorithm.gama'; did you mean 'algorithm.gamma'?",
            "unknown argument 'quite'; did you mean 'quiet'?",
            "unknown argument 'max_timestep'; did you mean 'max_timesteps'?",
            "seed='x': must be a whole number",
        ),
        strict=True,
    ):
        with pytest.raises(ConfigError) as caught:
            cadenza.train("CartPole-v1:ppo", runs_dir=tmp_path, **{key: value})
        text = "".join(traceback.format_exception(caught.value))
        assert text.splitlines()[-1].endswith(message)
        assert len(text.splitlines()) < 10
    assert not list(tmp_path.iterdir())


def test_a_fault_in_a_users_environment_keeps_its_traceback(tmp_path: Path) -> None:
    class Broken(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **settings: Any) -> Any:
            raise ZeroDivisionError("here")

    with pytest.raises(EnvironmentFault) as caught:
        cadenza.train(Broken, "ppo", runs_dir=tmp_path, **SMALL)
    assert 'raise ZeroDivisionError("here")' in "".join(traceback.format_exception(caught.value))


def test_the_help_of_train_names_every_argument() -> None:
    text = inspect.getdoc(cadenza.train)
    names = inspect.signature(cadenza.train).parameters
    assert [name for name in names if f"\n    {name}: " not in text] == []
    assert set(names) == {*api.ARGUMENTS, "overrides"}


def test_a_run_shows_its_progress_unless_it_is_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = cadenza.train("toy/identity:ppo", runs_dir=tmp_path, **SMALL)
    assert "env_steps 256 / 256 (100%)" in capfd.readouterr().err  # a line, as this is no terminal
    run.resume(max_timesteps=512, quiet=True)
    assert "env_steps" not in capfd.readouterr().err


def test_runs_and_policies_describe_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = cadenza.train("CartPole-v1:ppo", quiet=True, max_timesteps=256, **{**SMALL, "training.max_timesteps": 64})
    value = run.result["eval/return_mean"]
    assert repr(run) == f"<Run {run.id}: finished, 256 env_steps, return {number(value)}>"
    card = run._repr_html_()
    assert "<svg" in card
    assert "256 env_steps" in card
    assert f'<a href="runs/{run.id}/report.md">' in card
    policy = run.load()
    assert (
        repr(policy) == f"<Policy {run.id} at step-000000000256-{run.result['updates']:012d}: Box(4,) -> Discrete(2)>"
    )
    assert "Discrete(2)" in policy._repr_html_()


def test_public_names_are_few_and_there() -> None:
    assert len([name for name in cadenza.__all__ if not name.startswith("register_")]) <= 12
    for name in cadenza.__all__:
        assert getattr(cadenza, name).__doc__
    assert set(cadenza.__all__) <= set(dir(cadenza))


def test_two_runs_are_evaluated_verified_and_compared(tmp_path: Path) -> None:
    runs = [cadenza.train("toy/identity:ppo", runs_dir=tmp_path, seed=seed, **SMALL) for seed in (0, 1)]
    assert cadenza.evaluate(runs[0].id, episodes=2, runs_dir=tmp_path) == runs[0].evaluate(episodes=2)
    none = cadenza.evaluate(runs[0], timeout_seconds=1e-9, explore=True)
    assert (none["return_mean"], none["episodes"], none["returns"]) == (None, 0, [])
    assert none["problems"] == ["timed out with 0 of 20 episodes finished"]
    report = cadenza.verify(runs[0])
    assert (report["identical"], report["first_difference"]) == (True, None)
    comparison = cadenza.compare(runs[0], runs[1].id, runs[0], runs_dir=tmp_path)
    (series,) = comparison.series
    assert len(series.members) == 2
    assert comparison.plain() == cadenza.compare("toy/identity:ppo", runs_dir=tmp_path).plain()


def test_build_returns_the_parts_of_a_run_and_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(cadenza.build("toy/identity:ppo", **SMALL)) as parts:
        assert parts.config.algorithm.name == "ppo"
        assert list(parts.stores) == ["rollout"]
        assert parts.env is not None
        assert parts.collector.env is parts.env
        assert parts.workflow.hooks[0] == "update"
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_returns_its_best_trial_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text("base: toy/identity:ppo\nseeds: [0]\nsweep: {algorithm.learning_rate: [0.001, 0.01]}\n")
    first = cadenza.sweep(file, runs_dir=tmp_path / "runs", **SMALL)
    assert (first["status"], len(first["trials"])) == ("finished", 2)
    assert first["best"]["value"] == max(trial["value"] for trial in first["trials"])
    capsys.readouterr()
    assert cadenza.sweep(file, runs_dir=tmp_path / "runs", quiet=True, **SMALL) == first
    assert capsys.readouterr().err == ""
    cadenza.sweep(file, runs_dir=tmp_path / "runs", quiet=False, **SMALL)
    assert ": 2 trials, 2 of them done before  (" in capsys.readouterr().err


def test_tune_returns_its_best_trial(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = tmp_path / "space.yaml"
    space.write_text("algorithm.learning_rate: {min: 0.0001, max: 0.01, log: true}\n")
    result = cadenza.tune("toy/identity:ppo", space, trials=2, seeds=[0], runs_dir=tmp_path / "runs", **SMALL)
    assert (result["status"], len(result["trials"])) == ("finished", 2)
    assert 0.0001 <= result["best"]["params"]["algorithm.learning_rate"] <= 0.01
