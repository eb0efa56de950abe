"""What MuJoCo needs around it: a renderer where there is no screen, and warnings that go where all others go."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import warnings

from cadenza.envs.display import has_display

GL = "MUJOCO_GL"  # the variable that MuJoCo, Gymnasium and DeepMind Control read, each when it is first imported
OFF = ("off", "disable", "disabled", "false", "0")
NEEDED = "a working EGL or OSMesa (libegl1 with a driver, or libosmesa6)"
DEVICES, EGL_PLATFORM_DEVICE = 16, 0x313F


def prepare(render: bool) -> None:
    """Before an environment is made. Importing mujoco here is what fails where the extra is missing."""
    if render:
        choose_renderer()
    import mujoco

    told = mujoco.get_mju_user_warning()
    # nobody: it prints them and leaves MUJOCO_LOG.TXT in the working folder; DeepMind Control's prints them, too
    if told is None or type(told).__module__ == "ctypes":
        mujoco.set_mju_user_warning(_warn)


def choose_renderer() -> str | None:
    """What pictures are drawn with, here and in whatever is imported next: a screen, EGL, OSMesa, or nothing."""
    chosen = os.environ.get(GL)
    if chosen is None and has_display():
        return "glfw"
    if chosen is None:
        chosen = "egl" if egl_works() else "osmesa" if ctypes.util.find_library("OSMesa") else OFF[0]
        os.environ[GL] = chosen
    return None if chosen.lower() in OFF else chosen


def egl_works() -> bool:
    """Whether a device can be opened. The library alone says little: without a driver, it is there and of no use."""
    name = ctypes.util.find_library("EGL")
    if name is None:
        return False
    egl = ctypes.CDLL(name)
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    found = [egl.eglGetProcAddress(wanted) for wanted in (b"eglQueryDevicesEXT", b"eglGetPlatformDisplayEXT")]
    if not all(found):
        return False
    pointer, devices, count = ctypes.c_void_p, (ctypes.c_void_p * DEVICES)(), ctypes.c_int()
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, pointer, pointer)(found[0])
    display_of = ctypes.CFUNCTYPE(pointer, ctypes.c_uint, pointer, pointer)(found[1])
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
