"""Gymnasium environments (its own families, and any environment of one's own) as `Environment`s.

Tuple observations become dicts keyed "0", "1", …; discrete observations stay integers; images are channels first.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.action_names import names_for, of_gymnasium
from cadenza.envs.families import mujoco
from cadenza.envs.families.box2d import with_fresh_worlds
from cadenza.envs.images import as_declared, with_images_first
from cadenza.envs.layout import Array, shape_of
from cadenza.envs.wrappers import RawReward, layer
from cadenza.errors import ConfigError, nearest
from cadenza.types import SINGLE_GROUP, EnvSpec, Frame, GroupSpec, Tree

if TYPE_CHECKING:
    from cadenza.envs.native import MakeNative

# Where the classes of a family are, and what their ids look like. MuJoCo's v4 and older ones are kept for old results.
REGISTERED = {
    "classic": ("gymnasium.envs.classic_control.", ""),
    "toy_text": ("gymnasium.envs.toy_text.", ""),
    "box2d": ("gymnasium.envs.box2d", ""),
    "mujoco": ("gymnasium.envs.mujoco", "-v5"),
}


def ids(family: str) -> list[str]:
    """What Gymnasium has registered for the family, its packages installed or not."""
    place, version = REGISTERED[family]
    registered = gymnasium.registry.items()
    return [id for id, spec in registered if str(spec.entry_point).startswith(place) and id.endswith(version)]


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    """One environment of Gymnasium's registry, without its wrappers: order, checks and time limits are ours."""
    spec = gymnasium.spec(config.id)
    if str(spec.entry_point).startswith(REGISTERED["mujoco"][0]):
        mujoco.prepare(render)
    if isinstance(spec.entry_point, str):
        check_arguments(load_env_creator(spec.entry_point), config.kwargs, config.id)
    kwargs = {**config.kwargs, **({"render_mode": "rgb_array"} if render else {})}
    bare = dataclasses.replace(spec, order_enforce=False)
    env = gymnasium.make(bare, max_episode_steps=-1, disable_env_checker=True, **kwargs)
    return Gym(
        env,
        id=config.id,
        max_episode_steps=config.max_episode_steps or spec.max_episode_steps,
        return_threshold=spec.reward_threshold,
        clip_actions=config.clip_actions,
        action_names=of_gymnasium(config.id, env.action_space),
    )


def native(config: EnvironmentConfig) -> MakeNative | None:
    """A vectorised version of our own, where one exists."""
    if not config.id.startswith("CartPole-v"):
        return None
    from cadenza.envs.native import cartpole

    return cartpole(config, lambda: make(config).spec)


def check_arguments(
    creator: Callable[..., Any],
    kwargs: Mapping[str, Any],
    name: str,
    where: str = "environment.kwargs",
    positional: int = 0,
) -> None:
    """Refuse keyword arguments that what a config names does not take, beyond the positional ones it is given."""
    parameters = inspect.signature(creator).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    takes = list(parameters)[positional:]
    for key in kwargs:
        if key not in takes:
            raise ConfigError(
                f"{where}.{key}: {name} takes no such argument{nearest(key, takes)} "
                f"(it takes: {', '.join(takes) or 'none'})"
            )


Outcome = tuple[Any, Any, bool, bool, Mapping[str, Any]]  # of Gymnasium's `step`; time limits are in it


class Gym:
    """A gymnasium.Env as the group `agent` with one agent. It owns the time limit; it never resets by itself."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        id: str,
        max_episode_steps: int | None = None,
        return_threshold: float | None = None,
        clip_actions: bool = True,
        frame_stack: int = 1,
        action_names: Sequence[str] = (),
    ) -> None:
        self.bare = env  # for wrappers, which want images as the environment gives them
        self.env = env = with_images_first(with_fresh_worlds(env))
        self._raw = layer(env, RawReward)
        seen = as_dict_space(env.observation_space)
        self._observe = observer(seen)
        self._action = action_for(env.action_space, clip_actions)
        self.actions = actions_for(env.action_space, clip_actions)
        self._limit = max_episode_steps or 2**63
        self._steps = 0
        self._no_reward = np.zeros(1, np.float32)
        group = GroupSpec((SINGLE_GROUP,), seen, env.action_space, action_names=names_for(env, action_names))
        self.spec = EnvSpec(
            id=id,
            groups={SINGLE_GROUP: group},
            max_episode_steps=max_episode_steps,
            return_threshold=None if return_threshold is None else float(return_threshold),
            frame_stack=frame_stack,
        )

    def reset(self, seed: int) -> Frame:
        obs, info = self.env.reset(seed=seed)
        self._steps = 0
        frame = Frame({SINGLE_GROUP: self._observe(obs)}, {SINGLE_GROUP: self._no_reward}, mask=_mask(info))
        if self._raw is not None:
            self._raw.take()  # a wrapper may have stepped on its way to the first observation
            frame.raw_reward = frame.reward
        return frame

    def step(self, action: dict[str, Array]) -> Frame:
        return self.frame(self.act(self._action(action[SINGLE_GROUP][0])))

    def act(self, action: Any) -> Outcome:
        """A step without its frame, by an action as the environment takes it."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return obs, reward, bool(terminated), bool(truncated) or self._steps >= self._limit, info

    def frame(self, outcome: Outcome) -> Frame:
        obs, reward, terminated, truncated, info = outcome
        earned = self._no_reward.copy()
        earned[:] = reward  # a number, or an array of one
        frame = Frame(
            {SINGLE_GROUP: self._observe(obs)},
            {SINGLE_GROUP: earned},
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
    """An environment that cannot be closed is only warned of: what it was made for is done."""
    try:
        env.close()
    except Exception as problem:
        told = f"environment {name} raised {type(problem).__name__} when it was closed: {problem}"
        warnings.warn(told, stacklevel=3)


def _mask(info: Mapping[str, Any]) -> dict[str, Array] | None:
    mask = info.get("action_mask")
    return None if mask is None else {SINGLE_GROUP: np.asarray(mask, bool)[None]}


def as_dict_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space of the trees that `observer` makes."""
    if isinstance(space, spaces.Tuple):
        return spaces.Dict({str(index): as_dict_space(part) for index, part in enumerate(space.spaces)})
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: as_dict_space(part) for key, part in space.spaces.items()})
    shape_of(space)
    return space


def as_seen(space: spaces.Space[Any], obs: Any, where: str = "") -> Tree:
    """An observation of the bare environment as the tree that `as_dict_space` declares, without an agent axis."""
    if isinstance(space, spaces.Dict):
        given = parts_of(space, obs, where)
        return {key: as_seen(part, given[key], f"{where} [{key}]") for key, part in space.spaces.items()}
    array = as_declared(space, obs)
    if array.shape != space.shape:
        raise ValueError(f"an observation{where} has the shape {space.shape}, not {np.shape(obs)}")
    return array.astype(shape_of(space)[1], casting="same_kind", copy=False)


def parts_of(space: spaces.Dict, obs: Any, where: str = "") -> Mapping[str, Any]:
    """An observation of several parts by key; those that its space does not declare are nobody's business."""
    several = isinstance(obs, tuple | list | np.ndarray)  # as Gymnasium's Tuple takes them
    given = {str(index): part for index, part in enumerate(obs)} if several else obs
    if not isinstance(given, Mapping) or not given.keys() >= space.spaces.keys():
        found = list(given) if isinstance(obs, Mapping | tuple | list) else type(obs).__name__
        raise ValueError(f"an observation{where} has the parts {list(space.spaces)}, not {found}")
    return given


def observer(space: spaces.Space[Any], axis: int | None = 0) -> Callable[[Any], Tree]:
    """A function from the environment's observation to a tree of arrays, with an agent axis put in at `axis`."""
    if isinstance(space, spaces.Dict):
        parts = [(key, observer(part, axis)) for key, part in space.spaces.items()]

        def see_parts(obs: Any) -> Tree:
            given = parts_of(space, obs)
            return {key: see(given[key]) for key, see in parts}

        return see_parts
    dtype = shape_of(space)[1]

    def see(obs: Any) -> Array:
        array = np.asarray(obs)
        if array.dtype != dtype:  # float64 for float32 is common; a float where a byte is declared is a fault
            array = array.astype(dtype, casting="same_kind")
        return array if axis is None else array[None] if axis == 0 else np.expand_dims(array, axis)

    return see


def action_for(space: spaces.Space[Any], clip: bool) -> Callable[[Array], Any]:
    """A function from a policy's action (of one agent) to the one the environment takes."""
    if isinstance(space, spaces.Discrete):
        return int
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        return (lambda action: np.minimum(np.maximum(action, low), high)) if clip else (lambda action: action)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return lambda action: action
    known = "Discrete, Box, MultiDiscrete and MultiBinary"
    raise ConfigError(f"{type(space).__name__} actions are not supported ({known} are)")


def actions_for(space: spaces.Space[Any], clip: bool) -> Callable[[Array], Sequence[Any]]:
    """The same for the actions [N, …] of many environments at once."""
    if isinstance(space, spaces.Discrete):
        return lambda actions: actions.tolist()
    one = action_for(space, clip)
    return lambda actions: list(one(actions))
