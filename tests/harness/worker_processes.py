"""The processes that host this one's environments, beside whatever else the tests keep running."""

from __future__ import annotations

import psutil


def worker_processes() -> list[psutil.Process]:
    return [
        child for child in psutil.Process().children(recursive=True) if "cadenza.envs.worker_main" in child.cmdline()
    ]
