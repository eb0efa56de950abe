"""Configs as other labs write them: translated by changing names alone they run, and each old name is answered.

The translations leave out what has no counterpart: `environment.wrapper` and `buffer` follow from environment and
algorithm, and the table in the terminal is always there.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from cadenza.config.load import load
from cadenza.errors import CadenzaError
from cadenza.lab.sweeps.sweep_file import read as read_sweep
from cadenza.lab.sweeps.sweep_plan import plan
from harness import command

MASTER = """
    name: baseline
    seed: 42
    device: cpu
    algorithm:
      name: ppo
      learning_rate: 3e-4
      gamma: 0.99
      gae_lambda: 0.95
      clip_range: 0.2
      value_coef: 0.5
      entropy_coef: 0.01
      normalize_obs: true
      normalize_reward: true
      n_steps: 256
      actor: {hidden_sizes: [64, 64], activation: tanh}
      critic: {hidden_sizes: [64, 64], activation: tanh}
    environment: {id: CartPole-v1}
    training: {max_timesteps: 1000000}
    evaluation: {every_steps: 10000, episodes: 10}
    checkpoint: {every_steps: 50000}
    logging: {tensorboard: true, wandb: true, wandb_project: rl-experiments}
    tags: [ppo, cartpole]
"""
SWEEP = """
    base_config: master.yaml
    sweep:
      algorithm.learning_rate: [1e-4, 3e-4, 1e-3]
      algorithm.clip_range: [0.1, 0.2, 0.3]
      algorithm.actor.hidden_sizes: [[64, 64], [128, 128], [256, 256]]
    parallel_jobs: 4
"""
PHASES = """
    spec: toy/identity:dreamer_v3
    _dims: {latent: 8, hidden: "${div:${_dims.latent},2}"}
    algorithm:
      buffer_size: 500
      batch_size: 2
      batch_length: 4
      horizon: 3
      model: {deter: "${_dims.latent}", hidden: "${_dims.hidden}", units: 4, classes: 2, stoch: 2}
    environment: {num_envs: 2}
    evaluation: {episodes: 1}
    training:
      max_timesteps: 128
      phases:
        - {name: data_collection, type: online, buffer: replay, duration_steps: 64, hooks: [collect], actions: random}
        - {name: train_world_model, type: offline, buffer: replay, duration_updates: 2, hooks: [update_world_model]}
        - {name: joint_training, type: online, buffer: replay, duration_steps: 32, hooks: [collect, update]}
"""


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(dedent(text))
    return folder


def test_the_master_config_loads(tmp_path: Path) -> None:
    config = load(str(write(tmp_path, master=MASTER) / "master.yaml"))
    algorithm = config.algorithm
    assert (config.name, config.seed, config.tags) == ("baseline", 42, ("ppo", "cartpole"))
    assert (algorithm.learning_rate, algorithm.clip_range, algorithm.entropy_coef) == (3e-4, 0.2, 0.01)
    assert (config.evaluation.every_steps, config.checkpoint.every_steps) == (10_000, 50_000)


def test_the_sweep_of_the_master_config_has_every_combination(tmp_path: Path) -> None:
    write(tmp_path, master=MASTER, sweep=SWEEP)
    planned = plan(read_sweep(tmp_path / "sweep.yaml"))
    assert (planned.total, planned.file.parallel_jobs) == (27, 4)


def test_the_phases_train(tmp_path: Path) -> None:
    write(tmp_path, phases=PHASES)
    command.train(tmp_path / "runs", tmp_path / "phases.yaml").succeeded()
    status = command.last(tmp_path / "runs").read_status()
    assert status["env_steps"] >= 96
    assert status["updates"] >= 3


def test_an_experiment_is_named_as_in_hydra(tmp_path: Path) -> None:
    shown = command.cadenza("train", "+experiment=CartPole-v1/ppo", "seed=123", "--cfg", "job").succeeded()
    assert "seed: 123" in shown.out
    assert load("experiment=CartPole-v1/ppo") == load("CartPole-v1:ppo")


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ("hooks: [collect, update]", "workflow_hooks: [collect, update]", "workflow_hooks'; did you mean '{0}hooks'?"),
        ("duration_steps: 32", "duration: 32", "'{0}duration'; did you mean '{0}duration_steps'?"),
    ],
)
def test_the_keys_of_a_phase_are_answered(tmp_path: Path, ours: str, theirs: str, message: str) -> None:
    write(tmp_path, phases=PHASES.replace(ours, theirs))
    with pytest.raises(CadenzaError) as caught:
        load(str(tmp_path / "phases.yaml"))
    assert message.format("training.phases[2].") in str(caught.value)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("experiment.seed=3", "seed"),
        ("+experiment={name: x}", "name"),
        ("algorithm.lr=1", "algorithm.learning_rate"),
        ("algorithm.clip_ratio=1", "algorithm.clip_range"),
        ("environment.name=x", "environment.id"),
        ("environment.num_parallel_envs=3", "environment.num_envs"),
        ("network.actor.hidden_dims=[3]", "algorithm.actor.hidden_sizes"),
        ("network.critic.hidden_dims=[3]", "algorithm.critic.hidden_sizes"),
        ("+network={actor: {type: mlp}}", "algorithm.actor"),
        ("buffer.size=3", "algorithm.n_steps"),
        ("collector.frames_per_batch=3", "algorithm.n_steps"),
        ("optimizer.learning_rate=3", "algorithm.learning_rate"),
        ("training.total_timesteps=3", "training.max_timesteps"),
        ("training.total_frames=3", "training.max_timesteps"),
        ("training.eval_frequency=3", "evaluation.every_steps"),
        ("training.num_eval_episodes=3", "evaluation.episodes"),
        ("training.checkpoint_frequency=3", "checkpoint.every_steps"),
        ("logging.wandb.enabled=true", "logging.wandb"),
        ("logging.wandb.project=x", "logging.wandb_project"),
        ("project_id=x", "logging.wandb_project"),
    ],
)
def test_names_of_the_master_configs_are_answered(override: str, key: str) -> None:
    with pytest.raises(CadenzaError) as caught:
        load("CartPole-v1:ppo", [override])
    assert str(caught.value).endswith(f"; did you mean '{key}'?")


def test_a_path_to_resume_from_is_answered() -> None:
    with pytest.raises(CadenzaError, match="`cadenza resume RUN` continues a run"):
        load("CartPole-v1:ppo", ["training.resume_path=x"])
