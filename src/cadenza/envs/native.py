"""Environments as array operations over all N; their episodes equal the scalar environment's bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.action_names import gymnasium_names
from cadenza.envs.arguments import check_arguments
from cadenza.envs.layout import Array, Layout, allocate_buffer
from cadenza.envs.ledger import EpisodeSeeds
from cadenza.envs.vector import Vector
from cadenza.types import SINGLE_GROUP, EnvSpec, GroupSpec


@dataclass(frozen=True)
class MakeNative:
    """A native version, and the number of environments from which it beats stepping them one by one."""

    make: Callable[[int, EpisodeSeeds], Vector]
    worthwhile_from: int
    restore: str = "snapshot"  # how a running episode is restored


def cartpole(config: EnvironmentConfig) -> MakeNative:
    """Return CartPole's native version."""

    def make(num_envs: int, seeds: EpisodeSeeds) -> CartPole:
        sutton_barto = bool(config.kwargs.get("sutton_barto_reward", False))
        return CartPole(cartpole_spec(config), num_envs, seeds, sutton_barto)

    return MakeNative(make, worthwhile_from=2)


def cartpole_spec(config: EnvironmentConfig) -> EnvSpec:
    """Return the spec of Gymnasium's CartPole without making one; refuse arguments that it does not take."""
    registered = gymnasium.spec(config.id)
    check_arguments(load_env_creator(str(registered.entry_point)), config.kwargs, config.id)
    high = np.array([2 * TRACK, np.inf, 2 * TILT, np.inf], np.float32)
    group = GroupSpec(
        (SINGLE_GROUP,),
        spaces.Box(-high, high),
        spaces.Discrete(2),
        action_names=gymnasium_names(config.id, spaces.Discrete(2)),
    )
    return EnvSpec(
        config.id,
        {SINGLE_GROUP: group},
        max_episode_steps=config.max_episode_steps or registered.max_episode_steps,
        return_threshold=registered.reward_threshold,
    )


class CartPole(Vector):
    """Gymnasium's CartPole (Barto, Sutton and Anderson 1983; Euler integration) on state arrays [4, N] in float64."""

    def __init__(self, spec: EnvSpec, num_envs: int, seeds: EpisodeSeeds, sutton_barto_reward: bool = False) -> None:
        layout = Layout(replace(spec, restore="snapshot"), {})
        buffers = [allocate_buffer(layout, num_envs) for _ in range(2)]
        self._last_step = np.array((spec.max_episode_steps or 2**62) - 1)
        self._ongoing, self._falling = (0.0, -1.0) if sutton_barto_reward else (1.0, 1.0)
        self._physics = np.stack([start(seeds(index, 0)) for index in range(num_envs)], 1)
        buffers[0].step.obs[SINGLE_GROUP][:, 0] = self._physics.T
        super().__init__(layout, num_envs, seeds, buffers)

    def close(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "physics": self._physics.copy()}

    def _restore(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            self._physics[:] = state["physics"]
        else:
            self._physics[:] = np.stack([start(self._ledger.seed(index)) for index in range(self.num_envs)], axis=1)
        self._buffers[0].step.obs[SINGLE_GROUP][:, 0] = self._physics.T

    def _advance(self, action: dict[str, Array], turn: int) -> list[int]:
        buffer, physics = self._buffers[turn], self._physics
        step = buffer.step
        fell = push(physics, action[SINGLE_GROUP][:, 0])
        obs, reward = step.obs[SINGLE_GROUP], step.reward[SINGLE_GROUP]
        obs[:, 0] = physics.T
        step.terminated[...] = fell
        np.greater_equal(self._ledger.lengths, self._last_step, out=step.truncated)
        np.logical_or(fell, step.truncated, out=step.is_first)
        reward.fill(self._ongoing)
        if not np.count_nonzero(step.is_first):
            return []
        reward[fell] = self._falling
        ended: list[int] = np.flatnonzero(step.is_first).tolist()
        buffer.final_obs[SINGLE_GROUP][...] = obs
        for index in ended:
            physics[:, index] = start(self._ledger.seed(index, ahead=1))
            obs[index, 0] = physics[:, index]
        return ended


def start(seed: int) -> Array:
    """Return the initial state [4] of the episode with this seed."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))).uniform(-0.05, 0.05, 4)


# As arrays, because NumPy would convert a Python number in every operation, which takes as long as the operation.
STEP_SECONDS, GRAVITY, TOTAL_MASS, POLE_MASS, HALF_LENGTH = map(np.array, (0.02, 9.8, 1.1, 0.1, 0.5))
POLE_MOMENT, FOUR_THIRDS = map(np.array, (0.05, 4.0 / 3.0))
FORCES = np.array((-10.0, 10.0))  # by action
TRACK, TILT = map(np.array, (2.4, 12 * 2 * math.pi / 360))


def push(physics: Array, action: Array) -> Array:
    """Push every cart left (0) or right (1) for 0.02 s, in place; return which fell or left the track, [N].

    The order of operations is the scalar environment's; any other would round differently.
    """
    x, theta, theta_dot = physics[0], physics[2], physics[3]
    cos, sin = np.cos(theta), np.sin(theta)
    temp = (FORCES[action] + POLE_MOMENT * np.square(theta_dot) * sin) / TOTAL_MASS
    theta_acc = (GRAVITY * sin - cos * temp) / (HALF_LENGTH * (FOUR_THIRDS - POLE_MASS * np.square(cos) / TOTAL_MASS))
    rates = np.empty_like(physics)
    rates[0::2] = physics[1::2]
    rates[1] = temp - POLE_MOMENT * theta_acc * cos / TOTAL_MASS
    rates[3] = theta_acc
    physics += STEP_SECONDS * rates
    fell: Array = (np.abs(x) > TRACK) | (np.abs(theta) > TILT)
    return fell
