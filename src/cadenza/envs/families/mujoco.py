"""MuJoCo's surroundings: a renderer that works without a screen, and warnings through Python's `warnings`."""

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
