"""The paces: named overlays for the size of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.config.load import load
from cadenza.config.registry import ALGORITHMS
from cadenza.errors import ConfigError
from harness.command import last, train


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_debug_pace_fits_every_algorithm(name: str) -> None:
    config = load(f"CartPole-v1:{name}", ["pace=debug"])
    assert (config.training.max_timesteps, config.environment.num_envs, config.algorithm.name) == (512, 2, name)


def test_the_debug_pace_leaves_out_what_an_algorithm_has_not_and_nothing_else() -> None:
    sac, dreamer = (load(f"Pendulum-v1:{name}", ["pace=debug"]).algorithm for name in ("sac", "dreamer_v3"))
    assert (sac.actor.hidden_sizes, sac.warmup_steps, sac.batch_size) == ((32,), 64, 64)
    assert (dreamer.model.deter, dreamer.batch_length) == (64, 16)
    assert load("CartPole-v1:ppo", ["pace=debug", "algorithm.n_epochs=3"]).algorithm.n_epochs == 3
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.gama'; did you mean 'algorithm\.gamma'"):
        load("Pendulum-v1:sac", ["pace=debug", "algorithm.gama=1"])
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.warmup_steps'"):
        load("CartPole-v1:ppo", ["pace=debug", "algorithm.warmup_steps=5"])
    with pytest.raises(ConfigError, match="pace=throughput is not for this algorithm"):
        load("Pendulum-v1:sac", ["pace=throughput"])


def test_a_run_at_the_debug_pace_learns_something(tmp_path: Path) -> None:
    train(tmp_path, "CartPole-v1:dqn", "pace=debug").succeeded()
    assert last(tmp_path).read_status()["updates"] > 0
