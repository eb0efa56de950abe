"""MuJoCo's surroundings: a renderer that works without a screen, warnings through Python's `warnings`, faster steps."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import warnings
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cadenza.envs.families.gym import Gym

from cadenza.envs.display import has_display

GL = "MUJOCO_GL"  # the variable that MuJoCo, Gymnasium and DeepMind Control read, each when it is first imported
OFF = ("off", "disable", "disabled", "false", "0")
NEEDED = "a working EGL or OSMesa (libegl1 with a driver, or libosmesa6)"
DEVICES, EGL_PLATFORM_DEVICE = 16, 0x313F


def prepare(render: bool) -> None:
    """Prepare this process before an environment is made; raise ImportError where the extra is missing."""
    if render:
        choose_renderer()
    import mujoco

    handler = mujoco.get_mju_user_warning()
    # without one MuJoCo prints and writes MUJOCO_LOG.TXT; DeepMind Control's handler (ctypes) prints, too
    if handler is None or type(handler).__module__ == "ctypes":
        mujoco.set_mju_user_warning(_warn)


def choose_renderer() -> str | None:
    """Return what draws pictures: MUJOCO_GL if set, else a screen, EGL, OSMesa or None; set MUJOCO_GL accordingly."""
    renderer = os.environ.get(GL)
    if renderer is None and has_display():
        return "glfw"
    if renderer is None:
        renderer = "egl" if egl_works() else "osmesa" if ctypes.util.find_library("OSMesa") else OFF[0]
        os.environ[GL] = renderer
    return None if renderer.lower() in OFF else renderer


def egl_works() -> bool:
    """Return whether an EGL device can be opened; without a driver the library is there but useless."""
    library = ctypes.util.find_library("EGL")
    if library is None:
        return False
    egl = ctypes.CDLL(library)
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    addresses = [egl.eglGetProcAddress(name) for name in (b"eglQueryDevicesEXT", b"eglGetPlatformDisplayEXT")]
    if not all(addresses):
        return False
    pointer, devices, count = ctypes.c_void_p, (ctypes.c_void_p * DEVICES)(), ctypes.c_int()
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, pointer, pointer)(addresses[0])
    display_of = ctypes.CFUNCTYPE(pointer, ctypes.c_uint, pointer, pointer)(addresses[1])
    if not query(DEVICES, devices, ctypes.byref(count)):
        return False
    egl.eglInitialize.argtypes, egl.eglTerminate.argtypes = [pointer] * 3, [pointer]
    for device in devices[: count.value]:
        display = display_of(EGL_PLATFORM_DEVICE, device, None)
        if display and egl.eglInitialize(display, None, None):
            egl.eglTerminate(display)
            return True
    return False


def _warn(text: str) -> None:
    if "settotalmass" not in text:  # about the XML of Gymnasium's own models
        warnings.warn(f"MuJoCo: {text}", RuntimeWarning, stacklevel=2)


class HalfCheetahs:
    """Gymnasium's HalfCheetahs without wrappers, stepped with less Python around the physics.

    Simulations, observations and rewards are the same bit for bit; there is no `info`. Gymnasium's own step takes 6 us
    per environment besides the physics, which take 20.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        import mujoco

        self._step, self._complete = mujoco.mj_step, mujoco.mj_rnePostConstraint
        self._parts = [(env.model, env.data, env.data.ctrl, env.data.qpos, env.data.qvel) for env in envs]
        first = envs[0]
        self._frame_skip, self._seconds = first.frame_skip, first.dt
        self._skipped = first.observation_structure["skipped_qpos"]
        self._weights = first._forward_reward_weight, first._ctrl_cost_weight
        self._velocity = np.zeros(len(envs))

    def step(self, actions: np.ndarray, obs: np.ndarray, mark: MutableSequence[int], index: int) -> list[Any]:
        """Step with actions [N, 6], write observations [N, 17] to `obs`, return rewards.

        The number of the environment that is stepped is written to `mark[index]`.
        """
        positions = len(self._parts[0][3]) - self._skipped
        for number, (action, row, (model, data, ctrl, qpos, qvel)) in enumerate(
            zip(actions, obs, self._parts, strict=True)
        ):
            mark[index] = number
            before = qpos[0]
            ctrl[:] = action
            self._step(model, data, self._frame_skip)
            self._complete(model, data)
            row[:positions] = qpos[self._skipped :]
            row[positions:] = qvel
            self._velocity[number] = (qpos[0] - before) / self._seconds
        forward, control = self._weights
        costs = np.add.reduce(np.square(actions), -1)
        # scalar by scalar, since NumPy 1 gives products of scalars another precision than products of arrays
        return [forward * velocity - control * cost for velocity, cost in zip(self._velocity, costs, strict=True)]


def together(envs: Sequence[Gym]) -> HalfCheetahs | None:
    """Return what steps all environments, or None where they must be stepped one by one."""
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

    if not all(type(env.env) is HalfCheetahEnv and env.env.render_mode != "human" for env in envs):
        return None
    settings = ("frame_skip", "dt", "_forward_reward_weight", "_ctrl_cost_weight", "observation_structure")
    first, *others = (env.env for env in envs)
    if any(getattr(other, name) != getattr(first, name) for other in others for name in settings):
        return None
    return HalfCheetahs([env.env for env in envs])
