"""MiniGrid (Chevalier-Boisvert et al. 2023): rooms, keys and doors; ids are `MiniGrid-DoorKey-5x5-v0`."""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.arguments import require_choice
from cadenza.envs.display import prepare_pygame
from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Array

NAMES = (
    "BlockedUnlockPickup LavaCrossingS9N1 LavaCrossingS9N2 LavaCrossingS9N3 LavaCrossingS11N5 SimpleCrossingS9N1 "
    "SimpleCrossingS9N2 SimpleCrossingS9N3 SimpleCrossingS11N5 DistShift1 DistShift2 DoorKey-5x5 DoorKey-6x6 "
    "DoorKey-8x8 DoorKey-16x16 Dynamic-Obstacles-5x5 Dynamic-Obstacles-Random-5x5 Dynamic-Obstacles-6x6 "
    "Dynamic-Obstacles-Random-6x6 Dynamic-Obstacles-8x8 Dynamic-Obstacles-16x16 Empty-5x5 Empty-Random-5x5 "
    "Empty-6x6 Empty-Random-6x6 Empty-8x8 Empty-16x16 Fetch-5x5-N2 Fetch-6x6-N2 Fetch-8x8-N3 FourRooms "
    "GoToDoor-5x5 GoToDoor-6x6 GoToDoor-8x8 GoToObject-6x6-N2 GoToObject-8x8-N2 KeyCorridorS3R1 KeyCorridorS3R2 "
    "KeyCorridorS3R3 KeyCorridorS4R3 KeyCorridorS5R3 KeyCorridorS6R3 LavaGapS5 LavaGapS6 LavaGapS7 LockedRoom "
    "MemoryS17Random MemoryS13Random MemoryS13 MemoryS11 MemoryS9 MemoryS7 MultiRoom-N2-S4 MultiRoom-N4-S5 "
    "MultiRoom-N6 ObstructedMaze-1Dl ObstructedMaze-1Dlh ObstructedMaze-1Dlhb ObstructedMaze-2Dl "
    "ObstructedMaze-2Dlh ObstructedMaze-2Dlhb ObstructedMaze-1Q ObstructedMaze-2Q ObstructedMaze-Full Playground "
    "PutNear-6x6-N2 PutNear-8x8-N3 RedBlueDoors-6x6 RedBlueDoors-8x8 Unlock UnlockPickup"
)
SECOND = ("MultiRoom-N4-S5", "ObstructedMaze-2Dlhb", "ObstructedMaze-1Q", "ObstructedMaze-2Q", "ObstructedMaze-Full")
HIGHEST = 10  # the highest code of an object type; colours, states and letters have lower ones
Sees = Literal["flat", "grid", "pixels", "pixels_full"]


def ids(family: str) -> list[str]:
    """Return all ids but those of wave function collapse, which need a further package."""
    return [f"MiniGrid-{name}-v0" for name in NAMES.split()] + [f"MiniGrid-{name}-v1" for name in SECOND]


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    """Make an environment; `environment.kwargs.sees` is cadenza's, the other arguments go to the environment."""
    sees = config.kwargs.get("sees", "flat")
    require_choice("sees", sees, get_args(Sees))
    kwargs = {key: value for key, value in config.kwargs.items() if key != "sees"}
    if config.max_episode_steps:  # rewards shrink towards the limit, so the environment needs it
        kwargs["max_steps"] = config.max_episode_steps
    prepare_pygame()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about ids that others register
        import minigrid  # noqa: F401  (the import registers its environments)

        env = gymnasium.make(config.id, render_mode="rgb_array", disable_env_checker=True, **kwargs).unwrapped
    limit: int = env.max_steps  # type: ignore[attr-defined]
    names = tuple(action.name for action in env.actions)[: env.action_space.n]  # type: ignore[attr-defined]
    return Gym(observed(env, sees), config, limit, action_names=names)


def observed(env: gymnasium.Env[Any, Any], sees: Sees) -> gymnasium.Env[Any, Any]:
    """Wrap an environment so that it returns the kind of observation that `sees` names."""
    from minigrid import wrappers

    if sees == "flat":
        return Flat(env, wrappers.FlatObsWrapper(env))
    if sees == "grid":
        return Grid(env)
    pictured = wrappers.RGBImgPartialObsWrapper if sees == "pixels" else wrappers.RGBImgObsWrapper
    images: gymnasium.Env[Any, Any] = wrappers.ImgObsWrapper(pictured(env))  # type: ignore[no-untyped-call]
    return images


class Flat(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper with FlatObsWrapper's observations, which encodes a mission only when it changes."""

    def __init__(self, env: gymnasium.Env[Any, Any], flat: gymnasium.ObservationWrapper[Any, Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, HIGHEST, flat.observation_space.shape, np.uint8)
        self._whole = flat.observation
        self._cells = int(np.prod(env.observation_space["image"].shape))  # type: ignore[index]
        self._mission: str | None = None

    def observation(self, observation: Any) -> Array:
        if observation["mission"] != self._mission:
            self._mission, self._last = observation["mission"], self._whole(observation)
        flat: Array = self._last.copy()
        flat[: self._cells] = observation["image"].reshape(-1)
        return flat


class Grid(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper that shows the visible 7 x 7 cells as codes (type, colour, state) and the direction; no mission."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._cells = int(np.prod(env.observation_space["image"].shape))  # type: ignore[index]
        self.observation_space = spaces.Box(0, HIGHEST, (self._cells + 1,), np.uint8)

    def observation(self, observation: Any) -> Array:
        codes = np.empty(self._cells + 1, np.uint8)
        codes[:-1] = observation["image"].reshape(-1)
        codes[-1] = observation["direction"]
        return codes
