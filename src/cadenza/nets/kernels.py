"""Whether the kernels of `fused.py` compute with a tensor. They are imported where they are used: Triton takes long."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def has_triton() -> bool:
    """Return whether Triton is installed, as it is with torch's builds for CUDA on Linux."""
    return find_spec("triton") is not None


def has_kernels(x: Tensor) -> bool:
    """Return whether the kernels compute with this tensor.

    Torch's compiler fuses the plain operations itself. Actions are chosen in inference mode and seldom in a graph:
    starting one of Triton's kernels then costs the host more than starting several of torch's.
    """
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return False
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and has_triton()
