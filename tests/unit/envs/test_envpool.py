"""EnvPool: used only if selected, with the settings of the environment that it replaces."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.families import atari
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.random_actions import random_actions
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError, MissingExtraError

SEEDS = EpisodeSeeds(5, TRAIN)


def pool(id: str, **more: Any) -> Any:
    return make_vector(EnvironmentConfig(id=id, vectorize="envpool", **more), SEEDS, num_envs=2)


def test_envpool_episodes_end_at_the_limit_and_restart_on_restore() -> None:
    pytest.importorskip("envpool", reason="the extra envpool is not installed")
    env, rng = pool("HalfCheetah-v5", max_episode_steps=20), np.random.default_rng(0)
    for _ in range(45):
        env.step(random_actions(env.spec.groups, env.current, rng))
    assert [episode.length for episode in env.episodes()] == [20] * 4
    assert env.spec.restore == "restart"
    env.load_state_dict(env.state_dict())
    assert env.current.is_first.all()
    with pytest.raises(ConfigError, match="EnvPool has no toy/chain; use auto"):
        pool("toy/chain")
    env.close()


def test_envpool_seeds_by_episode_number_so_a_resumed_run_repeats_none() -> None:
    pytest.importorskip("envpool", reason="the extra envpool is not installed")

    def begun(env: Any) -> bytes:
        first: bytes = env.current.obs["agent"].tobytes()
        return first

    env, starts = pool("Pendulum-v1"), []
    for number in range(3):
        env.reset(number)
        starts.append(begun(env))
    assert len(set(starts)) == 3
    state, resumed = env.state_dict(), pool("Pendulum-v1")
    assert begun(resumed) == starts[0]
    resumed.load_state_dict(state)
    assert begun(resumed) not in starts
    resumed.reset(1)
    assert begun(resumed) == starts[1]


def test_envpool_refuses_wrappers() -> None:
    with pytest.raises(ConfigError, match=r"vectorize=envpool: cannot be used with environment\.frame_stack"):
        pool("CartPole-v1", frame_stack=4)


def test_atari_settings_are_translated_to_envpools_options() -> None:
    config = EnvironmentConfig(id="ALE/Pong-v5", frame_stack=4, kwargs={"frameskip": 2})
    options = atari.pool_options(config)
    assert (options["stack_num"], options["repeat_action_probability"]) == (4, 0.25)
    assert (options["frame_skip"], options["max_episode_steps"]) == (2, 54_000)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("clip_rewards", True, "clip_rewards=false"),
        ("terminal_on_life_loss", True, "continues the game after a lost life"),
        ("noop_max", 0, "noop_max=0: EnvPool begins with at least one frame without an action; give 1 or more"),
    ],
)
def test_settings_that_envpool_implements_otherwise_are_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        atari.pool_options(EnvironmentConfig(id="ALE/Pong-v5", kwargs={key: value}))


def test_an_id_without_the_extra_names_the_line_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=r"vectorize=envpool needs an extra: pip install 'cadenza\[envpool\]'"):
        pool("CartPole-v1")
