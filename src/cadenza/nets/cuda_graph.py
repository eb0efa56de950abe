"""A whole update as one CUDA graph: thousands of kernels that the GPU starts by itself, without the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cadenza.trees import leaves, map_tree
from cadenza.types import Tree

WARM = 3  # calls before the capture, in which libraries choose kernels and allocate workspaces

Function = Callable[[Tree], Tree]


class Captured:
    """A function from a tree of CUDA tensors to another, captured once for each set of input shapes.

    The tensors that it writes to besides its outputs (parameters, gradients, the optimizer's state) must not move. What
    it decides on the CPU is decided at the capture. Random numbers must be inputs. The next call overwrites the
    outputs.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Tree, Tree]] = {}

    def __call__(self, inputs: Tree) -> Tree:
        tensors = list(leaves(inputs))
        shapes = tuple((path, tensor.shape, tensor.dtype) for path, tensor in tensors)
        calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
        if calls <= WARM:
            return self._call_on_side_stream(inputs)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(inputs)
        graph, buffers, outputs = self._graphs[shapes]
        torch._foreach_copy_([buffer for _, buffer in leaves(buffers)], [tensor for _, tensor in tensors])
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

    def _capture(self, inputs: Tree) -> tuple[torch.cuda.CUDAGraph, Tree, Tree]:
        """Return the graph, its input buffers and its outputs; nothing is computed yet."""
        graph, buffers = torch.cuda.CUDAGraph(), map_tree(torch.clone, inputs)
        with no_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = self._function(buffers)
        return graph, buffers, outputs


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
