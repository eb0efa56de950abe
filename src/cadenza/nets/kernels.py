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
    """Return whether the kernels compute with this tensor. Torch's compiler fuses the plain operations itself."""
    if torch.compiler.is_compiling():
        return False
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and has_triton()
