"""The resources that a run uses: processors, memory, GPU, disk; and the time of each part of its loop."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cadenza.base import system_memory

GB = 1e9
SAMPLE_SECONDS = 1.0  # shortest time between samples, each of which takes a fraction of a millisecond


class Usage:
    """The resource metrics of a row: seconds of each part of the loop, and samples of the machine."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder = folder
        self._gpu = Gpu(device) if device.startswith("cuda") else None
        self._spent: dict[str, float] = {}
        self._row_at, self._env_steps = time.monotonic(), 0
        self._sampled_at, self._cpu_seconds = 0.0, 0.0

    def begin(self, env_steps: int) -> None:
        """Start measuring at this step."""
        self._row_at, self._env_steps = time.monotonic(), env_steps
        self._sampled_at, self._cpu_seconds = self._row_at, cpu_seconds(workers())
        self._spent = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the duration of a block to a part of the loop."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.monotonic() - began

    def take(self, env_steps: int) -> dict[str, float]:
        """Return the metrics since the last call, for a row."""
        now = time.monotonic()
        elapsed, steps = now - self._row_at, env_steps - self._env_steps
        metrics = {f"time/{name}": seconds for name, seconds in self._spent.items()}
        if steps > 0 and elapsed > 0:
            metrics["time/steps_per_second"] = steps / elapsed
        self._row_at, self._env_steps, self._spent = now, env_steps, {}
        if now - self._sampled_at >= SAMPLE_SECONDS:
            metrics |= self._sample(now)
        return metrics

    def _sample(self, now: float) -> dict[str, float]:
        others = workers()
        seconds = cpu_seconds(others)
        # the seconds of workers that have ended are lost
        metrics = {"system/cpu_percent": 100 * max(0.0, seconds - self._cpu_seconds) / (now - self._sampled_at)}
        self._sampled_at, self._cpu_seconds = now, seconds
        used, free, total = system_memory.resident(), system_memory.available(), system_memory.total()
        if used is not None:
            metrics["system/memory_gb"] = (used + sum(map(resident, others))) / GB
        if free is not None and total:
            metrics["system/memory_percent"] = 100 * (1 - min(free, total) / total)
        with contextlib.suppress(OSError):
            metrics["system/disk_free_gb"] = shutil.disk_usage(self._folder).free / GB
        return metrics | (self._gpu.sample() if self._gpu is not None else {})


def workers() -> list[int]:
    """Return the ids of child processes, such as workers of environments; none where the system has no /proc."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            children += [int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()]
    return children


def cpu_seconds(others: list[int]) -> float:
    """Return the processor seconds of this process and of others."""
    total = time.process_time()
    for pid in others:
        with contextlib.suppress(OSError, ValueError, IndexError):
            numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
    return total


def resident(pid: int) -> int:
    """Return the unshared memory of a process: workers share the libraries of this one."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


class Rates(ctypes.Structure):
    """The structure nvmlUtilization_t of NVML."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Gpu:
    """A CUDA device: its memory from torch, and its utilization from the driver's library if it is installed."""

    def __init__(self, device: str) -> None:
        self._device, self._library, self._handle = device, None, ctypes.c_void_p()
        with contextlib.suppress(OSError, AttributeError, RuntimeError):
            import torch

            library: Any = ctypes.CDLL("libnvidia-ml.so.1")
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self._handle)) == 0:
                self._library = library

    def sample(self) -> dict[str, float]:
        """Return memory and utilization of the device as metrics."""
        import torch

        free, total = torch.cuda.mem_get_info(self._device)
        metrics = {
            "system/gpu_memory_gb": torch.cuda.memory_reserved(self._device) / GB,
            "system/gpu_memory_percent": 100 * (1 - free / total),
        }
        rates = Rates()
        if self._library is not None and not self._library.nvmlDeviceGetUtilizationRates(
            self._handle, ctypes.byref(rates)
        ):
            metrics["system/gpu_percent"] = float(rates.gpu)
        return metrics
