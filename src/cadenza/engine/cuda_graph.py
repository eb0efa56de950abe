"""A whole update as one CUDA graph: thousands of kernels that the device starts by itself, without the host."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cadenza.trees import leaves, map_tree
from cadenza.types import Tree

WARM = 3  # calls before the capture, in which libraries choose their kernels and allocate what they keep

Function = Callable[[Tree], Tree]


class Captured:
    """A function of a tree of CUDA tensors to another, captured for each set of shapes it is given.

    What it writes to beside its outputs (parameters, gradients, the optimizer's state) must stay where it is, and what
    it decides on the host is decided once. It draws no random numbers: those are given to it. Outputs are overwritten
    by the next call.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Tree, Tree]] = {}

    def __call__(self, inputs: Tree) -> Tree:
        given = list(leaves(inputs))
        shapes = tuple((path, tensor.shape, tensor.dtype) for path, tensor in given)
        calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
        if calls <= WARM:
            return self._aside(inputs)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(inputs)
        graph, held, outputs = self._graphs[shapes]
        torch._foreach_copy_([tensor for _, tensor in leaves(held)], [tensor for _, tensor in given])
        graph.replay()
        return outputs

    def _aside(self, inputs: Tree) -> Tree:
        """An ordinary call, but not on the default stream, of which nothing may be left when capturing."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            outputs = self._function(inputs)
        here.wait_stream(aside)
        return outputs

    def _capture(self, inputs: Tree) -> tuple[torch.cuda.CUDAGraph, Tree, Tree]:
        """The graph, and where its inputs and outputs lie; nothing is computed yet."""
        graph, held = torch.cuda.CUDAGraph(), map_tree(torch.clone, inputs)
        with no_garbage(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = self._function(held)
        return graph, held, outputs


@contextmanager
def no_garbage() -> Iterator[None]:
    """Collect it now and not inside: an old graph that is destroyed while another is captured spoils that one."""
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
