"""The worker processes of this process's environments."""

from __future__ import annotations

import psutil


def worker_processes() -> list[psutil.Process]:
    return [
        child for child in psutil.Process().children(recursive=True) if "cadenza.envs.worker_main" in child.cmdline()
    ]
