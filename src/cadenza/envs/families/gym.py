"""Gymnasium's environments, and users' environments of its kind, as `Environment`s.

Tuple observations become dicts keyed "0", "1", …; discrete observations stay integers; images are channels first.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.action_names import gymnasium_names, names_for
from cadenza.envs.arguments import check_arguments
from cadenza.envs.images import as_declared, with_images_first
from cadenza.envs.layout import Array, shape_of
from cadenza.envs.wrappers import RawReward, layer
from cadenza.errors import ConfigError
from cadenza.types import SINGLE_GROUP, EnvSpec, Frame, GroupSpec, Tree

if TYPE_CHECKING:
    from cadenza.envs.native import MakeNative

# The module prefix of each family's classes, and the suffix of its ids. Gymnasium keeps older MuJoCo for old results.
REGISTERED = {
    "classic": ("gymnasium.envs.classic_control.", ""),
    "toy_text": ("gymnasium.envs.toy_text.", ""),
    "box2d": ("gymnasium.envs.box2d", ""),
    "mujoco": ("gymnasium.envs.mujoco", "-v5"),
}


def ids(family: str) -> list[str]:
    """Return the ids that Gymnasium has registered for the family, whether or not its packages are installed."""
    place, version = REGISTERED[family]
    registered = gymnasium.registry.items()
    return [id for id, spec in registered if str(spec.entry_point).startswith(place) and id.endswith(version)]


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    """Make an environment of Gymnasium's registry without its wrappers: order, checks and time limits are cadenza's."""
    spec = gymnasium.spec(config.id)
    if str(spec.entry_point).startswith(REGISTERED["mujoco"][0]):
        from cadenza.envs.families.mujoco import prepare

        prepare(render)
    if isinstance(spec.entry_point, str):
        check_arguments(load_env_creator(spec.entry_point), config.kwargs, config.id)
    kwargs = {**config.kwargs, **({"render_mode": "rgb_array"} if render else {})}
    bare = dataclasses.replace(spec, order_enforce=False)
    env = gymnasium.make(bare, max_episode_steps=-1, disable_env_checker=True, **kwargs)
    names = gymnasium_names(config.id, env.action_space)
    return Gym(env, config, spec.max_episode_steps, return_threshold=spec.reward_threshold, action_names=names)


def native(config: EnvironmentConfig) -> MakeNative | None:
    """Return cadenza's own vectorised version, where one exists."""
    if not config.id.startswith("CartPole-v"):
        return None
    from cadenza.envs.native import cartpole

    return cartpole(config)


def declared_range(env: gymnasium.Env[Any, Any]) -> tuple[float, float] | None:
    """Return the least and largest reward of a step, as MiniGrid and older environments declare them."""
    limits = getattr(env.unwrapped, "reward_range", None)
    if not isinstance(limits, tuple | list) or len(limits) != 2 or not np.isfinite(limits).all():
        return None
    return float(limits[0]), float(limits[1])


Outcome = tuple[Any, Any, bool, bool, Mapping[str, Any]]  # what Gymnasium's `step` returns, with the time limit applied


class Gym:
    """A gymnasium.Env as the group `agent` with one agent. It never resets by itself.

    It truncates episodes at the configured time limit, or else at `limit`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        config: EnvironmentConfig,
        limit: int | None = None,
        *,
        return_threshold: float | None = None,
        frame_stack: int = 1,
        action_names: Sequence[str] = (),
    ) -> None:
        self.bare = env  # for wrappers, which expect images as the environment returns them
        if "Box2D" in sys.modules:
            from cadenza.envs.families.box2d import with_fresh_worlds

            env = with_fresh_worlds(env)
        self.env = env = with_images_first(env)
        self._raw = layer(env, RawReward)
        space = as_dict_space(env.observation_space)
        self._observe = observer(space)
        self._action = action_for(env.action_space, config.clip_actions)
        self.actions = actions_for(env.action_space, config.clip_actions)
        limit = config.max_episode_steps or limit
        self._limit = limit or 2**63
        self._steps = 0
        self._no_reward = np.zeros(1, np.float32)
        group = GroupSpec((SINGLE_GROUP,), space, env.action_space, action_names=names_for(env, action_names))
        self.spec = EnvSpec(
            id=config.id,
            groups={SINGLE_GROUP: group},
            max_episode_steps=limit,
            reward_range=declared_range(env),
            return_threshold=None if return_threshold is None else float(return_threshold),
            frame_stack=frame_stack,
        )

    def reset(self, seed: int) -> Frame:
        obs, info = self.env.reset(seed=seed)
        self._steps = 0
        frame = Frame({SINGLE_GROUP: self._observe(obs)}, {SINGLE_GROUP: self._no_reward}, mask=_mask(info))
        if self._raw is not None:
            self._raw.take()  # a wrapper may step before it returns the first observation
            frame.raw_reward = frame.reward
        return frame

    def step(self, action: dict[str, Array]) -> Frame:
        return self.frame(self.act(self._action(action[SINGLE_GROUP][0])))

    def act(self, action: Any) -> Outcome:
        """Take a step with an action in the environment's own form; return its outcome without building a frame."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, bool(terminated), self.count_step() or bool(truncated), info

    def count_step(self) -> bool:
        """Count a step that was taken elsewhere; return whether it reached the time limit."""
        self._steps += 1
        return self._steps >= self._limit

    def frame(self, outcome: Outcome) -> Frame:
        """Build the frame of an outcome."""
        obs, reward, terminated, truncated, info = outcome
        rewards = self._no_reward.copy()
        rewards[:] = reward  # a number, or an array of one
        frame = Frame(
            {SINGLE_GROUP: self._observe(obs)},
            {SINGLE_GROUP: rewards},
            terminated,
            truncated,
            mask=_mask(info) if info else None,
        )
        if self._raw is not None:
            frame.raw_reward = {SINGLE_GROUP: self._raw.take()}
        return frame

    def render(self) -> Array | None:
        frame = self.env.render()
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        close(self.env, self.spec.id)


def close(env: Any, name: str) -> None:
    """Close an environment; only warn if that fails, since its results are there."""
    try:
        env.close()
    except Exception as problem:
        message = f"environment {name} raised {type(problem).__name__} when it was closed: {problem}"
        warnings.warn(message, stacklevel=3)


def _mask(info: Mapping[str, Any]) -> dict[str, Array] | None:
    mask = info.get("action_mask")
    return None if mask is None else {SINGLE_GROUP: np.asarray(mask, bool)[None]}


def as_dict_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of the trees that `observer` makes: tuples become dicts. Refuse unsupported spaces."""
    if isinstance(space, spaces.Tuple):
        return spaces.Dict({str(index): as_dict_space(part) for index, part in enumerate(space.spaces)})
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: as_dict_space(part) for key, part in space.spaces.items()})
    shape_of(space)
    return space


def as_declared_tree(space: spaces.Space[Any], obs: Any, where: str = "") -> Tree:
    """Return a bare environment's observation as the tree of `space`, without an agent axis; refuse wrong shapes."""
    if isinstance(space, spaces.Dict):
        parts = parts_of(space, obs, where)
        return {key: as_declared_tree(part, parts[key], f"{where} [{key}]") for key, part in space.spaces.items()}
    array = as_declared(space, obs)
    if array.shape != space.shape:
        raise ValueError(f"an observation{where} has the shape {space.shape}, not {np.shape(obs)}")
    return array.astype(shape_of(space)[1], casting="same_kind", copy=False)


def parts_of(space: spaces.Dict, obs: Any, where: str = "") -> Mapping[str, Any]:
    """Return the parts of an observation by key; refuse one that lacks a part. Parts beyond the space are ignored."""
    indexed = isinstance(obs, tuple | list | np.ndarray)  # as Gymnasium's Tuple takes them
    parts = {str(index): part for index, part in enumerate(obs)} if indexed else obs
    if not isinstance(parts, Mapping) or not parts.keys() >= space.spaces.keys():
        actual = list(parts) if isinstance(obs, Mapping | tuple | list) else type(obs).__name__
        raise ValueError(f"an observation{where} has the parts {list(space.spaces)}, not {actual}")
    return parts


def observer(space: spaces.Space[Any], axis: int | None = 0) -> Callable[[Any], Tree]:
    """Return the function from an observation to a tree of arrays, with an agent axis at `axis` (None: none)."""
    if isinstance(space, spaces.Dict):
        observers = [(key, observer(part, axis)) for key, part in space.spaces.items()]

        def observe_parts(obs: Any) -> Tree:
            parts = parts_of(space, obs)
            return {key: observe(parts[key]) for key, observe in observers}

        return observe_parts
    dtype = shape_of(space)[1]

    def observe(obs: Any) -> Array:
        array = np.asarray(obs)
        if array.dtype != dtype:  # float64 for float32 is common; a float where a byte is declared is a fault
            array = array.astype(dtype, casting="same_kind")
        return array if axis is None else array[None] if axis == 0 else np.expand_dims(array, axis)

    return observe


def action_for(space: spaces.Space[Any], clip: bool) -> Callable[[Array], Any]:
    """Return the function from a policy's action of one agent to the form the environment takes."""
    if isinstance(space, spaces.Discrete):
        return int
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        return (lambda action: np.minimum(np.maximum(action, low), high)) if clip else (lambda action: action)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return lambda action: action
    supported = "Discrete, Box, MultiDiscrete and MultiBinary"
    raise ConfigError(f"{type(space).__name__} actions are not supported ({supported} are)")


def actions_for(space: spaces.Space[Any], clip: bool) -> Callable[[Array], Sequence[Any]]:
    """Return the function from actions [N, …] to a sequence of N actions in the form the environment takes."""
    if isinstance(space, spaces.Discrete):
        return lambda actions: actions.tolist()
    return action_for(space, clip)
