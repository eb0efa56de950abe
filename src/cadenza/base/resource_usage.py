"""The resources that a run uses: processors, memory, GPU, disk; and the time of each part of its loop."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GB = 1e9
CGROUP = Path("/sys/fs/cgroup")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's `mallopt`
KEPT_MEMORY = 1 << 28  # bytes: of the largest array kept, and of unused memory kept in all
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
        used, free, total = resident_memory(), available_memory(), total_memory()
        if used is not None:
            metrics["system/memory_gb"] = (used + sum(map(unshared_memory, others))) / GB
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


def unshared_memory(pid: int) -> int:
    """Return the unshared memory of a process: workers share the libraries of this one."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def available_memory() -> int | None:
    """Return the memory that can be allocated without swapping, within a container's limit; None if unknown."""
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        limit = (CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            limits.append(int(limit) - int((CGROUP / "memory.current").read_text()) + _reclaimable())
    except OSError:
        pass
    if not limits and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(limits)) if limits else None


def _reclaimable() -> int:
    """Return the page cache that a container is charged for, which is freed on demand."""
    try:
        statistics = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(statistics.get("inactive_file", 0))


def total_memory() -> int | None:
    """Return the memory of the machine, within a container's limit; None if unknown."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit))


def resident_memory() -> int | None:
    """Return the resident memory of this process, with shared libraries; its peak where only that is known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def keep_memory() -> bool:
    """Make glibc reuse the memory of large arrays instead of returning it: fresh pages cost as much as a copy.

    Return whether that was possible.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # the former first: where it is refused (glibc before 2.35), the latter alone would make things worse
    return bool(set_option and set_option(M_MMAP_THRESHOLD, KEPT_MEMORY) and set_option(M_TRIM_THRESHOLD, KEPT_MEMORY))


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
