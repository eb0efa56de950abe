"""The processors that this process may use: those it is bound to, within the quotas of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = ("", "unified")  # folders of version 2 below `CGROUPS`; the latter beside version 1


def usable() -> int:
    """Count the processors, at least one; a quota of 1.5 counts as one, since a second thread would be throttled."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([available, *map(int, quotas())]))


def quotas() -> list[float]:
    """Return the quotas, in processors, of the control groups of this process and of those around them."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for name in (controllers, "cpu") if controllers else UNIFIED:
            home = CGROUPS / name
            group = home / path.lstrip("/")  # in a container it may not exist; the container's own is then `home`
            limits += [_quota(folder) for folder in (group, *group.parents) if folder.is_relative_to(home)]
    return [limit for limit in limits if limit is not None]


def _quota(folder: Path) -> float | None:
    """Return the quota that stands in the folder of a control group of either version, or None."""
    try:
        if (both := folder / "cpu.max").exists():
            limit, period = both.read_text().split()
        else:
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no limit is `max`
        return None


def vendor(information: Path = Path("/proc/cpuinfo")) -> str:
    """Return the vendor's name in the processor's own words, such as GenuineIntel, or nothing where it is not known."""
    try:
        with information.open() as lines:
            line = next((line for line in lines if line.startswith("vendor_id")), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()
