"""Images as networks take them: channels first, perhaps grayscale, resized and stacked.

Every image an agent sees is a uint8 array [C, H, W], also inside dict and tuple observations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.layout import Array
from cadenza.envs.wrappers import layer
from cadenza.errors import ConfigError

Change = Callable[[Array], Array]
See = Callable[[Any], Any]
LUMA = np.array([77, 150, 29], np.uint16).reshape(3, 1, 1)  # ITU-R BT.601 in 256ths


def is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a space holds bytes from 0 to 255 in two (grayscale), three or four (stacked) dimensions."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and 2 <= len(space.shape) <= 4
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def channels_first(picture: Array) -> Array:
    """Return an image as [C, H, W], whatever the order of its axes.

    [H, W] is one channel. Of three axes the smaller of the first and the last is the channels, the first where they are
    equal: [H, W, C] is turned, [C, H, W] and a stack of grayscale frames [S, H, W] stay. Four axes are a stack of such
    images, whose channels are concatenated: [S, H, W, C] and [S, C, H, W] become [S*C, H, W].
    """
    if picture.ndim == 2:
        return picture[None]
    if picture.shape[-1] < picture.shape[-3]:
        picture = np.moveaxis(picture, -1, -3)
    return picture.reshape(-1, *picture.shape[-2:]) if picture.ndim == 4 else picture


def as_declared(space: spaces.Space[Any], value: Any) -> Array:
    """Return an observation as an array in its space's layout; images may have that of the bare environment."""
    array = np.asarray(value)
    if array.shape != space.shape and is_image(space) and 2 <= array.ndim <= 4:
        array = channels_first(array)
    return array


def with_images_first(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Wrap an environment so that its images are channels first; return it as it is where they are already."""
    if layer(env, OnImages) is not None or on_images(env.observation_space, channels_first)[0] == env.observation_space:
        return env
    return OnImages(env, channels_first)


def with_pictures(env: gymnasium.Env[Any, Any], config: EnvironmentConfig) -> gymnasium.Env[Any, Any]:
    """Wrap an environment in `grayscale`, `resize` and `frame_stack`, in this order, as far as `config` sets them."""
    changes = [name for name in ("grayscale", "resize") if getattr(config, name)]
    if changes and not has_images(env.observation_space):
        raise ConfigError(f"environment.{changes[0]}: {config.id} shows no images (bytes from 0 to 255, [H, W, C])")
    env = OnImages(env, image_change(config))
    return FrameStack(env, config.frame_stack) if config.frame_stack else env


def image_change(config: EnvironmentConfig) -> Change:
    """Return the function that turns a picture channels first and applies `grayscale` and `resize`."""
    changes: list[Change] = [channels_first]
    if config.grayscale:
        changes.append(grayscale)
    if size := config.picture_size:
        changes.append(lambda picture: resize(picture, *size))

    def change(picture: Array) -> Array:
        for each in changes:
            picture = each(picture)
        return picture

    return change


def has_images(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return any(has_images(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(has_images(part) for part in space.spaces)
    return is_image(space)


class OnImages(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper that changes every image of the observations, and the space with it."""

    def __init__(self, env: gymnasium.Env[Any, Any], change: Change) -> None:
        super().__init__(env)
        self.observation_space, self._see = on_images(env.observation_space, change)

    def observation(self, observation: Any) -> Any:
        return self._see(observation)


def on_images(space: spaces.Space[Any], change: Change) -> tuple[spaces.Space[Any], See]:
    """Return the space after a change of its images, and the function that changes an observation accordingly."""
    if isinstance(space, spaces.Dict):
        parts = {key: on_images(part, change) for key, part in space.spaces.items()}
        changed = spaces.Dict({key: part for key, (part, _) in parts.items()})
        return changed, lambda obs: {key: see(obs[key]) for key, (_, see) in parts.items()}
    if isinstance(space, spaces.Tuple):
        members = [on_images(part, change) for part in space.spaces]
        return spaces.Tuple([part for part, _ in members]), lambda obs: tuple(
            see(part) for part, (_, see) in zip(obs, members, strict=True)
        )
    if is_image(space):
        return spaces.Box(0, 255, change(np.zeros(space.shape or (), np.uint8)).shape, np.uint8), change
    return space, lambda obs: obs


def grayscale(picture: Array) -> Array:
    """Return the brightness [1, H, W] of an image [3, H, W]; an image of one channel stays."""
    if len(picture) == 1:
        return picture
    if len(picture) != 3:
        raise ConfigError(f"environment.grayscale: needs images of 3 channels, these have {len(picture)}")
    brightness: Array = (picture * LUMA).sum(axis=0, keepdims=True, dtype=np.uint16)
    gray: Array = ((brightness + np.uint16(128)) >> np.uint16(8)).astype(np.uint8)
    return gray


def resize(picture: Array, height: int, width: int) -> Array:
    """Resize an image [C, H, W]; each new pixel is the mean of the area it covers.

    The sums are of whole numbers, small enough to be exact in any order: the same bits on every machine.
    """
    rows, columns = picture.shape[-2:]
    if (rows, columns) == (height, width):
        return picture
    area = rows * columns
    dtype = np.float32 if 255 * area < 2**24 else np.float64
    down, across = overlaps(rows, height, dtype), overlaps(columns, width, dtype).T
    sums = down @ np.ascontiguousarray(picture, dtype) @ across
    means: Array = np.floor(sums / dtype(area) + dtype(0.5)).astype(np.uint8)
    return means


@lru_cache(maxsize=32)
def overlaps(size: int, new: int, dtype: type) -> Array:
    """Return [new, size]: how much of each old pixel a new one covers, in units in which all are whole numbers."""
    old, fresh = np.arange(size), np.arange(new)[:, None]
    ends = np.minimum((fresh + 1) * size, (old + 1) * new)
    shared: Array = np.maximum(0, ends - np.maximum(fresh * size, old * new)).astype(dtype)
    return shared


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that returns the last `count` observations, the newest last; an episode starts with its first repeated.

    Images are concatenated along their channels, other arrays stacked along a new first axis.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], count: int) -> None:
        super().__init__(env)
        self.observation_space = stacked_space(env.observation_space, count)
        self._space, self._count = env.observation_space, count
        self._stack: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._stack = push_frame(self._space, None, obs, self._count)
        return self._stack, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._stack = push_frame(self._space, self._stack, obs, self._count)
        return self._stack, reward, terminated, truncated, info


def stacked_space(space: spaces.Space[Any], count: int) -> spaces.Space[Any]:
    """Return the space of `count` stacked observations; refuse parts that are no Box."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: stacked_space(part, count) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(part, count) for part in space.spaces])
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"environment.frame_stack: {type(space).__name__} observations cannot be stacked (Box can)")
    low, high = (np.concatenate([with_stack_axis(space, bound)] * count) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype)


def push_frame(space: spaces.Space[Any], stack: Any, obs: Any, count: int) -> Any:
    """Return a new stack with `obs` as its newest; without an old stack, `obs` repeated."""
    if isinstance(space, spaces.Dict):
        return {
            key: push_frame(part, None if stack is None else stack[key], obs[key], count)
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        olds = [None] * len(obs) if stack is None else stack
        return tuple(push_frame(part, old, new, count) for part, old, new in zip(space.spaces, olds, obs, strict=True))
    new = with_stack_axis(space, obs)
    return np.concatenate([new] * count if stack is None else [stack[len(new) :], new])


def with_stack_axis(space: spaces.Space[Any], obs: Any) -> Array:
    """Return an observation with the axis along which frames are stacked: an image's channels, else a new one."""
    return np.asarray(obs) if is_image(space) else np.asarray(obs)[None]
