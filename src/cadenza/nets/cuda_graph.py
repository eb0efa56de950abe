"""A whole update as one CUDA graph: thousands of kernels that the GPU starts by itself, without the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.trees import leaves, map_tree
from cadenza.types import Tree

WARM = 3  # calls before the capture, in which libraries choose kernels and allocate workspaces

Function = Callable[[Tree], Tree]
Generators = Callable[[], Iterable[torch.Generator]]


class Captured:
    """A function from a tree of CUDA tensors to another, captured once for each set of input shapes.

    The tensors that it writes to besides its outputs (parameters, gradients, the optimizer's state) must not move. What
    it decides on the CPU is decided at the capture. Random numbers are inputs, or drawn from `generators`. Inputs that
    are arrays go to the device together, in one copy. The next call overwrites the outputs.
    """

    def __init__(self, function: Function, generators: Generators = tuple) -> None:
        self._function, self._generators = function, generators
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Packed | None, list[Tensor], Tree]] = {}

    def __call__(self, inputs: Tree) -> Tree:
        items = list(leaves(inputs))
        shapes = tuple((path, item.shape, item.dtype) for path, item in items)
        calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
        if calls <= WARM:
            return self._call_on_side_stream(on_device(inputs))
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(inputs)
        graph, packed, buffers, outputs = self._graphs[shapes]
        if packed is not None:
            packed.fill([item for _, item in items if isinstance(item, np.ndarray)])
        if buffers:
            torch._foreach_copy_(buffers, [item for _, item in items if isinstance(item, Tensor)])
        graph.replay()
        return outputs

    def _call_on_side_stream(self, inputs: Tree) -> Tree:
        """Call the function without a graph, on a stream of its own: a capture needs an idle default stream."""
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            outputs = self._function(inputs)
        current.wait_stream(side)
        return outputs

    def _capture(self, inputs: Tree) -> tuple[torch.cuda.CUDAGraph, Packed | None, list[Tensor], Tree]:
        """Return the graph, its input buffers for arrays and tensors, and its outputs; nothing is computed yet."""
        graph, arrays = torch.cuda.CUDAGraph(), [x for _, x in leaves(inputs) if isinstance(x, np.ndarray)]
        packed = Packed(arrays) if arrays else None
        views = iter([] if packed is None else packed.views)
        buffers = map_tree(lambda x: x.clone() if isinstance(x, Tensor) else next(views), inputs)
        for generator in self._generators():
            graph.register_generator_state(generator)
        with no_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = self._function(buffers)
        tensors = zip(leaves(inputs), leaves(buffers), strict=True)
        return graph, packed, [buffer for (_, x), (_, buffer) in tensors if isinstance(x, Tensor)], outputs


class Packed:
    """Arrays of fixed shapes in one block of memory on the device, filled by one copy from pinned memory."""

    def __init__(self, like: list[np.ndarray]) -> None:
        ends = np.cumsum([-(-array.nbytes // 16) * 16 for array in like]).tolist()  # aligned for any type
        places = [slice(start, start + x.nbytes) for start, x in zip([0, *ends], like, strict=False)]
        self._block = torch.empty(ends[-1], dtype=torch.uint8, device="cuda")
        types = [torch.from_numpy(np.empty(0, array.dtype)).dtype for array in like]
        parts = zip(places, types, like, strict=True)
        self.views = [self._block[place].view(dtype).view(array.shape) for place, dtype, array in parts]
        # while one is being copied from, the other is filled
        self._pinned = [torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._targets = [
            [block.numpy()[place].view(x.dtype).reshape(x.shape) for place, x in zip(places, like, strict=True)]
            for block in self._pinned
        ]
        self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def fill(self, arrays: list[np.ndarray]) -> None:
        """Copy arrays of these shapes to the device; the host does not wait."""
        self._turn = 1 - self._turn
        self._copied[self._turn].synchronize()
        for target, array in zip(self._targets[self._turn], arrays, strict=True):
            np.copyto(target, array)
        self._block.copy_(self._pinned[self._turn], non_blocking=True)
        self._copied[self._turn].record()


def on_device(inputs: Tree) -> Tree:
    """Return a tree of tensors and arrays as CUDA tensors."""
    return map_tree(lambda x: x if isinstance(x, Tensor) else torch.from_numpy(x.copy()).cuda(), inputs)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage now and not inside: destroying an old graph during a capture invalidates the new one."""
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
