"""cadenza's own wrappers, named in `environment.wrappers` or used by a field of `environment`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.envs.layout import Array
from cadenza.errors import ConfigError

W = TypeVar("W", bound=gymnasium.Wrapper[Any, Any, Any, Any])

# Indices of the velocities in the observation, by class of environment.
VELOCITIES = {
    "CartPoleEnv": (1, 3),
    "PendulumEnv": (2,),
    "AcrobotEnv": (4, 5),
    "MountainCarEnv": (1,),
    "Continuous_MountainCarEnv": (1,),
    "LunarLander": (2, 3, 5),
}


class HideVelocity(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper that leaves velocities out of the observation, so that a policy needs a memory."""

    def __init__(self, env: gymnasium.Env[Any, Any], indices: Sequence[int] | None = None) -> None:
        super().__init__(env)
        kind, space = type(env.unwrapped).__name__, env.observation_space
        hidden = VELOCITIES.get(kind) if indices is None else tuple(indices)
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"HideVelocity needs a vector as observation, not {space}")
        if hidden is None:
            raise ConfigError(f"HideVelocity does not know the velocities of {kind}: set indices: [...]")
        if not set(hidden) < set(range(space.shape[0])):
            raise ConfigError(f"indices={list(hidden)}: must be some of 0 to {space.shape[0] - 1}, and not all")
        self._visible = [index for index in range(space.shape[0]) if index not in hidden]
        self.observation_space = spaces.Box(space.low[self._visible], space.high[self._visible], dtype=space.dtype)

    def observation(self, observation: Any) -> Array:
        return np.asarray(observation)[self._visible]


class SignReward(gymnasium.RewardWrapper[Any, Any]):
    """A wrapper that replaces rewards by their sign, -1, 0 or 1, as on Atari (Mnih et al. 2015)."""

    def reward(self, reward: Any) -> float:
        return float(np.sign(reward))


class ScaleReward(gymnasium.RewardWrapper[Any, Any]):
    """A wrapper that multiplies rewards by `factor`."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float) -> None:
        super().__init__(env)
        self._factor = float(factor)

    def reward(self, reward: Any) -> float:
        return self._factor * float(reward)


class RescaledActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """A wrapper that stretches actions from [-1, 1] over the environment's own bounds."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Box) or not space.is_bounded():
            raise ConfigError(f"environment.rescale_actions: needs continuous actions with finite bounds, not {space}")
        self.action_space = spaces.Box(-1, 1, space.shape, space.dtype)
        self._middle, self._reach = (space.low + space.high) / 2, (space.high - space.low) / 2

    def action(self, action: Any) -> Array:
        stretched: Array = self._middle + self._reach * action
        return stretched


class RawReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The innermost wrapper: it adds up the environment's own rewards, which wrappers around it may change."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._sum = 0.0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        outcome = self.env.step(action)
        self._sum += float(outcome[1])
        return outcome

    def take(self) -> Array:
        """Return the sum of rewards since the last call, [1]."""
        total, self._sum = self._sum, 0.0
        return np.array((total,), np.float32)


def layer(env: gymnasium.Env[Any, Any], kind: type[W]) -> W | None:
    """Return the outermost wrapper of type `kind` around an environment, or None."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, kind):
            return env
        env = env.env
    return None
