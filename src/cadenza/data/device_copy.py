"""Asynchronous copies of arrays to a device, and of tensors back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.config.schedules import TimedSettings


def send(array: np.ndarray, device: torch.device) -> Tensor:
    """Return the array on the device, contiguous; on the CPU it may share memory with the array.

    Torch does not reuse the pinned memory that CUDA copies from until the copy is complete.
    """
    if device.type != "cuda":
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)
    pinned = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype, pin_memory=True)
    np.copyto(pinned.numpy(), array)
    return pinned.to(device, non_blocking=True)


def scheduled_tensors(timed: TimedSettings[Any], now: int, horizon: int, device: torch.device) -> dict[str, Tensor]:
    """Return the present value of every schedule at the top level of the settings, as inputs of a CUDA graph."""
    values = timed.values(now, horizon) if timed.schedules else {}
    return {key: send(np.array([value], np.float32), device)[0] for key, value in values.items() if "." not in key}


class Fetch:
    """A copy of tensors to the CPU that runs in the background; a call waits for it and returns arrays.

    On CUDA the tensors are copied as they are now, whatever is written over them afterwards.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._here = {name: tensor if tensor.is_cuda else tensor.cpu() for name, tensor in tensors.items()}
        self._arrived = None
        if any(tensor.is_cuda for tensor in tensors.values()):
            for name, tensor in tensors.items():
                pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                self._here[name] = pinned.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def __call__(self) -> dict[str, np.ndarray]:
        if self._arrived is not None:
            self._arrived.synchronize()
        return {name: tensor.numpy() for name, tensor in self._here.items()}
