"""DeepMind Control (Tassa et al. 2018, arXiv:1801.00690): a robot's state, a camera's pixels, or both.

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
from cadenza.envs.arguments import check_arguments, require_choice, require_whole
from cadenza.envs.families import mujoco
from cadenza.envs.families.gym import Gym
from cadenza.envs.layout import Array
from cadenza.errors import ConfigError, EnvironmentFault

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
CAMERAS = {"quadruped": 2}  # the camera of published results, where it is not the first
DISPLAY_SIZE = 480  # height and width of a rendered picture
NO_PICTURES = f"pictures need OpenGL, and there is neither a screen nor {mujoco.NEEDED}"
Sees = Literal["state", "pixels", "both"]


def ids(family: str) -> list[str]:
    return [f"dmc/{domain}-{task}" for domain, tasks in TASKS.items() for task in tasks]


def make(config: EnvironmentConfig, render: bool = False) -> Gym:
    check_arguments(Control, config.kwargs, config.id, positional=2)
    domain, _, task = config.id.partition("/")[2].partition("-")
    env = Control(domain, task, **config.kwargs)
    return Gym(env, config, env.max_episode_steps)


class Control(gymnasium.Env[Any, Any]):
    """A task of the suite without its time limit, which the adapter applies.

    Each action is repeated `action_repeat` times and the rewards are added up. The state is one vector, in the suite's
    order.
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
        require_choice("sees", sees, get_args(Sees))
        require_whole("size", size, 1)
        require_whole("action_repeat", action_repeat, 1)
        self._can_draw = mujoco.choose_renderer() is not None
        if sees != "state" and not self._can_draw:
            raise EnvironmentFault(f"environment.kwargs.sees={sees}: {NO_PICTURES}")
        from dm_control import suite

        mujoco.prepare(render=False)
        # Every episode seeds the random state; this one is for models that are generated when they are made.
        task_kwargs = {"time_limit": math.inf, "random": np.random.RandomState(0)}
        self.suite = suite.load(domain, task, task_kwargs=task_kwargs)
        self._physics, self._task = self.suite.physics, self.suite.task
        self._substeps = round(self.suite.control_timestep() / self._physics.timestep())
        self._sees, self._size, self._repeat = sees, size, action_repeat
        self._camera = self._checked_camera(CAMERAS.get(domain, 0) if camera is None else camera)
        self.max_episode_steps = self._published_limit(getattr(suite, domain).SUITE[task])
        bounds = self.suite.action_spec()
        self.action_space = spaces.Box(bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32))
        length = sum(math.prod(part.shape) for part in self.suite.observation_spec().values())
        state: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (length,), np.float32)
        pixels = spaces.Box(0, 255, (3, size, size), np.uint8)
        by_name = {"state": state, "pixels": pixels, "both": spaces.Dict({"pixels": pixels, "state": state})}
        self.observation_space = by_name[sees]

    def get_action_meanings(self) -> list[str]:
        """Return the names of the actuators."""
        model = self._physics.model
        return [str(model.id2name(index, "actuator")) for index in range(model.nu)]

    def _published_limit(self, task: Any) -> int | None:
        """Return the time limit of the published task in actions, or None."""
        seconds = inspect.signature(task).parameters["time_limit"].default
        steps = round(seconds / self.suite.control_timestep(), 6) if math.isfinite(seconds) else None
        return None if steps is None else math.ceil(steps / self._repeat)

    def _checked_camera(self, camera: int | str) -> int | str:
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
        return self._observe(), {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do what the suite's `step` does without computing unused states: between repetitions, or beside pixels."""
        task, physics, total = self._task, self._physics, 0.0
        for _ in range(self._repeat):
            task.before_step(action, physics)
            physics.step(self._substeps)
            task.after_step(physics)
            total += float(task.get_reward(physics))
            discount = task.get_termination(physics)  # none: the episode continues
            if discount is not None:
                # an end with a discount above 0 is a truncation
                return self._observe(), total, not discount, bool(discount), {}
        return self._observe(), total, False, False, {}

    def _observe(self) -> Any:
        if self._sees == "pixels":
            return self._picture(self._size)
        parts = tuple(self._task.get_observation(self._physics).values())
        state = np.concatenate(parts, axis=None, dtype=np.float32, casting="same_kind")
        return state if self._sees == "state" else {"pixels": self._picture(self._size), "state": state}

    def _picture(self, size: int) -> Array:
        return np.ascontiguousarray(np.moveaxis(self._draw(size), -1, 0))

    def _draw(self, size: int) -> Array:
        """Draw a picture [size, size, 3]."""
        picture: Array = self._physics.render(size, size, camera_id=self._camera)
        return picture

    def render(self) -> Array:
        if not self._can_draw:
            raise EnvironmentFault(NO_PICTURES)
        return self._draw(DISPLAY_SIZE)

    def close(self) -> None:
        self._physics.free()
