"""What MuJoCo needs around it: a renderer where there is no screen, and warnings that go where all others go."""

from __future__ import annotations

import ctypes.util
import os
import warnings

from cadenza.envs.display import has_display

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # MUJOCO_GL -> the library it loads


def prepare(render: bool) -> None:
    """Before an environment is made. Importing mujoco here is what fails where the extra is missing."""
    if render and not has_display():
        found = [name for name, library in LIBRARIES.items() if ctypes.util.find_library(library)]
        os.environ.setdefault("MUJOCO_GL", found[0] if found else "egl")
    import mujoco

    if mujoco.get_mju_user_warning() is None:  # else it prints them and leaves MUJOCO_LOG.TXT in the working folder
        mujoco.set_mju_user_warning(_warn)


def _warn(text: str) -> None:
    if "settotalmass" not in text:  # about the XML of Gymnasium's own models
        warnings.warn(f"MuJoCo: {text}", RuntimeWarning, stacklevel=2)
