"""Environments as array operations, all N in one go; their episodes are the scalar environment's, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.layout import Array, Layout, allocate_buffer
from cadenza.envs.seeds import EpisodeSeeds
from cadenza.envs.vector import Vector
from cadenza.types import SINGLE_GROUP, EnvSpec


@dataclass(frozen=True)
class MakeNative:
    """A native version and the number of environments from which it beats stepping them one by one."""

    make: Callable[[int, EpisodeSeeds], Vector]
    worthwhile_from: int


def cartpole(config: EnvironmentConfig, spec: Callable[[], EnvSpec]) -> MakeNative:
    """CartPole with the facts of the scalar environment."""
    sutton_barto = bool(config.kwargs.get("sutton_barto_reward", False))
    return MakeNative(lambda num_envs, seeds: CartPole(spec(), num_envs, seeds, sutton_barto), worthwhile_from=3)


class CartPole(Vector):
    """Gymnasium's CartPole (Barto, Sutton and Anderson 1983; Euler integration) on state arrays [4, N] in float64."""

    def __init__(self, spec: EnvSpec, num_envs: int, seeds: EpisodeSeeds, sutton_barto_reward: bool = False) -> None:
        layout = Layout(replace(spec, restore="snapshot"), {})
        buffers = [allocate_buffer(layout, num_envs) for _ in range(2)]
        self._limit = spec.max_episode_steps or 2**62
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
        np.copyto(step.terminated, fell)
        np.greater_equal(self._ledger.lengths, self._limit - 1, out=step.truncated)
        np.logical_or(fell, step.truncated, out=step.is_first)
        reward.fill(self._ongoing)
        if not step.is_first.any():
            return []
        reward[fell] = self._falling
        ended: list[int] = np.flatnonzero(step.is_first).tolist()
        buffer.final_obs[SINGLE_GROUP][ended] = obs[ended]
        for index in ended:
            physics[:, index] = start(self._ledger.seed(index, ahead=1))
            obs[index, 0] = physics[:, index]
        return ended


def start(seed: int) -> Array:
    """Where an episode with this seed begins."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))).uniform(-0.05, 0.05, 4)


def push(physics: Array, action: Array) -> Array:
    """Push every cart left (0) or right (1) for 0.02 s, in place; says which poles fell or carts left the track.

    The order of operations is the scalar environment's: any other would round differently.
    """
    x, x_dot, theta, theta_dot = physics
    cos, sin = np.cos(theta), np.sin(theta)
    force = np.where(action == 1, 10.0, -10.0)
    temp = (force + 0.05 * np.square(theta_dot) * sin) / 1.1
    theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * np.square(cos) / 1.1))
    x_acc = temp - 0.05 * theta_acc * cos / 1.1
    x += 0.02 * x_dot
    x_dot += 0.02 * x_acc
    theta += 0.02 * theta_dot
    theta_dot += 0.02 * theta_acc
    fell: Array = (np.abs(x) > 2.4) | (np.abs(theta) > 12 * 2 * math.pi / 360)
    return fell
