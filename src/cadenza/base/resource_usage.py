"""What a run takes of its machine: processors, memory, GPU, disk; and where its time goes."""

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
SAMPLE_SECONDS = 1.0  # rows may follow each other quickly; looking costs a fraction of a millisecond


class Usage:
    """Between two rows: seconds by part of the loop, and the machine, looked at once in a while."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder = folder
        self._gpu = Gpu(device) if device.startswith("cuda") else None
        self._spent: dict[str, float] = {}
        self._row_at, self._env_steps = time.monotonic(), 0
        self._sampled_at, self._cpu_seconds = 0.0, 0.0

    def begin(self, env_steps: int) -> None:
        """Time counts from here, at this step."""
        self._row_at, self._env_steps = time.monotonic(), env_steps
        self._sampled_at, self._cpu_seconds = self._row_at, cpu_seconds(workers())
        self._spent = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.monotonic() - began

    def take(self, env_steps: int) -> dict[str, float]:
        """What a row tells of it; the next one begins anew."""
        now = time.monotonic()
        elapsed, steps = now - self._row_at, env_steps - self._env_steps
        found = {f"time/{name}": seconds for name, seconds in self._spent.items()}
        if steps > 0 and elapsed > 0:
            found["time/steps_per_second"] = steps / elapsed
        self._row_at, self._env_steps, self._spent = now, env_steps, {}
        if now - self._sampled_at >= SAMPLE_SECONDS:
            found |= self._sample(now)
        return found

    def _sample(self, now: float) -> dict[str, float]:
        others = workers()
        seconds = cpu_seconds(others)
        # workers that have ended take their seconds with them
        found = {"system/cpu_percent": 100 * max(0.0, seconds - self._cpu_seconds) / (now - self._sampled_at)}
        self._sampled_at, self._cpu_seconds = now, seconds
        own, free, total = system_memory.resident(), system_memory.available(), system_memory.total()
        if own is not None:
            found["system/memory_gb"] = (own + sum(map(resident, others))) / GB
        if free is not None and total:
            found["system/memory_percent"] = 100 * (1 - min(free, total) / total)
        with contextlib.suppress(OSError):
            found["system/disk_free_gb"] = shutil.disk_usage(self._folder).free / GB
        return found | (self._gpu.sample() if self._gpu is not None else {})


def workers() -> list[int]:
    """Processes that this one started, those of environments among them; none where the system does not tell."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            found += [int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()]
    return found


def cpu_seconds(others: list[int]) -> float:
    """Of this process and these."""
    total = time.process_time()
    for pid in others:
        with contextlib.suppress(OSError, ValueError, IndexError):
            numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
    return total


def resident(pid: int) -> int:
    """Memory of a process that no other shares: workers share this one's libraries."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


class Rates(ctypes.Structure):
    """NVML's nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Gpu:
    """Asks torch for memory and the driver's own library, where it is there, for how busy the device is."""

    def __init__(self, device: str) -> None:
        self._device, self._library, self._handle = device, None, ctypes.c_void_p()
        with contextlib.suppress(OSError, AttributeError, RuntimeError):
            import torch

            library: Any = ctypes.CDLL("libnvidia-ml.so.1")
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self._handle)) == 0:
                self._library = library

    def sample(self) -> dict[str, float]:
        import torch

        free, total = torch.cuda.mem_get_info(self._device)
        found = {
            "system/gpu_memory_gb": torch.cuda.memory_reserved(self._device) / GB,
            "system/gpu_memory_percent": 100 * (1 - free / total),
        }
        rates = Rates()
        if self._library is not None and not self._library.nvmlDeviceGetUtilizationRates(
            self._handle, ctypes.byref(rates)
        ):
            found["system/gpu_percent"] = float(rates.gpu)
        return found
