from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.catalog import FirstEnvironment
from cadenza.envs.ledger import TRAIN, EpisodeSeeds
from cadenza.envs.native import cartpole_spec
from cadenza.envs.vector import make_vector

SEEDS = EpisodeSeeds(3, TRAIN)
events: list[str] = []  # "made" and "closed", in order


class Counted(CartPoleEnv):
    def __init__(self, draw: Callable[[], Any] | None = None) -> None:
        super().__init__()
        events.append("made")
        if draw is not None:
            draw()

    def close(self) -> None:
        events.append("closed")


def counted() -> gymnasium.Env[Any, Any]:
    return Counted()


def drawing(library: str) -> gymnasium.Env[Any, Any]:
    return Counted({"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(1)}[library])


@pytest.fixture(autouse=True)
def no_events() -> Iterator[None]:
    events.clear()
    yield
    events.clear()


def config(factory: str = "counted", **settings: Any) -> EnvironmentConfig:
    return EnvironmentConfig(id=f"{__name__}:{factory}", num_envs=2, **settings)


def test_the_vector_in_this_process_takes_the_first_environment() -> None:
    with FirstEnvironment(config()) as first:
        env = make_vector(config(), SEEDS, first=first)
    assert events == ["made", "made"]
    env.close()
    assert events == ["made", "made", "closed", "closed"]


@pytest.mark.parametrize("library", ["python", "numpy", "torch"])
def test_an_environment_that_drew_from_a_global_generator_is_made_again(library: str) -> None:
    drawn = config("drawing", kwargs={"library": library})
    with FirstEnvironment(drawn) as first:
        make_vector(drawn, SEEDS, first=first).close()
    assert events == ["made", "closed", "made", "made", "closed", "closed"]


def test_a_first_environment_that_nobody_takes_is_closed_once() -> None:
    with FirstEnvironment(config()) as first:
        first.close()
    assert events == ["made", "closed"]


def test_the_first_environment_is_closed_before_other_vectors_are_made() -> None:
    with FirstEnvironment(config()) as first:
        vector = make_vector(config(vectorize="workers", workers=1), SEEDS, first=first)
        assert events == ["made", "closed"]  # those of the worker count there
        vector.close()


@pytest.mark.parametrize("settings", [{}, {"max_episode_steps": 12}, {"kwargs": {"sutton_barto_reward": True}}])
def test_the_spec_of_native_cartpole_is_the_scalar_one(settings: dict[str, Any]) -> None:
    for id in ("CartPole-v0", "CartPole-v1"):
        cartpole = EnvironmentConfig(id=id, **settings)
        with FirstEnvironment(cartpole) as first:
            assert cartpole_spec(cartpole) == first.spec
