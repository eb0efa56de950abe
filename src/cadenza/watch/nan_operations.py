"""Find the operation that first made a NaN, and the line of code that called it."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from cadenza.watch.workflow_contents import tensors

TORCH = str(Path(torch.__file__).parent)
HERE = str(Path(__file__).parent)
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
ANOMALY = re.compile(r"Error detected in (\w+)")


class FirstBad(TorchFunctionMode):
    """A context in which the first torch function that makes a NaN from inputs without one is recorded.

    An infinity may be intended (a mask, a limit); it is reported only if no NaN was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nan: dict[str, str] | None = None
        self.inf: dict[str, str] | None = None

    @property
    def operation(self) -> dict[str, str] | None:
        return self.nan or self.inf

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name == "__torch_function__":  # another mode called it
            frame = frame.f_back
        if self.nan is not None or frame is None or frame.f_code.co_filename.startswith(HERE):  # called by a check
            return result
        if getattr(func, "__name__", "").removeprefix("new_").startswith("empty"):  # uninitialised memory
            return result
        inputs = (args, kwargs or {})
        for kind, test in (("nan", torch.isnan), ("inf", torch.isinf)):
            if getattr(self, kind) is None and has(test, result) and not has(test, inputs):
                setattr(self, kind, {"function": resolve_name(func) or str(func), **caller(frame)})
        return result


def has(test: Any, values: Any) -> bool:
    """Return whether a test such as `torch.isnan` holds for any number in `values`."""
    return any(tensor.is_floating_point() and bool(test(tensor).any()) for _, tensor in tensors(values))


def caller(frame: FrameType | None) -> dict[str, str]:
    """Return the innermost line outside torch and these checks."""
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, HERE)):
        frame = frame.f_back
    return {} if frame is None else place(frame.f_code.co_filename, frame.f_lineno)


def forward_call(anomalies: Iterable[str]) -> dict[str, str] | None:
    """Return the backward function that torch's anomaly detection warned of, and the line of its forward call."""
    for text in anomalies:
        function = ANOMALY.search(text)
        if function is None:
            continue
        lines = [match for match in FRAME.finditer(text) if not match["file"].startswith((TORCH, HERE))]
        return {"function": function[1], **(place(lines[-1]["file"], int(lines[-1]["line"])) if lines else {})}
    return None


def place(file: str, line: int) -> dict[str, str]:
    """Return a line of code and where it stands."""
    return {"where": f"{file}:{line}", "code": linecache.getline(file, line).strip()}
