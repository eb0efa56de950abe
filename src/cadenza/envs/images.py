"""Images as networks take them: channels first, once and for all; grayscale, resizing and stacking of frames.

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
    """Bytes from 0 to 255 in two dimensions (grayscale), three, or four (a stack of frames)."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and 2 <= len(space.shape) <= 4
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def channels_first(picture: Array) -> Array:
    """The rule for every image, whatever order its axes come in:

    [H, W] is one channel. Of three axes the smaller of the first and the last is the channels, the first where they are
    equal: [H, W, C] is turned, [C, H, W] and a stack of grayscale frames [S, H, W] stay. Four axes are a stack of such
    images, whose channels are put one behind the other: [S, H, W, C] and [S, C, H, W] become [S*C, H, W].
    """
    if picture.ndim == 2:
        return picture[None]
    if picture.shape[-1] < picture.shape[-3]:
        picture = np.moveaxis(picture, -1, -3)
    return picture.reshape(-1, *picture.shape[-2:]) if picture.ndim == 4 else picture


def as_declared(space: spaces.Space[Any], value: Any) -> Array:
    """An observation's array in the layout its space declares: images may come as the bare environment gives them."""
    array = np.asarray(value)
    if array.shape != space.shape and is_image(space) and 2 <= array.ndim <= 4:
        array = channels_first(array)
    return array


def with_images_first(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment with its images channels first; itself where all of them are, or where that has been done."""
    if layer(env, OnImages) is not None or on_images(env.observation_space, channels_first)[0] == env.observation_space:
        return env
    return OnImages(env, channels_first)


def with_pictures(env: gymnasium.Env[Any, Any], config: EnvironmentConfig) -> gymnasium.Env[Any, Any]:
    """The environment under `grayscale`, `resize` and `frame_stack`, in this order."""
    asked = [name for name in ("grayscale", "resize") if getattr(config, name)]
    if asked and not has_images(env.observation_space):
        raise ConfigError(f"environment.{asked[0]}: {config.id} shows no images (bytes from 0 to 255, [H, W, C])")
    env = OnImages(env, as_asked(config))
    return FrameStack(env, config.frame_stack) if config.frame_stack else env


def as_asked(config: EnvironmentConfig) -> Change:
    """What `grayscale` and `resize` make of a picture, channels first in any case."""
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
    """Changes every image of the observations, and the space with it; all else passes."""

    def __init__(self, env: gymnasium.Env[Any, Any], change: Change) -> None:
        super().__init__(env)
        self.observation_space, self._see = on_images(env.observation_space, change)

    def observation(self, observation: Any) -> Any:
        return self._see(observation)


def on_images(space: spaces.Space[Any], change: Change) -> tuple[spaces.Space[Any], See]:
    """The space after a change of its images, and the function that makes it in an observation."""
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
    """The brightness [1, H, W] of an image [3, H, W]; one that has no colours stays."""
    if len(picture) == 1:
        return picture
    if len(picture) != 3:
        raise ConfigError(f"environment.grayscale: needs images of 3 channels, these have {len(picture)}")
    brightness: Array = (picture * LUMA).sum(axis=0, keepdims=True, dtype=np.uint16)
    gray: Array = ((brightness + np.uint16(128)) >> np.uint16(8)).astype(np.uint8)
    return gray


def resize(picture: Array, height: int, width: int) -> Array:
    """An image [C, H, W] in another size, each new pixel the mean of the area it covers.

    Sums of whole numbers, small enough to be exact in whatever order they are added: the same bits on every machine.
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
    """[new, size]: how much of each old pixel a new one covers, in units that make all of them whole numbers."""
    old, made = np.arange(size), np.arange(new)[:, None]
    ends = np.minimum((made + 1) * size, (old + 1) * new)
    shared: Array = np.maximum(0, ends - np.maximum(made * size, old * new)).astype(dtype)
    return shared


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The last `count` observations at once, the newest last; an episode begins with its first one repeated.

    Images are put together along their channels, other arrays along a new first axis.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], count: int) -> None:
        super().__init__(env)
        self.observation_space = stacked_space(env.observation_space, count)
        self._space, self._count = env.observation_space, count
        self._stack: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._stack = pushed(self._space, None, obs, self._count)
        return self._stack, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._stack = pushed(self._space, self._stack, obs, self._count)
        return self._stack, reward, terminated, truncated, info


def stacked_space(space: spaces.Space[Any], count: int) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: stacked_space(part, count) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(part, count) for part in space.spaces])
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"environment.frame_stack: {type(space).__name__} observations cannot be stacked (Box can)")
    low, high = (np.concatenate([stackable(space, bound)] * count) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype)


def pushed(space: spaces.Space[Any], stack: Any, obs: Any, count: int) -> Any:
    """A new stack with the observation as its newest; without an old one, with nothing else."""
    if isinstance(space, spaces.Dict):
        return {
            key: pushed(part, None if stack is None else stack[key], obs[key], count)
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        olds = [None] * len(obs) if stack is None else stack
        return tuple(pushed(part, old, new, count) for part, old, new in zip(space.spaces, olds, obs, strict=True))
    new = stackable(space, obs)
    return np.concatenate([new] * count if stack is None else [stack[len(new) :], new])


def stackable(space: spaces.Space[Any], obs: Any) -> Array:
    return np.asarray(obs) if is_image(space) else np.asarray(obs)[None]
