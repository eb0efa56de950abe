"""DeepMind Control (Tassa et al. 2018, arXiv:1801.00690): what is measured of a robot, what a camera sees, or both.

Ids are `dmc/DOMAIN-TASK`, e.g. `dmc/walker-walk`.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces

from cadenza.config.schema import EnvironmentConfig
from cadenza.envs.families import mujoco
from cadenza.envs.families.gym import Gym, check_arguments
from cadenza.envs.layout import Array
from cadenza.errors import ConfigError, EnvironmentFault, nearest

TASKS = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
CAMERAS = {"quadruped": 2}  # what published results look through, where it is not the first
SHOWN = 480  # pixels of a picture for people
NO_PICTURES = f"pictures need OpenGL, and there is neither a screen nor {mujoco.NEEDED}"
Sees = Literal["state", "pixels", "both"]


def ids(family: str) -> list[str]:
    return [f"dmc/{domain}-{task}" for domain, tasks in TASKS.items() for task in tasks]


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    check_arguments(Control, config.kwargs, config.id, positional=2)
    domain, _, task = config.id.partition("/")[2].partition("-")
    env = Control(domain, task, **config.kwargs)
    return Gym(
        env,
        id=config.id,
        max_episode_steps=config.max_episode_steps or env.max_episode_steps,
        clip_actions=config.clip_actions,
    )


class Control(gymnasium.Env[Any, Any]):
    """A task of the suite without its time limit, which is the adapter's.

    Each action is done `action_repeat` times, and the rewards added. Measurements are one vector, in the suite's order.
    """

    render_mode = "rgb_array"

    def __init__(
        self,
        domain: str,
        task: str,
        sees: Sees = "state",
        size: int = 64,
        camera: int | str | None = None,
        action_repeat: int = 1,
    ) -> None:
        if sees not in get_args(Sees):
            near = nearest(str(sees), get_args(Sees))
            raise ConfigError(f"environment.kwargs.sees={sees}: must be state, pixels or both{near}")
        for key, value in (("size", size), ("action_repeat", action_repeat)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"environment.kwargs.{key}={value}: must be a whole number, at least 1")
        self._draws = mujoco.choose_renderer() is not None
        if sees != "state" and not self._draws:
            raise EnvironmentFault(f"environment.kwargs.sees={sees}: {NO_PICTURES}")
        from dm_control import suite

        mujoco.prepare(render=False)
        # The random state is seeded anew for every episode; this one is for models that are drawn when they are made.
        drawn = {"time_limit": math.inf, "random": np.random.RandomState(0)}
        self.suite = suite.load(domain, task, task_kwargs=drawn)
        self._physics, self._task = self.suite.physics, self.suite.task
        self._substeps = round(self.suite.control_timestep() / self._physics.timestep())
        self._sees, self._size, self._repeat = sees, size, action_repeat
        self._camera = self._found(CAMERAS.get(domain, 0) if camera is None else camera)
        self.max_episode_steps = self._own_limit(getattr(suite, domain).SUITE[task])
        bounds = self.suite.action_spec()
        self.action_space = spaces.Box(bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32))
        measured = sum(math.prod(part.shape) for part in self.suite.observation_spec().values())
        state: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (measured,), np.float32)
        pixels = spaces.Box(0, 255, (3, size, size), np.uint8)
        seen = {"state": state, "pixels": pixels, "both": spaces.Dict({"pixels": pixels, "state": state})}
        self.observation_space = seen[sees]

    def get_action_meanings(self) -> list[str]:
        """The actuators."""
        model = self._physics.model
        return [str(model.id2name(index, "actuator")) for index in range(model.nu)]

    def _own_limit(self, task: Any) -> int | None:
        """Of the task as it is published, in actions."""
        seconds = inspect.signature(task).parameters["time_limit"].default
        steps = round(seconds / self.suite.control_timestep(), 6) if math.isfinite(seconds) else None
        return None if steps is None else math.ceil(steps / self._repeat)

    def _found(self, camera: int | str) -> int | str:
        count = int(self._physics.model.ncam)
        names = [self._physics.model.id2name(index, "camera") for index in range(count)]
        if camera not in names and not (isinstance(camera, int) and -1 <= camera < count):
            raise ConfigError(f"environment.kwargs.camera={camera}: must be a number below {count}, or of {names}")
        return camera

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._task.random.seed(np.random.SeedSequence(seed).generate_state(8))
        self.suite.reset()
        return self._observed(), {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the suite's own `step` does, but for measuring what nobody sees: between repetitions, beside pixels."""
        task, physics, earned = self._task, self._physics, 0.0
        for _ in range(self._repeat):
            task.before_step(action, physics)
            physics.step(self._substeps)
            task.after_step(physics)
            earned += float(task.get_reward(physics))
            discount = task.get_termination(physics)  # none: it goes on
            if discount is not None:
                # an end that still counts the future is a limit of some kind, not the task's own
                return self._observed(), earned, not discount, bool(discount), {}
        return self._observed(), earned, False, False, {}

    def _observed(self) -> Any:
        if self._sees == "pixels":
            return self._picture(self._size)
        parts = tuple(self._task.get_observation(self._physics).values())
        state = np.concatenate(parts, axis=None, dtype=np.float32, casting="same_kind")
        return state if self._sees == "state" else {"pixels": self._picture(self._size), "state": state}

    def _picture(self, size: int) -> Array:
        return np.ascontiguousarray(np.moveaxis(self._drawn(size), -1, 0))

    def _drawn(self, size: int) -> Array:
        """[H, W, C]"""
        picture: Array = self._physics.render(size, size, camera_id=self._camera)
        return picture

    def render(self) -> Array:
        if not self._draws:
            raise EnvironmentFault(NO_PICTURES)
        return self._drawn(SHOWN)

    def close(self) -> None:
        self._physics.free()
