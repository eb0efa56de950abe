"""Arrays on their way to a device, and tensors on their way back: neither side waits for the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def send(array: np.ndarray, device: torch.device) -> Tensor:
    """The array on the device, contiguous there; on the CPU it may be the same memory.

    Torch keeps the pinned memory that CUDA copies from out of use until the copy is made.
    """
    if device.type != "cuda":
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)
    pinned = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype, pin_memory=True)
    np.copyto(pinned.numpy(), array)
    return pinned.to(device, non_blocking=True)


class Fetch:
    """Tensors that were sent for; calling it gives them as arrays and waits for those that are not here yet.

    On CUDA they are copied as they are now, whatever is written over them afterwards.
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
